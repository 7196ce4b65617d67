"""Small tensors that a program makes from numbers alone (`torch.ones`, `arange`) as constants that it can read.

A mask of ones that a model makes where it is given none, and then tests, has one value in every call. Torch follows the
values of `torch.tensor` only, so such tensors are made by that. As constants they are larger than calls and cannot be
recognised as what they are, so this is for programs that cannot be captured otherwise.
"""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from ._fake import KNOWN

_FILLED: dict[Any, float] = {
    **dict.fromkeys((torch.ones, torch.ones_like, Tensor.new_ones), 1),
    **dict.fromkeys((torch.zeros, torch.zeros_like, Tensor.new_zeros), 0),
}
_GIVEN = (torch.full, torch.full_like, Tensor.new_full)


class KnownFactories(TorchFunctionMode):
    """Within, small tensors that are made from numbers are constants of the program."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        made = function(*args, **kwargs)
        known = function in _FILLED or function in _GIVEN or function is torch.arange
        if not known or kwargs.get("requires_grad") or not 0 < made.numel() <= KNOWN:
            return made
        if function in _FILLED:
            values: Any = _nested(made.shape, _FILLED[function])
        elif function in _GIVEN:
            fill = kwargs.get("fill_value", args[-1])
            if not isinstance(fill, bool | int | float):
                return made
            values = _nested(made.shape, fill)
        else:
            if not all(isinstance(each, int | float) for each in args):
                return made
            with unset_fake_temporarily():
                values = torch.arange(*args).tolist()
        return torch.tensor(values, dtype=made.dtype)


def _nested(shape: Any, value: float) -> Any:
    """Lists of lists of one value."""
    for size in reversed(tuple(shape)):
        value = [value] * size  # type: ignore[assignment]
    return value
