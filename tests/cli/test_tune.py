"""`cvfl tune` as a user types it: it goes on, it is the same every time, and it never sees a test row."""

import builtins
import re
from pathlib import Path

import numpy as np
import optuna
import pytest
from typer.testing import CliRunner

from cvfl.advise import tuning
from cvfl.advise.space import SPACE, keys_of, space_of
from cvfl.cli import app
from cvfl.config.files import load_config, parse_config
from cvfl.errors import ConfigError
from cvfl.federation.train import train

pytestmark = pytest.mark.usefixtures("no_pages")
CONFIG = """\
# Two tables.
epochs = 2
batch_size = 50
local_iterations = 1
compressor = "identity"
server_compressor = "identity"
[data]
alignment = "aligned"
test_share = 0.2
validation_share = 0.2  # to choose by
[step_size]
eta = 0.05              # a guess
[party.bank]
table = "bank.csv"
label = "y"
[party.bank.model]
width = 2
[party.shop]
table = "shop.csv"
"""
FEW = ("--search", "step_size.eta", "--search", "party_model.width")


def cvfl(*arguments):
    result = CliRunner().invoke(app, ["tune", "fed.toml", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 3)).round(3)
    y = (x.sum(1) + 0.5 * random.normal(size=300) > 0).astype(int)
    bank = ["a,b,y", *(f"{a},{b},{label}" for (a, b, _), label in zip(x, y, strict=True))]
    shop = ["c", *(str(c) for c in x[:, 2])]
    for name, lines in (("bank", bank), ("shop", shop)):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    (tmp_path / "fed.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def values_of(out):
    """(trial, its metric or that it was stopped early) of the lines that trials leave."""
    return re.findall(r"trial (\d+): (roc_auc [\d.]+|stopped early); (\S+ [^ ]*)", out)


def test_a_search_is_repeated_and_gone_on_with(folder):
    code, whole = cvfl("--trials", 5, *FEW, "--out", "whole")
    assert code == 0, whole
    code, first = cvfl("--trials", 2, *FEW, "--out", "parts")
    code, second = cvfl("--trials", 5, *FEW, "--out", "parts")
    assert [*values_of(first), *values_of(second)] == values_of(whole)
    assert len(values_of(whole)) == 5
    assert "trial 1: roc_auc" in whole
    assert "as configured" in whole.partition("trial 2:")[0]
    assert "next: cvfl train whole/best.toml" in whole
    assert "5 trials would send" in whole
    assert "what matters: " in whole
    best = (folder / "parts" / "best.toml").read_text()
    assert best == (folder / "whole" / "best.toml").read_text()
    assert best.startswith("# By cvfl tune, the best of 5 trials: validation roc_auc 0.")
    assert {"# Two tables.", "# to choose by", "# a guess"} <= set(re.findall(r"# [\w .]+", best))
    before, after = (load_config(folder / name) for name in ("fed.toml", "whole/best.toml"))
    assert after.party["shop"].table.resolve() == before.party["shop"].table.resolve()


def test_the_best_is_what_training_then_gets(folder):
    _, said = cvfl("--trials", 3, *FEW, "--out", "out")
    found = train(load_config(Path("out/best.toml"))).summary["metrics"]["validation"]["roc_auc"]
    assert f"validation roc_auc {found:.4f};" in said
    assert found == pytest.approx(max(float(value.split()[1]) for _, value, _ in values_of(said)), abs=5e-5)


def test_trials_have_no_test_rows(folder, monkeypatch):
    seen = []

    def watched(config, loaded, **options):
        seen.append((len(loaded.data.test_labels), [len(x) for x in loaded.data.test]))
        result = train(config, loaded, **options)
        assert not result.summary["metrics"]["test"]
        return result

    monkeypatch.setattr(tuning, "train", watched)
    assert cvfl("--trials", 2, *FEW)[0] == 0
    assert seen == [(0, [0, 0])] * 2


def test_ctrl_c_keeps_what_is_done_and_the_trial_is_done_again(folder, monkeypatch):
    _, whole = cvfl("--trials", 3, *FEW, "--out", "whole")
    calls = []

    def interrupted(config, loaded, on_round, **options):
        calls.append(config)

        def stop(progress):
            on_round(progress)
            if len(calls) == 2:
                raise KeyboardInterrupt

        return train(config, loaded, on_round=stop, **options)

    monkeypatch.setattr(tuning, "train", interrupted)
    code, first = cvfl("--trials", 3, *FEW, "--out", "parts")
    assert code == 130
    assert "stopped after 1 trials; the same command goes on" in first
    assert (folder / "parts" / "best.toml").exists()
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    _, second = cvfl("--trials", 3, *FEW, "--out", "parts")
    assert [*values_of(first), *values_of(second)] == values_of(whole)
    sent = [float(re.search(r"would send ([\d.]+) MB", said)[1]) for said in (whole, second)]
    assert sent[1] > sent[0]  # the stopped trial sent something, too


def test_a_trial_that_is_not_worth_its_time_is_stopped_early(folder, monkeypatch):
    pruner = optuna.pruners.ThresholdPruner(lower=1.1)
    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda *_: pruner)
    code, output = cvfl("--trials", 2, *FEW)
    assert code == 2
    assert "trial 1: stopped early; as configured" in output
    assert "2 trials (2 stopped early) would send 0." in output


def test_noise_of_all_trials_adds_up(folder):
    noise = ("--set", "privacy.clip=1.0", "--set", "privacy.noise=20.0")
    _, one = cvfl("--trials", 1, *FEW, *noise, "--out", "out")
    code, two = cvfl("--trials", 2, *FEW, *noise, "--out", "out")
    assert code == 0, two
    releases = [int(re.search(r"training row: .*? sent (\d+) times", said)[1]) for said in (one, two)]
    spent = [float(re.search(r"training row: ε ([\d.]+)", said)[1]) for said in (one, two)]
    assert releases == [2, 4]
    assert spent[0] < spent[1] < 2 * spent[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--set", "data.validation_share=0"), "needs validation rows: set data.validation_share, such as 0.2"),
        (("--search", "step_size.etha"), "--search step_size.etha: it cannot be searched here; did you mean"),
        (("--search", "server_model.hidden"), "it cannot be searched here"),
        (("--set", "loss=squared", "--set", "step_size.eta=1e30", *FEW), "no trial ran to its end; the first: "),
    ],
)
def test_what_cannot_be_searched_is_one_line(folder, arguments, said):
    code, output = cvfl("--trials", 1, *arguments)
    assert code == 2
    assert said in output


def test_a_folder_of_another_search_is_left_alone(folder):
    assert cvfl("--trials", 1, *FEW, "--out", "out")[0] == 0
    code, output = cvfl("--trials", 2, *FEW, "--out", "out", "--set", "seed=4")
    assert code == 2
    assert "out was begun with another configuration: seed differs" in output


def test_the_extra_is_named(folder, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "cvfl.advise.tuning":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    code, output = cvfl()
    assert (code, output) == (2, "error: cvfl tune needs: pip install 'cvfl[tune]'")


def test_every_setting_of_the_table_fits_where_it_is_searched(folder):
    """All values, one at a time, make configurations that are accepted; the configured one changes nothing."""
    config = load_config(Path("fed.toml"))
    space = space_of(config, 10_000)
    assert {one.key for one in SPACE} - {one.key for one in space} <= {
        "server_model.hidden",
        "party_model.dropout",
        "optimizer.sparsity",
        "local_rows",
    }
    for one in space:
        first, *others = one.of(config)
        for value in others:
            keys = keys_of(config, one.key, value)
            assert keys
            load_config(Path("fed.toml"), [f"{key}={value}" for key, value in keys.items() if isinstance(value, str)])
        assert keys_of(config, one.key, getattr(one, "now", lambda config: first)(config)) == {}  # noqa: B023
    assert set(keys_of(config, "party_model.width", 64)) == {"party_model.width", "party.bank.model.width"}


def test_what_a_configuration_does_not_have_is_not_searched():
    values = {"data": {"name": "digits"}, "step_size": {"eta": 0.1}, "rounds": 9}
    plain = parse_config(values | {"server_model": {"name": "mlp"}})
    assert {"server_model.hidden", "compressor"} <= {one.key for one in space_of(plain, 1000)}
    strict = parse_config(
        values | {"algorithm": 2, "party_model": {"name": "cnn"}, "privacy": {"clip": 1.0, "noise": 1.0}}
    )
    keys = {one.key for one in space_of(strict, 1000)}
    assert keys == {"step_size.eta", "party_model.width", "optimizer.weight_decay"}
    with pytest.raises(ConfigError, match="--search compressor"):
        space_of(strict, 1000, ["compressor"])


def test_a_model_that_needs_its_hidden_layers_keeps_some() -> None:
    values = {"data": {"name": "wine"}, "rounds": 2, "step_size": {"eta": 0.1}}
    config = parse_config(values | {"server_model": {"name": "wide_deep", "hidden": [8]}})
    (hidden,) = (one for one in space_of(config, 1000) if one.key == "server_model.hidden")
    assert [] not in hidden.of(config)
    assert [8] in hidden.of(config)
