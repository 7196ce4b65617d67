"""How a program that reads values of tensors is traced: the answers it gets, and from whom.

What follows from the program alone is known (`_known.py`). A number that follows from data is a tensor of no dims
(`_numbers.py`), rows that are selected by values are padded (`_selections.py`), and a branch is computed both ways
(`_branches.py`). Whatever nobody answers is undecided, which ends capture.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ._autograd import Undecided
from ._branches import Branches
from ._known import READS, KnownValues
from ._numbers import Numbers
from ._refusal import DECIDES
from ._selections import Selections


@contextmanager
def undecided() -> Iterator[None]:
    """Within, a program that reads a value of a fake tensor is told that it is undecided. This goes around all else."""
    with _inside_functions(), _NothingElse():
        yield


@contextmanager
def values_read(module: nn.Module, branches: Branches, notes: list[str]) -> Iterator[None]:
    """Within, a program that reads values is answered where that is possible."""
    with (
        KnownValues() as known,
        Numbers(),
        Selections(known, notes) as selections,
        branches.computed(module, notes),
    ):
        hook = module.register_forward_hook(lambda _module, _args, result: selections.require_none(result))
        try:
            yield
        finally:
            hook.remove()


@contextmanager
def _inside_functions() -> Iterator[None]:
    """Within, what functions of `torch.nn.functional` call is seen by modes, and not only that they are called."""
    names = [name for name in vars(functional) if name.startswith("has_torch_function")]
    before = {name: getattr(functional, name) for name in names}
    try:
        for name in names:
            setattr(functional, name, lambda *_: False)
        yield
    finally:
        for name, plain in before.items():
            setattr(functional, name, plain)


class _NothingElse(TorchFunctionMode):
    """Within, a program that reads a value of a fake tensor is told that it is undecided."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in READS:
            read = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, FakeTensor)]
            if any(leaf.constant is None for leaf in read):
                raise Undecided(DECIDES)
        return function(*args, **(kwargs or {}))
