"""`cvfl init` on tables as they come: each oddity is handled or said, with what to do."""

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cvfl.cli import app
from cvfl.config.files import load_config
from cvfl.federation.rows.load import load_data

ROWS = 120
RANDOM = np.random.default_rng(0)
Y = RANDOM.integers(0, 2, ROWS)
BANK = {
    "ID": [f"z{i}" for i in range(ROWS)],
    "income": RANDOM.normal(3000, 900, ROWS).round(2).tolist(),
    "y": ["yes" if bad else "no" for bad in Y],
}
SHOP = {"ID": BANK["ID"], "basket": RANDOM.gamma(2, 20, ROWS).round(2).tolist()}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    return tmp_path


def write(name: str, columns: dict[str, list[object]], delimiter: str = ",") -> None:
    with Path(name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def init(bank: dict[str, list[object]], shop: dict[str, list[object]], *arguments: str, delimiter: str = ","):
    """The exit code, what was printed, and the configuration."""
    write("bank.csv", bank, delimiter)
    write("shop.csv", shop, delimiter)
    parties = ("--party", "bank=bank.csv", "--party", "shop=shop.csv", "--label", "bank.y")
    ids = () if "--id" in arguments else ("--id", "ID")
    result = CliRunner().invoke(app, ["init", "fed.toml", "--force", *parties, *ids, *arguments])
    values = tomllib.loads(Path("fed.toml").read_text()) if Path("fed.toml").exists() else {}
    return result.exit_code, result.output, values


def prepared(party: str) -> tuple[str, ...]:
    return load_data(load_config(Path("fed.toml"))).assembled.preparations[party].columns


def test_decimal_commas_are_numbers_from_init_to_training():
    bank = BANK | {"income": [str(value).replace(".", ",") for value in BANK["income"]]}
    code, output, _ = init(bank, SHOP, delimiter=";")
    assert code == 0, output
    assert "bank: bank.csv: numbers written as 1.234,5 in income" in output
    assert "to learn from: 1 number\n" in Path("fed.toml").read_text()
    loaded = load_data(load_config(Path("fed.toml")))
    assert loaded.assembled.preparations["bank"].columns == ("income",)
    assert "bank: bank.csv: numbers written as 1.234,5 in income" in loaded.notes


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("y", BANK["y"], "has the name of the label at bank"),
        ("state", BANK["y"], "tells the label in all shared rows"),
        ("code", [7 - 3 * int(bad) for bad in Y], "tells the label in all shared rows"),
        ("spelled", [["Yes", "YES"][i % 2] if bad else "n" for i, bad in enumerate(Y)], "tells the label"),
    ],
)
@pytest.mark.parametrize("party", ["shop", "bank"])
def test_a_copy_of_the_label_is_left_out(party, name, values, why):
    if party == "bank" and name == "y":
        return
    bank, shop = (table | {name: values} if party == at else table for at, table in (("bank", BANK), ("shop", SHOP)))
    code, output, config = init(bank, shop)
    assert code == 0, output
    assert config["party"][party]["exclude"] == [name]
    assert f"# {name}: {why}" in Path("fed.toml").read_text()
    assert name not in prepared(party)


def test_a_copy_of_a_quantity_is_left_out_and_a_related_column_is_not():
    amounts = RANDOM.normal(size=ROWS)
    shop = SHOP | {"cents": (100 * amounts + 3).tolist(), "near": (amounts + RANDOM.normal(size=ROWS) / 100).tolist()}
    code, output, config = init(BANK | {"y": amounts.tolist()}, shop)
    assert code == 0, output
    assert config["party"]["shop"]["exclude"] == ["cents"]
    assert 'label y: a quantity; for classes add types = { y = "category" }' in output


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Unnamed: 0", range(ROWS)),
        ("", range(1, ROWS + 1)),
        ("Unnamed: 0", [3 * i for i in range(ROWS)]),
        ("nr", range(1, ROWS + 1)),
    ],
)
def test_row_numbers_are_left_out(name, values):
    code, output, config = init({name: list(values)} | BANK, SHOP)
    assert code == 0, output
    assert config["party"]["bank"]["exclude"] == [name or "column1"]
    assert f"# {name or 'column1'}: numbers the rows" in Path("fed.toml").read_text()


@pytest.mark.parametrize(
    ("word", "low", "high"), [("-999", 0, 5000), ("-9999", -40, 40), ("999", 18, 90), ("-99", 1, 9)]
)
def test_a_number_that_means_missing_is_found(word, low, high):
    ages = RANDOM.integers(low, high, ROWS).tolist()
    ages[5] = ages[50] = ages[70] = int(word)
    code, output, config = init(BANK | {"age": ages}, SHOP)
    assert code == 0, output
    assert config["party"]["bank"]["missing"] == [word]
    assert f"bank: bank.csv: {word} counts as missing: age" in output
    assert prepared("bank").count("age") == 2  # the number, and the mark of a gap


@pytest.mark.parametrize("values", [[-999, 1, 2], [900, 999, 999], [99, 99, 1], [-1, -1, 5]])
def test_numbers_that_may_be_meant_are_kept(values):
    ages = (RANDOM.integers(100, 1000, ROWS).tolist() if 900 in values else [3, 4, 5] * (ROWS // 3))[:-3] + values
    code, output, config = init(BANK | {"age": ages}, SHOP)
    assert code == 0, output
    assert "missing" not in config["party"]["bank"]


def test_classes_are_counted_and_rows_without_one_are_said():
    answers = [["yes", "Yes", "YES"][i % 3] if bad else "no" for i, bad in enumerate(Y)]
    answers[:3] = ["unknown", "n/a", ""]
    code, output, _ = init(BANK | {"y": answers}, SHOP)
    assert code == 0, output
    counts = {word: sum(answer.lower() == word for answer in answers) for word in ("yes", "no")}
    assert "label y: 2 classes: " in output
    assert f"no {counts['no']}" in output
    assert any(f"{word} {counts['yes']}" in output for word in ("yes", "Yes", "YES"))
    assert "3 rows without a label are left out" in output
    assert "1 rows with 'unknown' are left out" in output


def test_yes_is_the_positive_class_however_it_is_written():
    answers = [["Yes", "YES", "Yes", "yes"][i % 4] if bad else "no" for i, bad in enumerate(Y)]
    code, output, _ = init(BANK | {"y": answers}, SHOP)
    assert code == 0, output
    line = '2 classes: no, Yes; Yes is positive, unless you add positive = "no"'
    assert f"label y: {line}" in output
    assert f"# {line}" in Path("fed.toml").read_text()
    loaded = load_data(load_config(Path("fed.toml")))
    assert loaded.assembled.classes == ("no", "Yes")
    assert loaded.data.train_labels.mean() == pytest.approx(Y.mean(), abs=0.02)


def test_many_whole_numbers_are_a_quantity_unless_told_otherwise():
    code, output, _ = init(BANK | {"y": [i % 60 for i in range(ROWS)]}, SHOP)
    assert code == 0, output
    assert 'label y: a quantity; for classes add types = { y = "category" }' in output
    few = BANK | {"y": [i % 5 for i in range(ROWS)]}
    assert 'label y: 5 classes: 0, 1, 2, 3, 4; for a quantity add types = { y = "number" }' in init(few, SHOP)[1]


def test_parties_whose_ids_have_different_names():
    shop = {"customer": SHOP["ID"], "basket": SHOP["basket"]}
    code, output, config = init(BANK, shop, "--id", "bank=ID", "--id", "shop=customer")
    assert code == 0, output
    assert "id" not in config["data"]
    assert (config["party"]["bank"]["id"], config["party"]["shop"]["id"]) == ("ID", "customer")
    assert load_data(load_config(Path("fed.toml"))).aligned.common == ROWS
    code, output, config = init(BANK, shop, "--id", "ID", "--id", "shop=customer")
    assert (code, config["party"]["shop"]["id"]) == (0, "customer")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--id", "bank=ID"), "--id is missing: id column (at shop: ID, basket)"),
        (("--id", "ID", "--id", "x"), "--id takes one column for all, or NAME=COLUMN for a party, not ID and x"),
        (
            ("--id", "bank=ID", "--id", "shop=IDs"),
            "id: shop: shop.csv has no column 'IDs'; did you mean 'ID'? (a name of its own is given as --id shop=ID)",
        ),
    ],
)
def test_ids_that_do_not_fit(arguments, message):
    code, output, _ = init(BANK, SHOP, *arguments)
    assert (code, message in output) == (2, True), output


def test_when_no_column_is_left_the_reasons_are_said():
    names = [f"person {i}" for i in range(ROWS)]
    code, output, _ = init(BANK, {"ID": SHOP["ID"], "name": names, "land": ["DE"] * ROWS})
    assert code == 2
    assert (
        "shop: shop.csv: no column is left to learn from beside id and label: "
        "name has 120 different values in 120 rows, such as 'person 0'; numbers and dates are read when all are "
        "written in one way, such as 1234.5 or 2024-02-29; land is constant"
    ) in output


@pytest.mark.parametrize(
    ("values", "example"),
    [
        ([f"{50 + i % 60} kg" for i in range(ROWS)], "'50 kg'"),
        (
            [f"2020-01-{1 + i % 12:02}" if i % 2 else f"{1 + i % 12:02}/01/2020" for i in range(ROWS)],
            "'01/01/2020' and",
        ),
    ],
)
def test_a_category_that_looks_like_numbers_or_dates_is_said_by_init_and_train(values, example):
    code, output, _ = init(BANK, SHOP | {"x": values})
    assert code == 0, output
    line = f"shop: shop.csv: x is read as a category, though its values look like numbers or dates, such as {example}"
    assert line in output
    assert any(note.startswith(line) for note in load_data(load_config(Path("fed.toml"))).notes)


def test_categories_that_have_digits_are_no_numbers():
    codes = {"post": [f"{1000 + i % 50} {'ABCDEFGHJK'[i % 10]}{'LMN'[i % 3]}" for i in range(ROWS)]}
    code, output, _ = init(BANK, SHOP | codes | {"size": [f"{i % 3} rooms" for i in range(ROWS)]})
    assert (code, "look like numbers" in output) == (0, False), output


def test_a_category_that_is_mostly_rare_is_said_by_init_and_train():
    names = [f"street {i % 119} a" if i % 10 else "none" for i in range(3 * ROWS)]
    ids = [f"z{i}" for i in range(3 * ROWS)]
    bank = {"ID": ids, "income": BANK["income"] * 3, "y": BANK["y"] * 3}
    shop = {"ID": ids, "basket": SHOP["basket"] * 3, "street": names}
    code, output, _ = init(bank, shop)
    assert code == 0, output
    line = (
        "column 'street' is a category of which 90% of the rows have rare values, such as 'street 0 a', that count as"
    )
    assert f"shop: shop.csv: {line}" in output.replace("street 1 a", "street 0 a")
    assert "# column 'street' is a category of which 90%" in Path("fed.toml").read_text()
    for prepare in ("one-hot", "embedding"):
        notes = load_data(load_config(Path("fed.toml"), [f"data.prepare.categories={prepare}"])).notes
        (note,) = [note for note in notes if "rare values" in note]
        assert note.startswith("shop: shop.csv: column 'street' is a category of which ")
        assert note.endswith("such as 1234.5 or 2024-02-29; else exclude it, or lower `rare`")


def test_why_a_column_is_left_out_is_printed():
    code, output, config = init(BANK, SHOP | {"pay": [f"about {i}.000" for i in range(ROWS)], "land": ["DE"] * ROWS})
    assert code == 0, output
    assert config["party"]["shop"]["exclude"] == ["pay", "land"]
    assert (
        "shop: shop.csv: pay: has 120 different values in 120 rows, such as 'about 0.000'; numbers and dates" in output
    )
    assert "shop: shop.csv: land: is constant" in output


def test_one_bad_cell_of_a_column_of_numbers_is_printed_with_what_to_do():
    pay = [f"${1000 + i}" for i in range(ROWS)]
    pay[7] = "ask Bob"
    code, output, config = init(BANK, SHOP | {"pay": pay})
    assert code == 0, output
    assert config["party"]["shop"]["exclude"] == ["pay"]
    assert (
        "shop: shop.csv: pay: column 'pay' mixes numbers and text: 'ask Bob' in row 8; "
        'mend it, add it to `missing` or set types.pay = "category"'
    ) in output


SHOP_CID = {"CID": SHOP["ID"], "basket": SHOP["basket"]}


def test_an_id_of_another_name_is_named_with_the_option():
    code, output, _ = init(BANK, SHOP_CID, "--id", "ID")
    assert code == 2
    assert (
        "id: shop: shop.csv has no column 'ID'; did you mean 'CID'? (a name of its own is given as --id shop=CID)"
        in output
    )
    arguments = ["init", "fed.toml", "--party", "bank=bank.csv", "--party", "shop=shop.csv"]
    output = CliRunner().invoke(app, arguments).output
    assert "id column (in every table: none; name that of each: --id bank=ID --id shop=CID)" in output


@pytest.mark.parametrize("option", ["first", "bank=first"])
def test_duplicate_ids_are_named_with_the_option_that_settles_them(option):
    bank = {name: [*values, values[3]] for name, values in BANK.items()}
    code, output, _ = init(bank, SHOP)
    assert code == 2
    assert 'or set duplicates = "first" or "last" for this party; here: --duplicates bank=first' in output
    code, output, config = init(bank, SHOP, "--duplicates", option)
    assert code == 0, output
    assert config["party"]["bank"]["duplicates"] == "first"
    assert "bank: bank.csv: 1 rows are left out, whose id another row has: the first counts" in output
    assert load_data(load_config(Path("fed.toml"))).aligned.common == ROWS
    assert init(bank, SHOP, "--duplicates", "both")[0] == 2
    assert "--duplicates takes first or last" in init(bank, SHOP, "--duplicates", "bnk=first")[1]


def test_a_stray_word_in_the_label_is_named_with_the_option_that_settles_it():
    answers = [*(0.5 * i for i in range(ROWS - 1)), "soon"]
    code, output, _ = init(BANK | {"y": answers}, SHOP)
    assert code == 2
    assert "'soon' in row 120; mend it, add it to `missing`" in output
    assert "here: --missing bank=WORD" in output
    code, output, config = init(BANK | {"y": answers}, SHOP, "--missing", "bank=soon")
    assert code == 0, output
    assert config["party"]["bank"]["missing"] == ["soon"]
    assert "1 rows without a label are left out" in output
    assert "there is no such party; did you mean 'bank'?" in init(BANK, SHOP, "--missing", "bnk=soon")[1]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (str.upper, 'only 0 of the 120 ids of bank, the smallest table, are in every table; 120 if case does not '
                    'count: set id_type = "caseless" at every party'),
        (lambda id: f"00{id[1:]}", "only 0 of the 120 ids of bank, the smallest table, are in every table; check that"),
        (lambda id: id if id in ("z0", "z1") else f"x{id}", "only 2 of the 120 ids of bank"),
    ],
)  # fmt: skip
def test_ids_that_do_not_match_are_said(change, line):
    code, output, _ = init(BANK, SHOP | {"ID": [change(id) for id in SHOP["ID"]]})
    assert (code, line in output) == (0, True), output
    assert "smallest table" not in init(BANK, SHOP)[1]


def test_ids_that_are_padded_are_said():
    plain, padded = (list(map(form.format, range(ROWS))) for form in ("{}", "{:06}"))
    code, output, _ = init(BANK | {"ID": plain}, SHOP | {"ID": padded})
    assert code == 0
    assert '120 without the zeros before them: set id_type = "integer" at every party' in output


@pytest.mark.parametrize(
    ("change", "remedies"),
    [
        ("data.split_by=income", ["data.stratify=false"]),
        ("privacy.labels=bank", ["data.stratify=false"]),
        ("privacy.aggregation=secure", ["server_model.name=sum"]),
    ],
)
def test_what_goes_against_the_file_names_the_remedy_which_is_enough(change, remedies):
    assert init(BANK, SHOP)[0] == 0
    arguments = ["train", "fed.toml", "--set", "epochs=2", "--set", change]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    told = refused.output.replace(" = ", "=").replace("'", "")
    assert all(f"set {remedy}" in told for remedy in remedies), refused.output
    trained = CliRunner().invoke(app, [*arguments, *(word for remedy in remedies for word in ("--set", remedy))])
    assert trained.exit_code == 0, trained.output
