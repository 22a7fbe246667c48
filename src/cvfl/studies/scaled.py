"""What a preset scaled down, by the configurations themselves: nothing is left out."""

from __future__ import annotations

from pathlib import Path

from cvfl.runs.read import flattened
from cvfl.studies.study import Study, tasks

_ABSENT = "null"
_WORDS = {
    _ABSENT: "as it comes",
    "data.name": "data set",
    "data.limit": "training samples",
    "data.test_share": "share of test samples",
    "step_size.eta": "step size",
    "party_model.width": "embedding width",
    "party_model.hidden": "party model, hidden",
    "batch_size": "batch",
}


def scaled_down(study: Study, preset: str, seeds: int) -> tuple[tuple[str, str, str], ...]:
    """In which settings a preset differs from the paper's, by the configurations themselves: nothing is left out."""
    if preset == "paper" or "paper" not in study.preset:
        return ()
    paper, here = _settings(study, "paper"), _settings(study, preset) | {"seeds": str(seeds)}
    keys = [key for key in dict.fromkeys((*paper, *here)) if paper.get(key) != here.get(key)]
    rows = [(_WORDS.get(key, key.replace("_", " ")), paper.get(key, _ABSENT), here.get(key, _ABSENT)) for key in keys]
    return tuple((name, _WORDS.get(old, old), _WORDS.get(new, new)) for name, old, new in rows)


def _settings(study: Study, preset: str) -> dict[str, str]:
    """Every setting as text; where the cells differ in it, all of their values."""
    chosen = study.preset[preset]
    found: dict[str, dict[str, None]] = {"target": {f"{chosen.target:g}": None}, "seeds": {str(chosen.seeds): None}}
    for task in tasks(study, preset, 1, Path("data"), Path()):
        for key, value in flattened(
            task.config.model_dump(mode="json", exclude={"seed": True, "data": {"path", "split_seed"}})
        ):
            found.setdefault(key, {})[value] = None
    return {key: " / ".join(values) for key, values in found.items()}
