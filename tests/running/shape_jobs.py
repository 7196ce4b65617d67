"""Batches of several shapes, on every rank beside the unsharded model: what `tests/running/test_shapes.py` compares."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.planning import random_plan


class Net(nn.Module):
    """Attention over positions, dropout, and a buffer that forward updates."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(12, 8), nn.Embedding(16, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 12)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, ids, labels):
        x = self.block(self.table(ids) + self.places(torch.arange(ids.shape[1])))
        self.seen += x.detach().sum((0, 1))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


BATCHES = [(8, 6), (8, 6), (3, 6), (8, 10), (3, 6), (8, 6)]
ALLOWED = [{"ids": (None, 6), "labels": (None, 6)}, {"ids": (8, 10), "labels": (8, 10)}]


def run(seed):
    torch.manual_seed(0)
    model, data = Net(), [torch.randint(12, (2, *shape)) for shape in BATCHES]
    twin, first = copy.deepcopy(model), tuple(data[0])
    plan = random_plan(sw.capture(model, first), mesh="dp=2,tp=2", seed=seed)
    sharded = sw.parallelize(model, first, plan=plan, shapes=ALLOWED)
    model.eval()  # the plans stay those of the mode that it was in
    found = {"state": [], "losses": []}
    for module in (sharded, twin):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for batch in data:
            loss = module(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(_whole(loss).item())
        found["losses"].append(losses)
        found["state"].append({name: _whole(tensor) for name, tensor in module.state_dict().items()})
    found["plans"] = [
        entry.tensor.shape for each in sharded.plans for entry in each.graph.with_role("user_input")
    ]
    state = {entry.target for entry in plan.graph.inputs if entry.role in ("parameter", "buffer")}
    found["layouts"] = [
        {entry.target: str(each.inputs[entry.name]) for entry in each.graph.inputs if entry.target in state}
        for each in sharded.plans
    ]
    found["other"] = _error(lambda: sharded(*torch.zeros(2, 8, 7, dtype=torch.int64)))
    dist.barrier()
    length = 6 if dist.get_rank() else 10
    found["unequal"] = _error(lambda: sharded(*torch.zeros(2, 8, length, dtype=torch.int64)))
    return found


def _error(call):
    try:
        call()
    except sw.UsageError as mistake:
        return str(mistake)


def _whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
