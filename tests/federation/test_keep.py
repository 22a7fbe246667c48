"""A run that is kept is taken up again where it was, and ends in the same bits, lines and bytes."""

import pytest

from cvfl.data import VerticalData
from cvfl.federation.keep import Keep
from cvfl.federation.train import train
from cvfl.runs.journal import Journal
from federations import config, data


class PowerError(Exception):
    """A power cut."""


def interrupted(settings, table: VerticalData, folder, at: int, seconds: float = 0.0) -> None:
    def stop(progress) -> None:
        if progress.report.t0 == at:
            raise PowerError

    with pytest.raises(PowerError):
        train(settings, table, on_round=stop, keep=Keep(folder, seconds), workers=1)


def lines(history):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in history]


@pytest.mark.parametrize(
    "method", [{"algorithm": 1, "local_iterations": 3}, {"algorithm": 2}, {"privacy": {"labels": "org2"}}]
)
@pytest.mark.parametrize("compressor", ["topk:bits=8", "feedback(lattice:bits=3)", "auto"])
def test_a_run_is_taken_up_again(tmp_path, method, compressor):
    settings = config(
        **method,
        rounds=20,
        compressor=compressor,
        server_compressor="auto" if compressor == "auto" else "identity",
        optimizer={"name": "adam"},
        evaluate_every=3,
    )
    table = data()
    whole = train(settings, table, workers=1)
    for at in (0, 6, 7, 15):
        interrupted(settings, table, tmp_path / "kept", at)
    keep = Keep(tmp_path / "kept", 0.0)
    result = train(settings, table, out=tmp_path / "run", keep=keep, workers=1)
    assert result.summary["parameters"] == whole.summary["parameters"]
    assert result.summary["bytes"] == whole.summary["bytes"]
    assert lines(result.history) == lines(whole.history)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 20
    keep.forget()
    assert not (tmp_path / "kept").exists()


def test_without_a_state_it_starts_again(tmp_path):
    settings, table = config(rounds=8), data()
    interrupted(settings, table, tmp_path / "kept", 5, seconds=1e9)
    result = train(settings, table, keep=Keep(tmp_path / "kept"), workers=1)
    assert [line["round"] for line in result.history] == list(range(8))


def test_a_state_whose_lines_are_lost_is_not_used(tmp_path):
    settings, table = config(rounds=8), data()
    interrupted(settings, table, tmp_path / "kept", 5)
    (tmp_path / "kept" / "metrics.jsonl").write_text("")
    result = train(settings, table, keep=Keep(tmp_path / "kept", 0.0), workers=1)
    assert [line["round"] for line in result.history] == list(range(8))


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 0}\n{"round": 1}\n{"rou')
    journal = Journal(path)
    assert [line["round"] for line in journal.lines] == [0, 1]
    journal.back(1)
    journal.append({"round": 1, "again": True})
    assert path.read_text() == '{"round": 0}\n{"round": 1, "again": true}\n'
