"""Vertical XGBoost by xgboost's federated plugin, which FLARE's vertical XGBoost runs: every party has some columns.

python xgboost_app.py SETTINGS.json server PORT
python xgboost_app.py SETTINGS.json PARTY PORT
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import xgboost as xgb
from sklearn.metrics import roc_auc_score
from xgboost.federated import run_federated_server

told = json.loads(Path(sys.argv[1]).read_text())
role, port, certificates = sys.argv[2], int(sys.argv[3]), Path(told["certificates"])
key, own, ca = (str(certificates / file) for file in (f"{role}.key", f"{role}.crt", "ca.crt"))
if role == "server":
    run_federated_server(len(told["names"]), port, server_key_path=key, server_cert_path=own, client_cert_path=ca)
else:
    rank = told["names"].index(role)
    files = np.load(f"{told['folder']}/{role}.npz")
    address = {"federated_server_address": f"127.0.0.1:{port}", "federated_world_size": len(told["names"])}
    secure = {"federated_server_cert_path": ca, "federated_client_key_path": key, "federated_client_cert_path": own}
    with xgb.collective.CommunicatorContext(dmlc_communicator="federated", federated_rank=rank, **address, **secure):
        columns = xgb.core.DataSplitMode.COL
        train, test = (
            xgb.DMatrix(files[part], label=files.get(y), data_split_mode=columns, nthread=1)
            for part, y in (("train", "y"), ("test", "y_test"))
        )
        began, trees = time.time(), told["trees"]
        how = {"objective": "binary:logistic", "tree_method": "hist", "nthread": 1, "seed": told["seed"]}
        how |= {"max_depth": trees["depth"], "eta": trees["learning_rate"], "max_bin": trees["bins"]}
        scores = xgb.train(how, train, trees["count"]).predict(test)
        if rank == 0:
            found = {"seconds": time.time() - began, "rounds": trees["count"]}
            auc = roc_auc_score(files["y_test"], scores)
            Path(told["out"]).write_text(json.dumps(found | {"roc_auc": auc}))
