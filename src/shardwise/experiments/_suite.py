"""The experiments for one call: every generator on every number of ranks, at sizes that cut evenly and not.

Setting up runs the whole call to find what it accepts: float64 where possible, indices in range where
integers are indices, sizes that may change. It also names the calls that experiments cannot judge.
"""

import functools
import zlib
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call, Resizer, facts, with_saved
from ..errors import UsageError, first_line
from ..placements import Row, is_float8, is_partial
from ._experiment import Experiment
from ._judge import Expected
from ._partials import WAYS
from ._results import Counterexample
from ._values import HIGH, LOW, Generator, drawn, generators, normal

RANKS = (2, 3, 4)

# Where an operator has few generators, each is used several times, with partials split in other ways.
LEAST_TURNS = 9

# Where the values of an integer input must lie: as drawn, or from 0 up to the size of a dim of an input, or up to a
# number; or they are the example's own, where the call takes no others.
IndexRange = tuple[int, int] | int | Literal["given"] | None


class Unjudgeable(Exception):
    """A call that experiments cannot decide, with the verdict that says why."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.reason = reason


class ExperimentSuite:
    """Everything needed to run experiments on a call; `experiments` is the list that a row must survive, or, with
    `turns`, no more than so many turns of it, which differ from call to call. Sizes are even in each of `blocks`: of
    several, for strided shards."""

    def __init__(
        self,
        call: Call,
        names: tuple[str, ...],
        ranks: Sequence[int] = RANKS,
        empty: bool = True,
        turns: int | None = None,
        blocks: int = 1,
    ) -> None:
        self.names = names
        self.blocks = blocks
        self.empty = empty
        self.turns = turns
        self.example = call
        refuse_strange(call)
        self.call = in_double(call)
        self.known = facts(self.call.op)
        self.mutated = self.call.mutated
        self.ranges = self._index_ranges()
        self._refuse_random()
        outputs = self.call.run()
        self.output_shapes = [tuple(o.shape) if isinstance(o, Tensor) else () for o in outputs]
        self.changes_nothing = changes_nothing(self.call.tensors, outputs)
        self.resizer = Resizer(self.call, self._runs)
        self._refused: dict[str, tuple[Generator, Exception]] = {}
        self.experiments = list(self._build(ranks))
        if not self.experiments:
            why = "".join(f"; {name} raised {error}" for name, error in self.idle.items())
            raise Unjudgeable("cannot run", f"{call.name} ran with no generated input{why}")
        if self.known.exact:
            for output in (o for e in self.experiments for o in e.outputs if isinstance(o, Expected)):
                output.tighten(0.0)
        self.ignores_values = self._outputs_that_ignore_values()
        for experiment in self.experiments:
            for output, ignores in zip(experiment.outputs, self.ignores_values, strict=True):
                if ignores and isinstance(output, Expected):
                    output.degenerate = False  # constant by nature: its shape is the evidence
                    output.has_values = not self.known.uninitialised
        self._digits = [_eps(value) for value in call.tensors], [_eps(value) for value in call.run()]

    @functools.cached_property
    def idle(self) -> dict[str, str]:
        """The generators that make values of none of the shapes in use, each with the error that it raised first."""
        sizes = [*(e.call for e in self.experiments), self.call]
        return {
            name: f"{type(error).__name__}: {first_line(error)}"
            for name, (generator, error) in self._refused.items()
            if not any(self._makes(generator, sized) for sized in sizes)
        }

    def _makes(self, generator: Generator, sized: Call) -> bool:
        try:
            self.inputs(sized, generator)
        except (IndexError, RuntimeError, ValueError):
            return False
        return True

    def narrows(self, output: int, inputs: Sequence[Placement]) -> bool:
        """True if an output holds fewer digits than an input that is added up: its pieces are rounded before."""
        given, made = self._digits
        left = made[output] if output < len(made) else None  # what is written in place keeps its dtype
        added = [eps for eps, placement in zip(given, inputs, strict=True) if _accumulates(placement)]
        return any(left > eps for eps in added if eps) if left else False

    def rounding(self, row: Row, output: int) -> Counterexample | None:
        """An experiment in which rounding the pieces before reducing them changes the last digit."""
        placement = row.outputs[output]
        assert placement is not None
        for experiment in self.experiments:
            expected = experiment.outputs[output]
            expected.tighten(torch.finfo(expected.dtype).eps)
            if not expected.agrees(experiment.run(row.inputs, row.local, row.outputs)[output], placement):
                return Counterexample(row, output, experiment, "rounded before it is reduced")
        return None

    def inputs(self, sized: Call, generator: Generator, special: int | None = None) -> list[Tensor]:
        make = generator.make
        inputs = []
        for i, (example, shape) in enumerate(zip(self.call.tensors, sized.shapes, strict=True)):
            maker = normal if special is not None and special != i else make
            if self.ranges[i] == "given" and example.shape == torch.Size(shape):
                inputs.append(example.clone())
                continue
            dtype = torch.float32 if is_float8(example.dtype) else example.dtype
            value = drawn(maker, tuple(shape), dtype, example.device, i).to(example.dtype)
            inputs.append(self._in_range(value, i, sized))
        return list(with_saved(sized.with_tensors(inputs)).tensors)

    def index_bound(self, index: int, sized: Call) -> int | None:
        """What the values of an integer input must stay below, where they are indices."""
        allowed = self.ranges[index]
        if isinstance(allowed, tuple):
            return sized.shapes[allowed[0]][allowed[1]]
        return allowed if isinstance(allowed, int) else None

    def _in_range(self, value: Tensor, index: int, sized: Call) -> Tensor:
        high = self.index_bound(index, sized)
        if high is None or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            return value
        value = value % high
        if value.numel():
            value.view(-1)[value.numel() // 2] = high - 1  # the border is always included
        return value

    def _runs(self, sized: Call) -> bool:
        """True if the call runs at these sizes and gives something to compare: a slice up to 5 of a dim that has
        become 4 would show nothing about slicing."""
        try:
            inputs = self.inputs(sized, self._accepted)
            outputs = sized.run([t.clone() for t in inputs])
        except Exception:
            return False
        if len(outputs) != len(self.output_shapes) or not all(
            not isinstance(o, Tensor) or o.numel() for o in outputs
        ):
            return False
        return self.changes_nothing or not changes_nothing(inputs, outputs)

    @functools.cached_property
    def _accepted(self) -> Generator:
        """A generator whose values the call takes: some take none that are negative, some none beyond one."""
        fitting = generators(self.names)
        usual = [] if any(g.only for g in fitting) else [Generator("normal", normal, "")]
        for generator in [*usual, *fitting]:
            try:
                self.call.run([t.clone() for t in self.inputs(self.call, generator)])
            except Exception:
                continue
            return generator
        return fitting[0]

    def _index_ranges(self) -> list[IndexRange]:
        """For each integer input, the range in which the call accepts its values, found by trying."""
        ranges: list[IndexRange] = [None] * len(self.call.tensors)
        examples = list(self.call.tensors)
        sizes = sorted(
            {(size, (i, d)) for i, t in enumerate(examples) for d, size in enumerate(t.shape) if size > 1},
            reverse=True,
        )
        for i, tensor in enumerate(examples):
            if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
                continue
            if self.call.tensor_names[i] in self.known.saved:  # kernels trust what they are given
                ranges[i] = "given"
                continue
            options: list[tuple[int, int, IndexRange]] = [(LOW, HIGH, None)]
            options += [(0, size, place) for size, place in sizes]
            highest = int(tensor.max()) + 1 if tensor.numel() else 1
            options += [(0, max(highest, 1), max(highest, 1))]
            for low, high, allowed in options:
                if low < 0 and not tensor.dtype.is_signed:
                    continue
                values = torch.arange(tensor.numel()).reshape(tensor.shape) * 7919 % (high - low) + low
                for border in (low, high - 1):
                    if values.numel():
                        values.view(-1)[-1 if border == low else 0] = border
                changed = [t.clone() for t in examples]
                changed[i] = values.to(tensor.dtype)
                try:
                    self.call.run(changed)
                except Exception:
                    continue
                ranges[i] = allowed
                break
            else:
                ranges[i] = "given"
        return ranges

    def _refuse_random(self) -> None:
        tags = getattr(self.call.op, "tags", ())
        if torch.Tag.dynamic_output_shape in tags and not self._indexes_by_position:
            raise Unjudgeable(
                "data-dependent shape", f"{self.call.name} has an output whose shape depends on values"
            )
        if self.known.uninitialised:
            return
        generator = torch.default_generator
        state = generator.get_state()
        try:
            runs = []
            for seed in (1, 2):
                generator.manual_seed(seed)
                runs.append(self.call.run())
        finally:
            generator.set_state(state)
        for first, second in zip(*runs, strict=True):
            if not isinstance(first, Tensor):
                continue
            if first.shape != second.shape or not _same(
                Expected(first, True).array, Expected(second, True).array
            ):
                raise Unjudgeable("random", f"{self.call.name} is nondeterministic")

    @property
    def _indexes_by_position(self) -> bool:
        """Advanced indexing has an output of known shape unless an index is a mask."""
        masks = (torch.bool, torch.uint8)
        return self.known.indexing and not any(t.dtype in masks for t in self.call.tensors[1:])

    def _build(self, ranks: Sequence[int]) -> Iterator[Experiment]:
        fitting = generators(self.names)
        given = Generator("given", normal, "The example's own values.")
        sizings = {n: self._sizings(n) for n in ranks}
        shapes: dict[tuple[tuple[int, ...], ...], tuple[object, ...]] = {}
        most = max(len(options) for by_case in sizings.values() for options in by_case)
        turns = max(len(fitting), 3 * most, LEAST_TURNS)
        numbers: Sequence[int] = range(turns + 1)
        if self.turns is not None:
            first = zlib.crc32(str(self.output_shapes).encode()) % len(numbers)
            numbers = [(first + i) % len(numbers) for i in range(self.turns)]
        for turn in numbers:
            generator = fitting[turn % len(fitting)] if turn < turns else given
            for position, n in enumerate(ranks):
                # In every turn one number of ranks has even shards, one uneven and one empty ones.
                by_case = sizings[n]
                options = by_case[(position - turn) % len(by_case)]
                sized = options[turn // 3 % len(options)]
                for experiment in self._one(generator, sized, n, WAYS[(turn + position) % len(WAYS)]):
                    got = tuple(o.shape if isinstance(o, Expected) else None for o in experiment.outputs)
                    if shapes.setdefault(experiment.call.shapes, got) != got:
                        raise Unjudgeable(
                            "data-dependent shape",
                            f"{self.call.name} has an output whose shape depends on values",
                        )
                    yield experiment

    def _sizings(self, ranks: int) -> list[list[Call]]:
        """For even, uneven and empty shards, the call at sizes that give such; as it is where none are."""
        cases = ("even", "uneven", "empty") if ranks > 2 and self.empty else ("even", "uneven", "uneven")
        found = [list(self.resizer.sizings(ranks, case, self.blocks)) for case in cases]
        found[0] += self.resizer.sizings(ranks, "odd")
        if (
            not self.call.size_arguments
        ):  # where arguments are sizes, dims of equal size could not be distinguished
            found[0] += self.resizer.sizings(ranks, "single")
        return [options for options in found if options] or [[self.call]]

    def _one(self, generator: Generator, sized: Call, ranks: int, way: str) -> Iterator[Experiment]:
        """The experiment with these values; several for values that go into one input at a time; none where
        the call does not take them."""
        options: list[tuple[list[Tensor], int | None, Call]]
        if generator.name == "given":
            options = [([t.detach() for t in self.call.tensors], None, self.call)]
        elif generator.name == "special":
            floats = [i for i, t in enumerate(self.call.tensors) if t.is_floating_point()]
            options = [(self.inputs(sized, generator, i), i, sized) for i in floats]
            options = [c for c in options if _is_consistent(sized, c[0])]
        else:
            try:
                options = [(self.inputs(sized, generator), None, sized)]
            except (IndexError, RuntimeError, ValueError) as error:
                # A generator that makes no values of this shape, such as one for vectors of three elements.
                self._refused.setdefault(generator.name, (generator, error))
                return
        for inputs, special, at in options:
            try:
                experiment = Experiment(at, ranks, generator.name, inputs, way, special, self.mutated)
            except Exception:
                continue  # the operator does not accept such values
            experiment.allows_empty = self.empty
            yield experiment

    def _outputs_that_ignore_values(self) -> list[bool]:
        """Outputs that were the same for all values, and not for want of elements: they are decided by shape alone."""
        by_shape: dict[tuple[tuple[int, ...], ...], list[Experiment]] = {}
        for experiment in self.experiments:
            by_shape.setdefault(experiment.call.shapes, []).append(experiment)
        count = len(self.experiments[0].outputs)
        if self.known.uninitialised:
            return [True] * count
        ignores = []
        for i in range(count):
            groups = [[e.outputs[i] for e in group] for group in by_shape.values() if len(group) > 2]
            same = [
                all(_same(o.array, group[0].array) for o in group[1:])
                for group in groups
                if isinstance(group[0], Expected) and group[0].array.size
            ]
            ignores.append(bool(same) and all(same))
        return ignores


def changes_nothing(inputs: Sequence[Tensor], outputs: Sequence[object]) -> bool:
    """True if the only output is the first input again."""
    if len(outputs) != 1 or not inputs or not isinstance(outputs[0], Tensor):
        return False
    first, output = inputs[0], outputs[0]
    return first.shape == output.shape and first.dtype == output.dtype and torch.equal(first, output)


def _is_consistent(call: Call, inputs: Sequence[Tensor]) -> bool:
    """False where a kernel treats infinities and NaN one way in full vectors and another in what is left over:
    then they depend on the position of an element, not on the sharding. A strided copy uses the other way."""
    apart = [t.repeat_interleave(2, -1)[..., ::2] if t.ndim else t.clone() for t in inputs]
    try:
        runs = [call.run([t.clone() for t in inputs]), call.run(apart)]
    except Exception:
        return True
    return all(
        not isinstance(first, Tensor) or _same(Expected(first, False).array, Expected(second, False).array)
        for first, second in zip(*runs, strict=True)
    )


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")


def refuse_strange(call: Call) -> None:
    """Refuse calls without dense tensors to compare, and calls that do not run at all."""
    if any(t.layout != torch.strided for t in call.tensors):
        raise Unjudgeable("sparse", f"{call.name} has a sparse argument")
    try:
        outputs = call.run()
    except NotImplementedError as error:
        raise Unjudgeable("cannot run", f"{call.name} is not implemented here: {_one_line(error)}") from error
    except Exception as error:
        shapes = ", ".join(f"{tuple(t.shape)} {str(t.dtype)[6:]}" for t in call.tensors)
        raise UsageError(f"{call.name} raises on the whole input ({shapes}): {_one_line(error)}") from error
    tensors = [o for o in outputs if isinstance(o, Tensor)]
    if any(t.layout != torch.strided for t in tensors):
        raise Unjudgeable("sparse", f"{call.name} returns a sparse tensor")
    if not tensors:
        raise Unjudgeable("no tensor outputs", f"{call.name} returns no tensor")


def in_double(call: Call) -> Call:
    """The call on float64 examples where it runs there: rounding then decides nothing."""
    wide = dict.fromkeys((torch.complex32, torch.complex64, torch.complex128), torch.complex128)
    doubled = call.with_tensors(
        [
            t.detach().to(wide.get(t.dtype, torch.float64)) if t.is_floating_point() or t.is_complex() else t
            for t in call.tensors
        ]
    )
    try:
        doubled.run()
    except Exception:
        return call.with_tensors([t.detach() for t in call.tensors])
    return doubled


def _one_line(error: Exception) -> str:
    """An error of torch in one line; a refused argument list ends in a colon, and the next line has what is right."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return " ".join(line.strip(" *") for line in lines[: 2 if lines[0].endswith(":") else 1])


def _accumulates(placement: Placement) -> bool:
    """True for a partial whose pieces are added or multiplied, not compared."""
    return is_partial(placement) and placement.reduce_op in ("sum", "avg", "product")


def _eps(value: object) -> float | None:
    """Of a tensor of real or complex numbers: the distance from 1 to the next number."""
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return torch.finfo(value.dtype).eps
    return None
