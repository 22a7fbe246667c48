"""No federation: the joined table with scikit-learn, which no organisation has here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from inputs import SETTINGS, Inputs
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

REQUIREMENTS = ()
VARIANTS = {"logistic regression": "", "boosting": "", "MLP": ""}


def measure(inputs: Inputs, place: Path, variant: str, python: Path) -> dict[str, Any]:
    """Fit one model in this process."""
    s, trees = SETTINGS, SETTINGS["trees"]
    match variant:
        case "logistic regression":
            model: Any = LogisticRegression(max_iter=2000)
        case "boosting":
            model = HistGradientBoostingClassifier(
                max_iter=trees["count"],
                max_depth=trees["depth"],
                learning_rate=trees["learning_rate"],
                max_bins=trees["bins"],
                early_stopping=False,
                random_state=s["seed"],
            )
        case _:
            wide = s["hidden"] * len(inputs.names), s["width"] * len(inputs.names)  # as wide as all parties together
            model = MLPClassifier(
                wide, batch_size=s["batch_size"], max_iter=s["epochs"], learning_rate_init=s["step_size"]
            )
            model.set_params(random_state=s["seed"])
    x, y, x_test, y_test = inputs.joined()
    began = time.time()
    scores = model.fit(x, y).predict_proba(x_test)[:, 1]
    return {"roc_auc": float(roc_auc_score(y_test, scores)), "seconds": time.time() - began, "lines": 4}
