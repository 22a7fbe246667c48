"""Split learning with NVIDIA FLARE's Collab API: parties have the lower models, the server the one above and labels.

A call a batch: it takes the gradient of the last batch to a party and brings the embedding of the next one back, as in
FLARE's own example of split learning. Batches follow from a seed that all know. Tensors travel as bytes, which is the
fastest way that FLARE has; `wire` says whether of float32 or, as in FLARE's example, float16.

    python flare_app.py SETTINGS.json KIT        SETTINGS: see flare_peer.py; KIT: the administrator's start-up kit
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from nvflare.collab import CollabRecipe, collab
from sklearn.metrics import roc_auc_score
from torch import nn


def batches(told, rows):
    """Rows of every batch of every epoch, in an order that all roles know."""
    order = np.random.default_rng(told["seed"])
    for _ in range(told["epochs"]):
        yield from torch.from_numpy(order.permutation(rows)).split(told["batch_size"])


def packed(x, wire):
    return x.detach().numpy().astype(wire).tobytes()


def unpacked(content, width, wire):
    return torch.from_numpy(np.frombuffer(content, wire).reshape(-1, width).astype(np.float32))


def optimizer(told, model):
    return {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[told["optimizer"]](model.parameters(), told["step_size"])


class Party:
    @collab.init
    def load(self):
        torch.set_num_threads(1)
        self.told = told = json.loads(Path(collab.get_app_prop("told")).read_text())
        files = np.load(f"{told['folder']}/{collab.site_name}.npz")
        self.x, self.x_test, self.y = torch.from_numpy(files["train"]), torch.from_numpy(files["test"]), files.get("y")
        torch.manual_seed(told["seed"])
        layers = [nn.Linear(self.x.shape[1], told["hidden"]), nn.ReLU(), nn.Linear(told["hidden"], told["width"])]
        self.model = nn.Sequential(*layers, nn.Tanh())
        self.steps, self.batches = optimizer(told, self.model), batches(told, len(self.x))

    @collab.publish
    def labels(self):
        return self.y.astype(np.uint8).tobytes()

    @collab.publish
    def step(self, gradient):
        """Learn from the gradient of the last batch; the embedding of the next one."""
        if gradient:
            self.steps.zero_grad()
            self.h.backward(unpacked(gradient, self.told["width"], self.told["wire"]))
            self.steps.step()
        rows = next(self.batches, None)
        self.h = self.model(self.x_test if rows is None else self.x[rows])
        return packed(self.h, self.told["wire"])


class Server:
    @collab.main
    def train(self):
        torch.set_num_threads(1)
        told = json.loads(Path(collab.get_app_prop("told")).read_text())
        parties = [collab.get_clients([name]) for name in told["names"]]
        y = torch.from_numpy(np.frombuffer(dict(parties[0].labels())[told["names"][0]], np.uint8).astype(np.float32))
        torch.manual_seed(told["seed"])
        model = nn.Linear(told["width"] * len(parties), 1)
        steps, gradients, rounds, began = optimizer(told, model), [b""] * len(parties), 0, time.time()
        for rows in batches(told, len(y)):
            h = self.embeddings(parties, gradients, told).requires_grad_()
            steps.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(h)[:, 0], y[rows]).backward()
            steps.step()
            gradients = [packed(part, told["wire"]) for part in h.grad.split(told["width"], 1)]
            rounds += 1
        with torch.no_grad():
            scores = model(self.embeddings(parties, gradients, told))[:, 0]
        found = {"seconds": time.time() - began, "rounds": rounds}
        auc = roc_auc_score(np.load(f"{told['folder']}/{told['names'][0]}.npz")["y_test"], scores)
        Path(told["out"]).write_text(json.dumps(found | {"roc_auc": auc}))

    def embeddings(self, parties, gradients, told):
        """All parties at the same time."""
        calls = [party(blocking=False).step(gradient) for party, gradient in zip(parties, gradients, strict=True)]
        return torch.cat([unpacked(dict(call).popitem()[1], told["width"], told["wire"]) for call in calls], 1)


if __name__ == "__main__":
    from nvflare.recipe import ProdEnv

    told = json.loads(Path(sys.argv[1]).read_text())
    recipe = CollabRecipe("split", Server(), Party(), min_clients=len(told["names"]))
    recipe.set_server_prop("told", sys.argv[1])
    recipe.set_client_prop("told", sys.argv[1])
    run = recipe.execute(ProdEnv(sys.argv[2], login_timeout=30.0, username="admin@example.org"))
    run.get_result()
    print(run.get_status())
