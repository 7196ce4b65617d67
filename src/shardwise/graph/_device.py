"""Capture runs on fake CPU tensors for programs that will run elsewhere: CPU-specific behaviour is turned off."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from ._autograd import Undecided


@contextmanager
def on_any_device() -> Iterator[None]:
    """Within, a program on CPU tensors calls the operators that it would call on any device.

    oneDNN would turn an LSTM into one operator that exists on CPUs alone.
    """
    library = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with quiet(), _Draws(), autocast_on_cpu():
            yield
    finally:
        torch._C._set_mkldnn_enabled(library)


@contextmanager
def autocast_on_cpu() -> Iterator[None]:
    """Within, autocast for another device, which would be ignored, is autocast for the CPU, to the same dtype."""
    plain_init = torch.autocast.__init__

    def init(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        plain_init(self, "cpu", dtype or torch.get_autocast_dtype(device_type), *args, **kwargs)

    torch.autocast.__init__ = init
    try:
        yield
    finally:
        torch.autocast.__init__ = plain_init


def active_autocast() -> torch.dtype | None:
    """The dtype of the autocast that is active, of whatever device; None if there is none."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
    return None


@contextmanager
def autocast_to(dtype: torch.dtype | None) -> Iterator[None]:
    """Within, autocast is to this dtype, on all devices that torch can use; with None there is none."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, dtype, enabled=dtype is not None))
        yield


class _Draws(TorchFunctionMode):
    """Makes `random() < rate` false without a random number where the rate is not positive.

    Models that skip layers at random evaluate it for every layer, also where the rate is 0, and would otherwise
    seem to depend on a random number. Where the rate is positive, they do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drawn = WeakIdKeyDictionary()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in _LESS and len(args) == 2 and args[0] in self.drawn:
            bound = args[1]
            if isinstance(bound, int | float) and bound <= 0:
                return False
        if function is torch.Tensor.__bool__ and args[0] in self.drawn:
            raise Undecided(
                "it skips a part of itself at random here; set the rate to 0 first (layerdrop in configurations of "
                "transformers)"
            )
        result = function(*args, **(kwargs or {}))
        if (function is torch.rand and result.numel() == 1) or (
            function in _LESS and any(isinstance(arg, torch.Tensor) and arg in self.drawn for arg in args)
        ):
            self.drawn[result] = True
        return result


_LESS = (torch.Tensor.__lt__, torch.Tensor.lt, torch.lt, torch.Tensor.__le__, torch.Tensor.__gt__)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what torch prints about an error before it raises it, and its warning about gradients that it looks for
    itself among the tensors of a program.

    Torch prints the graph so far straight to stderr, where the program may print as well: that is shown unless there is
    an error.
    """
    loggers = [log for name, log in logging.root.manager.loggerDict.items() if name.split(".")[0] == "torch"]
    handlers = [handler for log in loggers for handler in getattr(log, "handlers", ())]
    for handler in handlers:
        handler.addFilter(_nothing)
    try:
        with redirect_stderr(StringIO()) as printed, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        for handler in handlers:
            handler.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False
