from __future__ import annotations

from pathlib import Path

import pytest

from cvfl.errors import ConfigError
from cvfl.experiments.config import load_config, parse_config

GOOD = {"data": {"name": "digits"}, "step_size": {"eta": 0.1}, "rounds": 3}
TOML = 'rounds = 3\n[data]\nname = "digits"\n[step_size]\neta = 0.1\n'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bach_size": 3}, "unknown key 'bach_size'; did you mean 'batch_size'?"),
        ({"step_size": {"eta": 0.1, "shedule": "sqrt"}}, "unknown key 'step_size.shedule'; did you mean 'schedule'?"),
        ({"data": {"nam": "digits"}}, "unknown key 'data.nam'; did you mean 'name'?"),
        ({"data": {"name": "digits", "partys": 2}}, "unknown key 'data.partys'; did you mean 'parties'?"),
        ({"server_model": {"hiden": [1]}}, "unknown key 'server_model.hiden'; did you mean 'hidden'?"),
        ({"compressor": "latice:bits=2"}, "compressor: unknown compressor 'latice'; did you mean 'lattice'?"),
        ({"compressor": "scalar:bits=17"}, "bits must be a whole number from 1 to 16, not 17"),
        ({"server_compressor": "scalar"}, "server_compressor: compressor 'scalar' needs bits"),
        ({"rounds": None}, "give either rounds or epochs"),
        ({"epochs": 2}, "give either rounds or epochs"),
        ({"algorithm": 2}, "algorithm 2 takes local_iterations = 1, not 10"),
        ({"rounds": 0}, "rounds: input should be greater than or equal to 1, not 0"),
        ({"rounds": "many"}, "rounds: input should be a valid integer"),
        ({"step_size": {"eta": 0.1, "schedule": "milestones"}}, "needs step_size.milestones"),
        ({"loss": "hinge"}, "loss: input should be 'binary', 'multiclass' or 'squared', not 'hinge'"),
    ],
)
def test_each_mistake_gets_one_line_that_names_the_key(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_and_changes(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    config = load_config(path, ["data.parties=2", "compressor=scalar:bits=4", "step_size.eta=0.5", "seed=9"])
    assert (config.data.parties, config.compressor, config.step_size.eta, config.seed) == (2, "scalar:bits=4", 0.5, 9)
    for change, message in [("seed", "takes key=value"), ("rounds.x=1", "rounds is not a section")]:
        with pytest.raises(ConfigError, match=message):
            load_config(path, [change])
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "none.toml")
    path.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"run\.toml"):
        load_config(path)
