"""`cvfl theory` through a throw-away app: tables that fit, JSON that parses, one clear error."""

import json

import pytest
import typer
from typer.testing import CliRunner

from cvfl.cli.theory import theory
from cvfl.errors import ConfigError
from cvfl.theory.overview import Setting, compressor_rows, rate_rows

app = typer.Typer()
app.command()(theory)


def run(*arguments: str, columns: int = 100):
    return CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1"}).invoke(app, list(arguments))


@pytest.mark.parametrize("columns", [80, 100])
def test_tables_fit_and_lose_nothing(columns):
    result = run(columns=columns)
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= columns
    assert "…" not in result.output
    for text in ("scalar", "lattice", "top-k", "593.2", "V = 0.2887", "1.281 MB", "b = 9", "T = 1500"):
        assert text in result.output


def test_bits_choose_the_rows():
    output = run("--bits", "5", "--bits", "6").output
    assert "b = 5" in output
    assert "b = 6" in output
    assert "V = 0.2887" not in output  # the lattice of 2 bits


def test_json_is_the_same_numbers():
    arguments = ["--parties", "2", "--batch", "8", "--width", "4", "--rounds", "5", "--local", "3"]
    report = json.loads(run(*arguments, "--server-size", "9", "--bits", "3", "--json").output)
    setting = Setting(M=2, B=8, P=4, low=-1.0, high=1.0, R=5, Q=3, theta_0=9)
    rows = compressor_rows(setting, [3])
    assert report["setting"]["T"] == 15
    assert [row["compressor"] for row in report["compressors"]] == [row.compressor for row in rows]
    assert [row["error"]["expected"] for row in report["compressors"]] == [r.error.expected for r in rows]
    assert [row["parameter"] for row in report["rate"]["choices"]] == [r.parameter for r in rate_rows(setting)]


def test_out_of_reach_is_said():
    assert "more than 16 bits" in run("--constant", "1e-9").output


@pytest.mark.parametrize("arguments", [["--parties", "0"], ["--bits", "17"], ["--rounds", "-1"]])
def test_bad_counts_are_usage_errors(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output


@pytest.mark.parametrize("arguments", [["--low", "1"], ["--high", "nan"], ["--constant", "0"]])
def test_bad_numbers_are_config_errors(arguments):
    assert isinstance(run(*arguments).exception, ConfigError)


def test_help_has_an_example():
    output = run("--help").output
    assert "cvfl theory --parties 4" in output
