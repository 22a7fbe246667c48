"""Split learning with Flower: parties have the lower models, the ServerApp the one above and the labels.

A message a batch: it takes the gradient of the last batch to a party and brings the embedding of the next one back.
Every message is a new process at the party, so its model and its optimizer live in the state of its context.
"""

import io
import json
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

client = ClientApp()
server = ServerApp()


def batches(told, rows):
    """Rows of every batch of every epoch, in an order that all roles know."""
    order = np.random.default_rng(told["seed"])
    for _ in range(told["epochs"]):
        yield from torch.from_numpy(order.permutation(rows)).split(told["batch_size"])


def optimizer(told, model):
    return {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[told["optimizer"]](model.parameters(), told["step_size"])


@client.train()
def step(message, context):
    told = json.loads(Path(context.run_config["told"]).read_text())
    x = torch.from_numpy(np.load(f"{told['folder']}/{context.node_config['name']}.npz")["train"])
    torch.manual_seed(told["seed"])
    layers = [nn.Linear(x.shape[1], told["hidden"]), nn.ReLU(), nn.Linear(told["hidden"], told["width"])]
    model = nn.Sequential(*layers, nn.Tanh())
    steps, t, rows = optimizer(told, model), message.content["t"]["t"], list(batches(told, len(x)))
    if "kept" in context.state:
        kept = torch.load(io.BytesIO(context.state["kept"]["kept"]), weights_only=True)
        model.load_state_dict(kept["model"])
        steps.load_state_dict(kept["steps"])
    if t:
        gradient = torch.from_numpy(message.content["gradient"]["h"].numpy().copy())
        model(x[rows[t - 1]]).backward(gradient)
        steps.step()
    kept = io.BytesIO()
    torch.save({"model": model.state_dict(), "steps": steps.state_dict()}, kept)
    context.state["kept"] = ConfigRecord({"kept": kept.getvalue()})
    found = {"h": Array(model(x[rows[t]]).detach().numpy())}
    who = ConfigRecord({"name": context.node_config["name"]})
    return Message(RecordDict({"embedding": ArrayRecord(found), "who": who}), reply_to=message)


@server.main()
def train(grid, context):
    told = json.loads(Path(context.run_config["told"]).read_text())
    y = torch.from_numpy(np.load(f"{told['folder']}/{told['names'][0]}.npz")["y"]).float()
    while len(nodes := list(grid.get_node_ids())) < len(told["names"]):
        time.sleep(0.5)
    torch.manual_seed(told["seed"])
    model = nn.Linear(told["width"] * len(nodes), 1)
    steps, gradients, seconds = optimizer(told, model), {}, []
    for t, rows in enumerate(batches(told, len(y))):
        if t == told["rounds"]:
            break
        began, messages = time.time(), []
        for node in nodes:
            content = RecordDict({"t": ConfigRecord({"t": t})})
            if t:
                content["gradient"] = ArrayRecord({"h": Array(gradients[node].numpy())})
            messages.append(Message(content, dst_node_id=node, message_type="train"))
        replies = sorted(grid.send_and_receive(messages), key=lambda reply: reply.content["who"]["name"])
        h = [torch.from_numpy(reply.content["embedding"]["h"].numpy().copy()).requires_grad_() for reply in replies]
        steps.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(torch.cat(h, 1))[:, 0], y[rows]).backward()
        steps.step()
        gradients = {reply.metadata.src_node_id: part.grad for reply, part in zip(replies, h, strict=True)}
        seconds.append(time.time() - began)
        Path(told["out"]).write_text(json.dumps({"each": seconds}))
