"""FATE 2.2's HeteroNN: the guest has the label and the model above, the host the other columns.

Embeddings are summed, as HeteroNN does by default: side by side, StdAggLayerArgument(merge_type="concat"), 2.2.0 ends
in a TypeError. The sum is taken in place, so what it adds to must be a copy.

    python fate_app.py --parties guest:9999 host:10000 --told SETTINGS.json
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from fate.arch.launchers.multiprocess_launcher import launch
from fate.ml.nn.hetero.hetero_nn import HeteroNNTrainerGuest, HeteroNNTrainerHost, TrainingArguments
from fate.ml.nn.model_zoo.hetero_nn_model import HeteroNNModelGuest, HeteroNNModelHost
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset


class Copy(nn.Module):
    def forward(self, x):
        return x.clone()


def run(ctx):
    torch.set_num_threads(1)
    told = json.loads(Path(sys.argv[sys.argv.index("--told") + 1]).read_text())
    guest = ctx.is_on_guest
    files = np.load(f"{told['folder']}/{told['names'][0 if guest else 1]}.npz")
    x, x_test = torch.from_numpy(files["train"]), torch.from_numpy(files["test"])
    parts = ((x, files.get("y")), (x_test, files.get("y_test")))
    torch.manual_seed(told["seed"])
    layers = [nn.Linear(x.shape[1], told["hidden"]), nn.ReLU(), nn.Linear(told["hidden"], told["width"])]
    below = nn.Sequential(*layers, nn.Tanh(), Copy())
    args = TrainingArguments(
        num_train_epochs=told["epochs"],
        per_device_train_batch_size=told["batch_size"],
        per_device_eval_batch_size=len(x_test),
        no_cuda=True,
        seed=told["seed"],
    )
    if guest:
        train, test = (TensorDataset(x, torch.from_numpy(y).float()[:, None]) for x, y in parts)
        above = nn.Sequential(nn.Linear(told["width"], 1), nn.Sigmoid())
        model = HeteroNNModelGuest(top_model=above, bottom_model=below)
    else:
        train, test = (TensorDataset(x) for x, _ in parts)
        model = HeteroNNModelHost(bottom_model=below)
    steps = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[told["optimizer"]](model.parameters(), told["step_size"])
    if guest:
        trainer = HeteroNNTrainerGuest(ctx, model, args, train, optimizer=steps, loss_fn=nn.BCELoss())
    else:
        trainer = HeteroNNTrainerHost(ctx, model, args, train, optimizer=steps)
    began = time.time()
    trainer.train()
    scores = trainer.predict(test)
    if guest:
        found = {"seconds": time.time() - began, "rounds": trainer.state.global_step}
        auc = roc_auc_score(files["y_test"], np.asarray(scores.predictions).ravel())
        Path(told["out"]).write_text(json.dumps(found | {"roc_auc": auc}))


if __name__ == "__main__":
    launch(run)
