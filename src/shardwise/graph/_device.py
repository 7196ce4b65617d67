"""Capture runs on fake CPU tensors for programs that will run elsewhere: what would make the graph a CPU's is off."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

import torch


@contextmanager
def on_any_device() -> Iterator[None]:
    """Within, a program on CPU tensors calls the operators that it would call on any device.

    oneDNN would turn an LSTM into one operator that exists on CPUs alone. Autocast for another device would be
    ignored: it is taken as autocast for the CPU, to the same dtype.
    """
    library = torch._C._get_mkldnn_enabled()
    plain_init = torch.autocast.__init__

    def init(
        self: torch.autocast, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        plain_init(self, "cpu", dtype or torch.get_autocast_dtype(device_type), *args, **kwargs)

    torch._C._set_mkldnn_enabled(False)
    torch.autocast.__init__ = init
    try:
        with _quiet():
            yield
    finally:
        torch.autocast.__init__ = plain_init
        torch._C._set_mkldnn_enabled(library)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch writes about an error before it raises it, and without a warning that is mistaken.

    Recurrent modules hold their weights a second time, in a list; seeing it change is no news.
    """
    loggers = [log for name, log in logging.root.manager.loggerDict.items() if name.split(".")[0] == "torch"]
    handlers = [handler for log in loggers for handler in getattr(log, "handlers", ())]
    for handler in handlers:
        handler.addFilter(_nothing)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.filterwarnings("ignore", r"The tensor attributes? self\.[\w.]*_flat_weights")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False
