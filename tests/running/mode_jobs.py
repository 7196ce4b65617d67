"""Ways of training, on every rank beside the unsharded model: what `tests/running/test_modes.py` compares."""

import copy
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise.planning import random_plan

MESH = "d=2"


class Net(nn.Module):
    """Tied weights, a part that is used twice, and a buffer that forward updates."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, ids):
        x = self.body(self.body(self.table(ids)))
        self.seen += x.detach().mean((0, 1))
        return self.head(x)


class WithLoss(Net):
    def forward(self, ids, labels):
        return cross_entropy(super().forward(ids), labels)


class Steep(WithLoss):
    """One element has a gradient that overflows once it is scaled, unless the scale has been halved."""

    def forward(self, ids, labels):
        return super().forward(ids, labels) + 2.5 * self.table.weight[0, 0]


class Adapter(nn.Module):
    """A frozen layer and a trained update of low rank, as adapters add it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + 0.5 * self.up(self.down(x))


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def adapted():
    model = WithLoss().requires_grad_(False)
    model.body[0], model.body[2] = Adapter(model.body[0]), Adapter(model.body[2])
    return model


def frozen():
    model = WithLoss()
    model.body.requires_grad_(False)
    return model


def run(seed):
    torch.manual_seed(0)
    ids, labels = torch.randint(12, (4, 6)), torch.randint(12, (4, 6))
    both = ((ids, labels), {})
    return {
        "adapters": compared(adapted(), *both, seed),
        "frozen parts": compared(frozen(), *both, seed),
        "scaled losses": compared(WithLoss(), *both, seed, autocast=torch.bfloat16, scale=2.0**20),
        "gradients that overflow": compared(Steep(), *both, seed, scale=2.0**127),
        "clipping and two optimizers": compared(WithLoss(), *both, seed, clip=0.05, optimizers=2),
        "loss outside": compared(Net(), (ids,), {"labels": labels}, seed, loss_fn=cross_entropy),
        "autocast": other_autocast(*both, seed),
    }


def compared(model, args, kwargs, seed, loss_fn=None, autocast=None, **how):
    """Losses and the state after three steps: of the sharded model, and of the model itself."""
    twin = copy.deepcopy(model)

    def unsharded(*args, **kwargs):
        return twin(*args, **kwargs) if loss_fn is None else loss_fn(twin(*args), **kwargs)

    with _autocast(autocast):
        graph = sw.capture(model, args, kwargs, loss_fn=loss_fn)
        plan = random_plan(graph, mesh=MESH, seed=seed)
        sharded = sw.parallelize(model, args, kwargs, plan=plan, loss_fn=loss_fn)
    found = []
    for module, call in ((sharded, sharded), (twin, unsharded)):
        losses = trained(call, list(module.parameters()), args, kwargs, autocast, **how)
        found.append((losses, {name: _whole(tensor) for name, tensor in module.state_dict().items()}))
    return found


def trained(call, parameters, args, kwargs, autocast, scale=None, clip=None, optimizers=1):
    learned = [each for each in parameters if each.requires_grad]
    steppers = [
        torch.optim.SGD(learned[n::optimizers], lr=0.1 * (n + 1), momentum=0.9) for n in range(optimizers)
    ]
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    losses = []
    for _ in range(3):
        with _autocast(autocast):
            loss = call(*args, **kwargs)
        scaler.scale(loss).backward()
        if clip is not None:
            losses.append(_whole(nn.utils.clip_grad_norm_(learned, clip)).item())
        for stepper in steppers:
            scaler.step(stepper)
            stepper.zero_grad()
        scaler.update()
        losses += [_whole(loss).item(), scaler.get_scale()]
    return losses


def other_autocast(args, kwargs, seed):
    model = WithLoss()
    plan = random_plan(sw.capture(model, args, kwargs), mesh=MESH, seed=seed)
    sharded = sw.parallelize(model, args, kwargs, plan=plan)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            sharded(*args, **kwargs)
    except sw.UsageError as mistake:
        return str(mistake)


def _autocast(dtype):
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def _whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
