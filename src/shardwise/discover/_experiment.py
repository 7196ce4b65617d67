"""An experiment: one call at certain sizes and values, on a number of ranks.

It holds the whole inputs and outputs, cuts the inputs into local pieces as asked, runs the call on each rank's
pieces, and says what the local outputs agree with. Pieces are cut once and serve every row. An input that the
call writes to counts as one more output, after those it returns.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement

from ..placements import is_partial, is_shard, shard_sizes, split
from ._call import Call, flat_outputs
from ._judge import Expected, array
from ._partials import Pieces
from ._sizes import LocalSizes, Sized

# What the shards of one run look like: none sharded, or the worst of the sharded dims.
Case = Literal["whole", "even", "uneven", "empty"]
CASES: tuple[Case, ...] = ("whole", "even", "uneven", "empty")

# Local outputs: for each output, the arrays of all ranks.
Local = list[list[np.ndarray]]


class LocalRunFailed(Exception):
    """The operator raised on local pieces, or gave outputs that no placement describes."""


class Experiment:
    def __init__(
        self,
        sized: Sized,
        ranks: int,
        generator: str,
        inputs: Sequence[Tensor],
        way: str,
        special_input: int | None = None,
        mutated: tuple[int, ...] = (),
    ) -> None:
        self.sized = sized
        self.call: Call = sized.call
        self.ranks = ranks
        self.generator = generator
        self.inputs = inputs
        self.way = way
        self.special_input = special_input
        self.mutated = mutated
        self.allows_empty = True
        self._pieces: dict[tuple[int, Placement], list[Tensor]] = {}
        self._partials: dict[int, Pieces] = {}
        self._cases: dict[int, Case] = {}
        copies = [t.clone() for t in inputs]
        results = [*self.call.run(copies), *(copies[i] for i in mutated)]
        finite = special_input is None
        self.outputs = [Expected(r, finite) if isinstance(r, Tensor) else r for r in results]
        self.dtypes = [r.dtype if isinstance(r, Tensor) else None for r in results]
        shapes = [r.shape if isinstance(r, Expected) else None for r in self.outputs]
        self.local_sizes = LocalSizes(sized, shapes)

    def __repr__(self) -> str:
        shapes = " ".join(str(s) for s in self.sized.shapes)
        return f"{self.generator} values, shapes {shapes}, {self.ranks} ranks, partials split {self.way!r}"

    def fits(self, inputs: Sequence[Placement]) -> bool:
        """Infinities and NaN test the input they sit in: beside other inputs that are partial, inf - inf on one
        rank is an accident of where the infinity came from, not a fault of the row."""
        if not self.allows_empty and self.input_case(inputs) == "empty":
            return False
        special = self.special_input
        if special is None or is_partial(inputs[special]):
            return True
        return not any(is_partial(p) for p in inputs)

    def size_case(self, size: int) -> Case:
        case = self._cases.get(size)
        if case is None:
            sizes = shard_sizes(size, self.ranks)
            case = "even" if min(sizes) == max(sizes) else "uneven" if min(sizes) else "empty"
            self._cases[size] = case
        return case

    def input_case(self, inputs: Sequence[Placement]) -> Case:
        case: Case = "whole"
        for shape, placement in zip(self.sized.shapes, inputs, strict=True):
            if is_shard(placement):
                case = worst(case, self.size_case(shape[placement.dim]))
        return case

    def row_case(self, input_case: Case, output: int, placement: Placement) -> Case:
        """The case of a row: an output may be cut worse than the inputs (a view that splits a dim)."""
        if is_shard(placement):
            return worst(input_case, self.size_case(self.outputs[output].shape[placement.dim]))
        return input_case

    def pieces(self, index: int, placement: Placement) -> list[Tensor]:
        key = (index, placement)
        if key not in self._pieces:
            tensor = self.inputs[index]
            if is_partial(placement):
                if index not in self._partials:
                    seed = 10 * index + self.ranks
                    finite = self.special_input != index
                    self._partials[index] = Pieces(tensor, self.ranks, self.way, seed, finite)
                cut = self._partials[index].of(placement.reduce_op)
            else:
                cut = [piece.contiguous() for piece in split(tensor, placement, self.ranks)]
            self._pieces[key] = cut
        return self._pieces[key]

    def run(self, inputs: Sequence[Placement], calls: Sequence[Call] | None = None) -> Local:
        """Run every rank on its pieces; `calls` are the ranks' own calls where arguments are local too."""
        cut = [self.pieces(i, placement) for i, placement in enumerate(inputs)]
        outputs: list[list[Any]] = []
        runner = self.call.runner
        for rank in range(self.ranks):
            local = [pieces[rank] for pieces in cut]
            for i in self.mutated:
                local[i] = local[i].clone()
            try:
                results = flat_outputs(runner(local) if calls is None else calls[rank].runner(local))
            except Exception as error:
                raise LocalRunFailed(f"rank {rank} raised: {_first_line(error)}") from error
            outputs.append([*results, *(local[i] for i in self.mutated)] if self.mutated else results)
        return self._arrays(outputs)

    def _arrays(self, outputs: list[list[Any]]) -> Local:
        local: Local = []
        for i, expected in enumerate(self.outputs):
            values = [ranks[i] if i < len(ranks) else None for ranks in outputs]
            if isinstance(expected, Expected):
                dtype = self.dtypes[i]
                for value in values:
                    if not isinstance(value, Tensor) or value.dtype is not dtype:
                        raise LocalRunFailed(f"output {i} is not a tensor of {dtype} on every rank")
                local.append([array(value) for value in values])
            else:
                if any(isinstance(v, Tensor) or v != expected for v in values):
                    raise LocalRunFailed(f"output {i}, which is not a tensor, differs between ranks")
                local.append([])
        return local


def worst(first: Case, second: Case) -> Case:
    return max(first, second, key=CASES.index)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
