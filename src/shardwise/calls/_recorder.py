"""Recording what reaches dispatch: every overload that is called, with its arguments and what it returned."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ._call import Call


class Recorder(TorchDispatchMode):
    """Records every overload call that reaches dispatch while it is entered, and the results of those that returned.

    With `copies` the tensors of a call are copied before it runs, since it or later ones may overwrite them, and
    results are not kept: autograd makes an alias of a result that is referenced elsewhere, which would be recorded,
    too.
    """

    def __init__(self, copies: bool = False) -> None:
        super().__init__()
        self.copies = copies
        self.calls: list[Call] = []
        self.results: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        call = Call(func, args, kwargs)
        self.calls.append(call.copied() if self.copies else call)
        result = func(*args, **kwargs)
        if not self.copies:
            self.results.append(result)
        return result
