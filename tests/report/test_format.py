"""Numbers and tables: how digits are chosen, what is best, and what a table keeps until it is written."""

import math

import pytest

from cvfl.report.format import (
    amount,
    brief,
    change,
    digits,
    fixed,
    megabytes,
    places,
    plain,
    score,
    scores,
    share,
    times,
)
from cvfl.report.series import Spread
from cvfl.report.table import Table, Value, column, without_deviation

FOUR = digits(4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (amount(0.01234), "0.0123"),
        (amount(12345.6), "12,346"),
        (amount(12_345_678), "1.2×10⁷"),
        (amount(0), "0"),
        (amount(-4.567), "-4.57"),
        (amount(math.nan), "NaN"),
        (times(3.25), "3.2×"),
        (times(421.5), "422×"),
        (megabytes([1_500_000, 20_000])(1_500_000), "1.5000"),
        (megabytes([])(0), "0.0"),
        (megabytes([math.nan])(math.nan), "NaN"),
        (fixed([12.25, 9.0], 1)(9.0), "9.0"),
        (fixed([0.0, 1234.5])(1234.5), "1,234"),
        (scores([0.5, 4e5])(4e5), "4e+05"),
        (scores([0.5, 0.25])(0.25), "0.2500"),
        (scores([math.nan, 0.25])(math.nan), "NaN"),
        (score(0), "0.0000"),
        (plain(2e-5), "2×10⁻⁵"),
        (plain(1e7), "10⁷"),
        (plain(0.05), "0.05"),
        (plain(-3e6), "-3×10⁶"),
        (share(0.3125), "31.2%"),
        (share(-0.25), "-25.0%"),
        (brief(0.014), "0.01"),
        (brief(9.994), "9.99"),
        (brief(9.996), "10.0"),
        (brief(99.96), "100"),
        (brief(12345.6), "12,346"),
        (change(0.02), "+0.0200"),
        (change(-0.02), "−0.0200"),
        (change(-0.00004), "the same"),
        (digits(0)(2.5), "2"),
    ],
)
def test_numbers(text, expected):
    assert text == expected


def test_places_show_three_digits_of_the_smallest_value_within_limits():
    assert places([123.0, 4.5]) == 2
    assert places([0.00123, 4.5]) == 4
    assert places([0.00123], most=5) == 5
    assert places([123.0], least=2) == 2
    assert places([]) == 1
    assert places([0.0, math.nan]) == 1


def told(cells):
    return [str(cell) for cell in cells]


def test_best_is_by_what_is_shown():
    values = [Spread(0.50001), Spread(0.50002), Spread(0.4), None]
    assert told(column(values, FOUR, max)) == ["**0.5000**"] * 2 + ["0.4000", "–"]
    assert told(column(values[:2], FOUR, max)) == ["0.5000", "0.5000"]
    assert told(column(values[1:3], FOUR, max, [False, True])) == ["0.5000", "0.4000"]
    assert told(column(values, FOUR, min)) == ["0.5000", "0.5000", "**0.4000**", "–"]
    assert told(column(values, FOUR)) == ["0.5000", "0.5000", "0.4000", "–"]


def test_what_is_not_a_number_is_never_best_and_what_is_missing_is_said():
    values = [Spread(math.nan), Spread(2.0), None, Spread(3.0)]
    cells = column(values, digits(1), max, missing=["", "", "-- (1 of 2)", ""])
    assert told(cells) == ["nan", "2.0", "-- (1 of 2)", "**3.0**"]
    assert told(column(values, digits(1), missing="--"))[2] == "--"
    assert column([], FOUR, max) == []
    assert told(column([Spread(-1.0), Spread(-2.0)], share, max)) == ["**-100.0%**", "-200.0%"]


def test_a_cell_keeps_its_value_until_it_is_written():
    cell = Value(Spread(0.123456, 0.0456), digits(3), best=True, unit="of all")
    assert cell.spread.mean == 0.123456
    assert str(cell) == "**0.123** ± 0.046 of all"
    assert str(without_deviation(cell)) == "**0.123** of all"
    assert without_deviation("--") == "--"


def test_a_table_in_markdown():
    table = Table.of({"": ["a", "b"], "MB": column([Spread(1.5), Spread(2.5, 0.0)], digits(1), min)}, "Sent", "A note.")
    assert table.head == ("", "MB")
    assert table.markdown() == "**Sent**\n\n|  | MB |\n| --- | --- |\n| a | **1.5** |\n| b | 2.5 ± 0.0 |\n\nA note.\n"
    assert Table("", ("x",)).markdown() == "| x |\n| --- |\n"
