"""Which operators a captured graph is made of: the one table that says what is taken apart, and why.

The joint graph is made of what reaches torch's dispatcher below autograd. Composite operators (linear, matmul,
cross entropy, LSTM) are taken apart on the way there by torch itself. Of what remains, those in `TAKEN_APART` are
taken apart further, because whole they cannot be sharded over a dim that matters; all others stay whole, because
their parts would move more memory than the kernel does and offer no further sharding that pays. `KEPT_WHOLE` says
so for those where the question arises.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import decomposition_table

from ..calls import overload
from ._batch_norm import batch_norm, batch_norm_by_statistics, batch_norm_without_statistics

# By torch's own decomposition, or by one of ours: what becomes possible.
TAKEN_APART: Mapping[str, tuple[Callable[..., Any] | None, str]] = {
    "aten._log_softmax.default": (
        None,
        "the classes (a vocabulary) can be sharded: maximum and sum of exponentials are partial",
    ),
    "aten._log_softmax_backward_data.default": (
        None,
        "the classes can be sharded: the sum of the gradient is partial",
    ),
    "aten.nll_loss_forward.default": (
        None,
        "the batch can be sharded: the sum and the count of its mean are partial separately",
    ),
    "aten.nll_loss_backward.default": (
        None,
        "the batch can be sharded: the count it divides by is replicated",
    ),
    "aten.nll_loss2d_forward.default": (None, "as nll_loss_forward"),
    "aten.nll_loss2d_backward.default": (None, "as nll_loss_backward"),
    "aten._native_batch_norm_legit_functional.default": (
        batch_norm,
        "the batch can be sharded: mean and variance are partial sums",
    ),
    "aten._native_batch_norm_legit.no_stats": (
        batch_norm_without_statistics,
        "as _native_batch_norm_legit_functional",
    ),
    "aten._native_batch_norm_legit_no_training.default": (
        batch_norm_by_statistics,
        "every dim can be sharded: it is elementwise",
    ),
    "aten.native_batch_norm_backward.default": (
        None,
        "the batch can be sharded: its sums over the batch are partial",
    ),
}

# Stay whole although torch could take them apart.
KEPT_WHOLE: Mapping[str, str] = {
    "aten._softmax.default": "one pass over memory; its dim is a whole row of attention or of a router",
    "aten.native_layer_norm.default": "one pass over memory; batch and positions can be sharded",
    "aten.native_group_norm.default": "one pass over memory; batch can be sharded",
    "aten.native_dropout.default": "its mask is drawn by the same call",
    "aten.addmm.default": "one kernel; its bias may be partial",
    "shardwise.attention.default": "one fused kernel; batch and heads can be sharded",
}


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    return {
        overload(name): ours or decomposition_table[overload(name)]
        for name, (ours, _reason) in TAKEN_APART.items()
    }
