"""Audit the DTensor rules of your own operator library.

    python examples/audit_op_library.py

Three operators: one with a correct rule, one with a rule that computes wrong numbers, one without a rule. The audit
reads the rows that DTensor claims for a call of each, and tests them by experiment.
"""

import torch
from torch import Tensor

from shardwise import Rule
from shardwise.auditing import audit_call
from shardwise.calls import Call
from shardwise.dtensor import register


@torch.library.custom_op("library::rms", mutates_args=())
def rms(x: Tensor) -> Tensor:
    """The root mean square of each row."""
    return x.square().mean(dim=-1).sqrt()


@torch.library.custom_op("library::clip", mutates_args=())
def clip(x: Tensor, limit: float) -> Tensor:
    return x.clamp(-limit, limit)


@torch.library.custom_op("library::outer", mutates_args=())
def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[:, None] * b[None, :]


rms.register_fake(lambda x: x.new_empty(x.shape[:-1]))
clip.register_fake(lambda x, limit: torch.empty_like(x))
outer.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[0]))

# The rules that the library ships. Clipping each term of a sum is not clipping the sum.
register(Rule.from_yaml("op: library.rms.default\nclauses: [{rows: S(0) -> S(0)}]"))
register(
    Rule.from_yaml(
        "op: library.clip.default\nclauses: [{rows: S(d) -> S(d)}, {rows: P(sum) -> P(sum)}]",
    )
)

CALLS = [
    Call.of(rms, torch.randn(4, 6)),
    Call.of(clip, torch.randn(4, 6), 0.5),
    Call.of(outer, torch.randn(4), torch.randn(6)),
]

for call in CALLS:
    found = audit_call(call)
    print(f"{call.op}: rows claimed by DTensor: {found.claimed}, found by experiment: {found.valid}")
    for wrong in found.wrong:
        print(f"  wrong: {wrong.row}")
    for missing in found.missing:
        print(f"  missing: {missing.row}")
    for unsupported in found.unsupported:
        print(f"  no rule; these rows hold: {'; '.join(unsupported.rows)}")
