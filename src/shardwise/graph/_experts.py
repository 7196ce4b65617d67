"""Mixtures of experts that loop over tensor values are captured by another of their own implementations.

Models of transformers choose how experts are computed by `set_experts_implementation`. Their default sorts tokens by
expert and reads how many each one has, which a graph cannot; products batched over the chosen experts compute the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ._unchanged import unchanged

_BATCHED = "batched_mm"


def chooses_experts(module: nn.Module) -> bool:
    """Whether a model has experts, and is to compute them otherwise than batched."""
    chosen = getattr(getattr(module, "config", None), "_experts_implementation", None)
    return hasattr(module, "set_experts_implementation") and chosen not in (None, _BATCHED)


@contextmanager
def batched_experts(module: nn.Module) -> Iterator[str]:
    """Within, experts of the model are computed as batched products; the note says so."""
    with unchanged(module):
        module.set_experts_implementation(_BATCHED)
        yield (
            f"its experts, which loop over tensor values, are computed as by set_experts_implementation({_BATCHED!r})"
        )
