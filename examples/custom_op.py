"""Shard a model with a custom operator.

    python examples/custom_op.py

There is no sharding rule for `mine::softcap_rows`. Its rows are discovered while planning, and a run of the plan is
compared with the unsharded model.
"""

import torch
from torch import Tensor, nn

import shardwise as sw


@torch.library.custom_op("mine::softcap_rows", mutates_args=())
def softcap_rows(x: Tensor, cap: float) -> Tensor:
    """Every row scaled so that its largest absolute value stays below the cap."""
    return x * cap / (cap + x.abs().amax(dim=-1, keepdim=True))


@softcap_rows.register_fake
def _(x: Tensor, cap: float) -> Tensor:
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(softcap_rows(self.up(x), 30.0))


# Each row needs its maximum: rows may be sharded, columns may not.
found = sw.discover(torch.ops.mine.softcap_rows.default, torch.randn(4, 6), 30.0)
print("rows that hold:", *found.rows, sep="\n  ")
verdict = sw.check(torch.ops.mine.softcap_rows.default, "S(1) -> S(1)", torch.randn(4, 6), 30.0)
assert verdict.counterexample is not None
print("and not S(1) -> S(1):", verdict.counterexample.shown(), sep="\n  ")

model, x = Model(), torch.randn(64, 256)
plan = sw.plan(model, (x,), training=False, mesh="dp=2,tp=2", cluster="laptop", memory="1MB")
print(plan.explain("softcap_rows"))
print(sw.verify(model, (x,), plan=plan))
