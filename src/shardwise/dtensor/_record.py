"""Recording the collectives that run: their kinds, and the bytes that each rank puts in or takes out.

PyTorch's `CommDebugMode` counts collectives; to compare with what a plan priced, sizes are needed too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..calls import facts


@dataclass(frozen=True)
class Recorded:
    """One collective. `size` is the bytes of the larger side on one rank, the first of simulated ranks;
    `ranks` how many took part. What is priced may depend on values: its `size` is None.
    """

    kind: str
    size: int | None
    ranks: int

    def joined(self, other: "Recorded") -> "Recorded":
        """Both as one collective."""
        assert (self.kind, self.ranks) == (other.kind, other.ranks)
        assert self.size is not None and other.size is not None
        return Recorded(self.kind, self.size + other.size, self.ranks)


class record_collectives(TorchDispatchMode):
    """`with record_collectives() as seen: ...` lists in `seen.collectives` what ran inside.

    A permute runs as an all-to-all among all ranks of the mesh, and is recorded as that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collectives: list[Recorded] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return (
                NotImplemented  # let DTensor handle the call first: its collectives are dispatched here then
            )
        result = func(*args, **(kwargs or {}))
        kind = facts(func).collective
        if kind is not None:
            size = max(_bytes(args[0]), _bytes(result))
            self.collectives.append(Recorded(kind, size, _group_size(args)))
        return result

    def counts(self) -> dict[str, int]:
        kinds = [recorded.kind for recorded in self.collectives]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def total(self) -> int:
        """Bytes of all collectives together."""
        return sum(recorded.size or 0 for recorded in self.collectives)


def _bytes(tensor: Tensor | Sequence[Tensor]) -> int:
    if not isinstance(tensor, Tensor):
        return sum(map(_bytes, tensor))
    if hasattr(tensor, "_local_tensors"):
        tensor = tensor._local_tensors[min(tensor._local_tensors)]
    return tensor.numel() * tensor.element_size()


def _group_size(args: Any) -> int:
    group = args[-1]
    return (_resolve_process_group(group) if isinstance(group, str) else group).size()
