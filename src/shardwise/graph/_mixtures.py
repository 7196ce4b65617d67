"""Mixtures of experts of transformers are captured as calls of `shardwise::experts`.

Models of transformers choose how experts are computed by `set_experts_implementation`, from a table that can be added
to. Their default sorts tokens by expert and reads how many each one has, which a graph cannot. Experts that are not
those of the operator are computed as products batched over the chosen ones, which is another of their own ways.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ._experts import GATES, experts
from ._unchanged import unchanged

_BATCHED, _OWN = "batched_mm", "shardwise"


def chooses_experts(module: nn.Module) -> bool:
    """Whether a model has experts that it computes by looking at values."""
    chosen = getattr(getattr(module, "config", None), "_experts_implementation", None)
    if not hasattr(module, "set_experts_implementation") or chosen in (None, _BATCHED):
        return False
    return any(hasattr(each, "has_gate") for each in module.modules())


@contextmanager
def captured_experts(module: nn.Module) -> Iterator[str]:
    """Within, experts of the model are calls of the operator; the note says so."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, batched_mm_experts_forward

    gates = {each: _gate_of(each) for each in module.modules() if hasattr(each, "has_gate")}

    def computed(of: Any, hidden: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        gate = gates.get(of)
        others = ("has_post_expert_norm", "_is_expert_parallel")  # which not every version has
        if gate is None or any(getattr(of, name, False) for name in others):
            return batched_mm_experts_forward(of, hidden, index, weight)
        return _experts(of, hidden, index, weight, *gate)

    ALL_EXPERTS_FUNCTIONS[_OWN] = computed
    try:
        with unchanged(module):
            module.set_experts_implementation(_OWN)
            yield "its experts, which loop over tensor values, are computed by the operator shardwise::experts"
    finally:
        del ALL_EXPERTS_FUNCTIONS[_OWN]


def _experts(
    module: Any, hidden: Tensor, index: Tensor, weight: Tensor, gate: str, interleaved: bool
) -> Tensor:
    """What experts of transformers compute for tokens, with the indices and weights of the experts of each."""
    first = "gate_up_proj" if module.has_gate else "up_proj"
    up, down = (_as_matrices(module, name) for name in (first, "down_proj"))
    up_bias, down_bias = (
        getattr(module, f"{name}_bias") if module.has_bias else None for name in (first, "down_proj")
    )
    made = experts(
        hidden.to(up.dtype),
        index,
        weight,
        _by_part(up, gate, interleaved),
        None if up_bias is None else _by_part(up_bias, gate, interleaved),
        down,
        down_bias,
        gate,
        up.shape[0],
    )
    return made.to(hidden.dtype)


def _as_matrices(module: Any, name: str) -> Tensor:
    """Matrices by expert, that rows are multiplied with from the left."""
    matrices = getattr(module, name)
    return matrices if module.is_transposed else matrices.transpose(1, 2)


def _by_part(hidden: Tensor, gate: str, interleaved: bool) -> Tensor:
    """The last dim as parts and features, from parts that lie side by side or feature by feature."""
    parts = GATES[gate].parts
    return (
        hidden.unflatten(-1, (-1, parts)).transpose(-1, -2)
        if interleaved
        else hidden.unflatten(-1, (parts, -1))
    )


def _gate_of(module: Any) -> tuple[str, bool] | None:
    """The gate that a module of experts computes, and whether its parts are interleaved, found by trying; None if it is
    none that is known."""
    applied, parts = (module._apply_gate, 2) if module.has_gate else (module.act_fn, 1)
    hidden = torch.linspace(-9, 9, 4 * 22, dtype=torch.float64).view(22, 4).t()
    with torch.no_grad():
        wanted = applied(hidden)
        for name, gate in GATES.items():
            for interleaved in (False, True)[:parts] if gate.parts == parts else ():
                found = gate.run(_by_part(hidden, name, interleaved))
                if found.shape == wanted.shape and torch.allclose(found, wanted):
                    return name, interleaved
    return None
