"""FedTree's vertical trees, as its Python package has them: all parties simulated in one process.

python fedtree_app.py SETTINGS.json
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from fedtree import FLClassifier
from sklearn.metrics import roc_auc_score

told = json.loads(Path(sys.argv[1]).read_text())
files = [np.load(f"{told['folder']}/{name}.npz") for name in told["names"]]
x, x_test = (np.hstack([file[part] for file in files]) for part in ("train", "test"))
trees, began = told["trees"], time.time()
how = {"n_trees": trees["count"], "max_depth": trees["depth"], "learning_rate": trees["learning_rate"]}
how |= {"max_num_bin": trees["bins"], "n_parallel_trees": 1, "objective": "binary:logistic"}
model = FLClassifier(n_parties=len(files), mode="vertical", partition_mode="vertical", **how)
model.fit(x, files[0]["y"])
scores = np.asarray(model.predict_proba(x_test))
found = {"seconds": time.time() - began, "rounds": trees["count"]}
auc = roc_auc_score(files[0]["y_test"], scores[:, -1] if scores.ndim > 1 else scores)
Path(told["out"]).write_text(json.dumps(found | {"roc_auc": auc}))
