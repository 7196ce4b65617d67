"""The optimizers that verification can use: elementwise ones, which can step each piece separately."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import UsageError

MakeOptimizer = Callable[[Sequence[Tensor]], torch.optim.Optimizer]

OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    # Adam divides by the size of the gradient: with a smaller epsilon the rounding of a gradient that is nearly zero
    # would become a step of full length.
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, eps=1e-5),
}


def chosen_optimizer(optimizer: str | MakeOptimizer) -> MakeOptimizer:
    if callable(optimizer):
        return optimizer
    if optimizer not in OPTIMIZERS:
        raise UsageError(
            f"unknown optimizer {optimizer!r}: use one of {', '.join(OPTIMIZERS)}, or a function"
        )
    return OPTIMIZERS[optimizer]
