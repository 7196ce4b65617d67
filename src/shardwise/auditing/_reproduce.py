"""Reproducing a wrong result of a row that DTensor claims: a script of a few lines, run before it is shown.

The script distributes small inputs as the row says, lets DTensor run the call on simulated ranks, and prints one
element of its result beside the right one. The values of the experiment that refuted the row decide whether DTensor is
wrong; the script that is shown has simple values where these show it as well, or the experiment's, rounded where that
does. If DTensor's result is right there is no script, whatever experiments say.
"""

import contextlib
import io
import math
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.placement_types import Placement

from ..calls import Call, facts, with_leaves
from ..dtensor import traced_once
from ..errors import first_line
from ..experiments import Counterexample, Expected, ExperimentSuite
from ..placements import Row, is_partial, is_replicate, is_shard, split

# Columns of a script, as of everything that the command prints.
_WIDTH = 80

_HEADER = """\
import torch, torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.tensor import {names}
from torch.testing._internal.distributed.fake_pg import FakeStore
"""

# Digits of values that are written out, if they show what is wrong.
_DIGITS = 1

# Where the part of a script begins that prints.
_PRINTS = 'print("DTensor:"'

# Values to try, as code; `{0}` is the shape and `{1}` the dtype.
_FLOATS = (
    "torch.rand({0}, dtype={1})",
    "torch.randn({0}, dtype={1})",
    "torch.zeros({0}, dtype={1})",
    "torch.randint(-2, 3, {0}).to({1})",
    "torch.rand({0}, dtype={1}) + 0.5",
    "-torch.rand({0}, dtype={1}) - 0.5",
)
_NOISE = {True: "torch.randn_like({0})", False: "torch.randint_like({0}, 1, 5)"}


@dataclass(frozen=True)
class Reproduction:
    """A script that prints what DTensor computes and what is right, with what it printed when it was run."""

    script: str
    output: str


@dataclass(frozen=True)
class Raised:
    """DTensor takes the inputs as they are placed, but the call on the local pieces raises."""

    reason: str


def reproduce(
    suite: ExperimentSuite, row: Row, sizings: Iterable[Call], counterexample: Counterexample | None = None
) -> Reproduction | Raised | None:
    """A script in which DTensor computes a wrong number with inputs placed as in the row; None if the result is
    right. The experiment that refuted the row is tried first: if DTensor's result is right there, that decides. Where
    pieces do not fit together, other sizes are tried first: a wrong number says more than an error, and DTensor may
    take minutes for a call."""
    first: Reproduction | Raised | None = None
    misfit: _Script | None = None
    if counterexample is not None:
        if counterexample.experiment.special_input is not None:
            return None  # refuted only by infinities or NaN: what is right there is debatable
        script = _written_out(row, counterexample)
        if script.fits_together():
            first = script.outcome()
            if first is None:
                return None
        else:
            misfit = script
    raised = first if isinstance(first, Raised) else None
    for sized in sizings:
        for script in _scripts(suite, row, sized):
            if not script.fits_together():
                misfit = misfit or script
                break  # nor do other values of the same sizes
            outcome = script.outcome()
            if isinstance(outcome, Reproduction):
                return outcome
            if outcome is not None:
                raised = raised or outcome
                break  # other values of the same sizes raise as well
    found = first or raised or (None if misfit is None else misfit.outcome())
    if isinstance(found, Reproduction) and counterexample is not None:
        return _simpler(suite, row, counterexample, found)
    return found


def _simpler(
    suite: ExperimentSuite, row: Row, counterexample: Counterexample, found: Reproduction
) -> Reproduction:
    """A script of a few lines in place of all values of an experiment: simple ones on as many ranks, or rounded."""
    experiment = counterexample.experiment
    rounded = _written_out(row, counterexample, _DIGITS)
    for script in (*_scripts(suite, row, experiment.call, experiment.ranks), rounded):
        outcome = script.outcome()
        if isinstance(outcome, Reproduction):
            return outcome
    return found


@traced_once()
def reproduce_again(script: str) -> Reproduction | None:
    """What a script of another torch shows in this one; None if DTensor's result is right now, or if it raises."""
    body = script[: script.index(_PRINTS)]
    space: dict[str, Any] = {}
    try:
        exec(compile(body, "<reproduction>", "exec"), space)
    except Exception:
        return None
    finally:
        _leave_group()
    ending = _difference(space["right"], space["got"])
    if ending is None:
        return None
    script = body + "".join(f"{part}\n" for line in ending for part in folded(line))
    return Reproduction(script, execute("\n".join(ending), space))


@traced_once()
def execute(script: str, space: dict[str, Any] | None = None) -> str:
    """The output of a script, or of the end of one whose names are in `space`. Destroys the process group that it may
    leave behind."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(
                compile(script, "<reproduction>", "exec"),
                {"__name__": "__main__"} if space is None else space,
            )
    finally:
        _leave_group()
    return printed.getvalue()


@dataclass(frozen=True)
class _Script:
    """One choice of inputs: code that makes the whole inputs, and code that makes the pieces of partial ones."""

    call: Call
    row: Row
    ranks: int
    values: tuple[str, ...]
    pieces: tuple[str | None, ...]

    def setting(self) -> list[str]:
        names = _names(len(self.values))
        random = any("rand" in code for code in (*self.values, *(p or "" for p in self.pieces)))
        lines = ["torch.manual_seed(0)"] if random else []
        return lines + [f"{name} = {code}" for name, code in zip(names, self.values, strict=True)]

    def expression(self, suffix: str = "") -> str:
        names = [name + suffix for name in _names(len(self.values))]
        return _expression(self.call, names)

    def tensor_outputs(self) -> list[Any]:
        """The right outputs; none where the operator does not take such values."""
        names = _names(len(self.values))
        space: dict[str, Any] = {"torch": torch}
        try:
            exec("\n".join(self.setting()), space)
            outputs = self.call.run([space[name].clone() for name in names])
        except Exception:
            return []
        return outputs

    def fits_together(self) -> bool:
        """Whether the call runs on the pieces of each rank."""
        names = _names(len(self.values))
        space: dict[str, Any] = {"torch": torch}
        cut: list[Sequence[Tensor]] = []
        try:
            exec("\n".join(self.setting()), space)
            for name, placement, code in zip(names, self.row.inputs, self.pieces, strict=True):
                if code is None:
                    cut.append(split(space[name], placement, self.ranks))
                else:
                    exec(code, space)
                    cut.append([space["pieces"][rank] for rank in range(self.ranks)])
            for rank in range(self.ranks):
                self.call.run([pieces[rank].clone() for pieces in cut])
        except Exception:
            return False  # DTensor is asked what it does then
        return True

    def body(self, pick: str) -> list[str]:
        """All but the printing; `pick` selects the part of the result to compare."""
        names = _names(len(self.values))
        clones = ".clone()" if self.call.schema.is_mutable else ""
        lines = [
            *self.setting(),
            f"right = {self.expression(clones)}{pick}",
            f'dist.init_process_group("fake", rank=0, world_size={self.ranks}, store=FakeStore())',
            f"with LocalTensorMode({self.ranks}):",
            f'    mesh = init_device_mesh("cpu", ({self.ranks},))',
        ]
        for name, placement, pieces in zip(names, self.row.inputs, self.pieces, strict=True):
            if pieces is None:
                # Scattering strided shards asserts that they are even.
                option = ", src_data_rank=None" if hasattr(placement, "split_factor") else ""
                lines.append(f"    d{name} = distribute_tensor({name}, mesh, [{_code(placement)}]{option})")
            else:
                extra = f", shape={name}.shape, stride={name}.stride()" if is_shard(placement) else ""
                lines += [
                    *(f"    {line}" for line in pieces.splitlines()),
                    f"    d{name} = DTensor.from_local(LocalTensor(pieces), mesh, [{_code(placement)}]{extra})",
                ]
        d_names = [f"d{name}" for name in names]
        lines.append(f"    got = {_expression(self.call, d_names)}{pick}.full_tensor()._local_tensors")
        return lines

    def text(self, pick: str, ending: Sequence[str] = ()) -> str:
        body = self.body(pick)
        joined = "\n".join(body)
        placements = [_code(placement) for placement in self.row.inputs]
        used = [n for n in ("DTensor", "Partial", "Replicate") if n in joined]
        used += ["Shard"] if any(code.startswith("Shard") for code in placements) else []
        used += ["distribute_tensor"] if "distribute_tensor" in joined else []
        header = _HEADER.format(names=", ".join([*used, "init_device_mesh"])).splitlines()
        if any(code.startswith("_StridedShard") for code in placements):
            header.insert(3, "from torch.distributed.tensor.placement_types import _StridedShard")
        return "\n".join(part for line in (*header, *body, *ending) for part in folded(line)) + "\n"

    def outcome(self) -> Reproduction | Raised | None:
        """The reproduction if an output comes out wrong, the error where DTensor raises, None if all are right."""
        for output, value in enumerate(self.tensor_outputs()):
            if isinstance(value, Tensor) and (found := self._differs(output)) is not None:
                return found
        return None

    def _differs(self, output: int) -> Reproduction | Raised | None:
        """The same for one output.

        Pieces of wrong shapes cannot be put together, but the next operation on them gives a wrong number."""
        returns = self.call.schema.returns
        pick = f"[{output}]" if len(returns) != 1 or "List" in str(returns[0].type) else ""
        error = ""
        for reading in (pick, f"{pick}.sum()"):
            space: dict[str, Any] = {}
            try:
                exec(compile(self.text(reading), "<reproduction>", "exec"), space)
            except Exception as raised:
                error = error or first_line(raised)
                continue
            finally:
                _leave_group()
            ending = _difference(space["right"], space["got"], not facts(self.call.op).uninitialised)
            if ending is None:
                return Raised(error) if error else None
            return Reproduction(self.text(reading, ending), execute("\n".join(ending), space))
        return Raised(error)


def folded(line: str) -> list[str]:
    """A line of a script, broken inside its brackets where it is longer than 80 columns."""
    indent = " " * (len(line) - len(line.lstrip()))
    if len(line) <= _WIDTH:
        return [line]
    if line.startswith("from ") and "(" not in line:
        source, _, names = line.partition(" import ")
        return folded(f"{source} import ({names})")
    fitting = (
        (start + 1, end)
        for start, end in _brackets(line)
        if end > start + 1 and start < _WIDTH and len(indent + line[end:]) <= _WIDTH
    )
    start, end = next(fitting, (0, 0))
    if not end:
        return [line]
    inside = line[start:end]
    items = _items(inside)
    fits = len(items) == 1 or len(f"{indent}    {inside}") <= _WIDTH
    lines = [inside] if fits else _filled(items, _WIDTH - len(indent) - 4)
    inner = [part for one in lines for part in folded(f"{indent}    {one}")]
    return [line[:start], *inner, indent + line[end:]]


def _filled(items: Sequence[str], width: int) -> list[str]:
    """Items on lines: numbers as many as fit, others one each."""
    lines: list[str] = []
    for item in items:
        joined = f"{lines[-1]} {item}," if lines else ""
        if joined and _is_number(item) and _is_number(lines[-1].split(",")[0]) and len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(f"{item},")
    return lines


def _is_number(item: str) -> bool:
    try:
        complex(item)
    except ValueError:
        return False
    return True


def _brackets(line: str) -> list[tuple[int, int]]:
    """The outermost brackets of a line of code, as positions of opening and closing ones."""
    found, opened, quote = [], [], ""
    for place, character in enumerate(line):
        if quote or character in "\"'":
            quote = "" if character == quote else quote or character
        elif character in "([{":
            opened.append(place)
        elif character in ")]}":
            start = opened.pop()
            found += [(start, place)] if not opened else []
    return found


def _items(inside: str) -> list[str]:
    """The parts of what stands in brackets, split at its own commas."""
    hidden = list(inside)
    for opening, closing in _brackets(inside):
        hidden[opening : closing + 1] = "_" * (closing + 1 - opening)
    commas = [place for place, character in enumerate(hidden) if character == ","]
    parts = [inside[a + 1 : b].strip() for a, b in pairwise([-1, *commas, len(inside)])]
    return [part for part in parts if part]


def _difference(right: Tensor, got: dict[int, Tensor], has_values: bool = True) -> list[str] | None:
    """Code that prints the first element that is wrong on some rank; None if all are right. Uninitialised memory has no
    values that could be wrong."""
    expected = Expected(right, finite_inputs=True)
    for rank, local in got.items():
        if local.shape != right.shape:
            return [
                f"{_PRINTS}, tuple(got[{rank}].shape))",
                'print("right:  ", tuple(right.shape))',
            ]
        if local.dtype != right.dtype:
            return [f"{_PRINTS}, got[{rank}].dtype)", 'print("right:  ", right.dtype)']
        if not has_values or expected.equals(Expected(local, finite_inputs=True).array):
            continue
        place = _farthest(right, local)
        at = f"[{', '.join(map(str, place))}]" if place else ""
        return [f"{_PRINTS}, got[{rank}]{at}.item())", f'print("right:  ", right{at}.item())']
    return None


def _farthest(right: Tensor, got: Tensor) -> tuple[int, ...]:
    kind = torch.complex128 if right.is_complex() else torch.float64
    right = right.to(kind)
    apart = (right - got.to(kind)).abs()
    apart = torch.where(torch.isfinite(apart), apart, torch.where(torch.isfinite(right), math.inf, -1.0))
    return tuple(int(i) for i in np.unravel_index(int(apart.argmax()), tuple(apart.shape)))


def _scripts(suite: ExperimentSuite, row: Row, sized: Call, ranks: int = 2) -> Iterator[_Script]:
    """Simple values at these sizes."""
    for choice in range(len(_FLOATS)):
        values = [
            _value(tensor.dtype, shape, choice, suite.index_bound(i, sized))
            for i, (tensor, shape) in enumerate(zip(sized.tensors, sized.shapes, strict=True))
        ]
        yield _Script(sized, row, ranks, tuple(values), tuple(_pieces(sized, row, ranks)))


def _written_out(row: Row, counterexample: Counterexample, digits: int | None = None) -> _Script:
    """The values and pieces of an experiment, element by element; rounded, but for those that pieces reduce to."""
    experiment = counterexample.experiment
    cut = [
        _literal_pieces(experiment.pieces(i, p)) if is_partial(p) else None for i, p in enumerate(row.inputs)
    ]
    values = [
        _literal(
            tensor
            if digits is None or pieces or not tensor.is_floating_point()
            else tensor.round(decimals=digits)
        )
        for tensor, pieces in zip(experiment.inputs, cut, strict=True)
    ]
    return _Script(experiment.call, row, experiment.ranks, tuple(values), tuple(cut))


def _value(dtype: torch.dtype, shape: tuple[int, ...], choice: int, bound: int | None) -> str:
    if dtype.is_floating_point or dtype.is_complex:
        return _FLOATS[choice].format(shape, dtype)
    if dtype == torch.bool:
        return f"torch.rand({shape}) < 0.5" if choice != 2 else f"torch.zeros({shape}, dtype=torch.bool)"
    if choice == 2:
        return f"torch.zeros({shape}, dtype={dtype})"
    low, high = (0, bound) if bound is not None else (-4 if dtype.is_signed else 0, 9)
    return f"torch.randint({low}, {high}, {shape}, dtype={dtype})"


def _pieces(sized: Call, row: Row, ranks: int) -> Iterator[str | None]:
    """Code for the pieces of partial inputs, in which two ranks differ from what further ones have."""

    def others(code: str) -> str:
        return "".join(f", {rank}: {code}" for rank in range(2, ranks))

    names = _names(len(row.inputs))
    for name, tensor, placement in zip(names, sized.tensors, row.inputs, strict=True):
        if not is_partial(placement):
            yield None
            continue
        noise = _NOISE[tensor.is_floating_point() or tensor.is_complex()].format(name)
        if placement.reduce_op == "sum":
            yield f"noise = {noise}\npieces = {{0: {name} - noise, 1: noise{others('torch.zeros_like(noise)')}}}"
        elif placement.reduce_op == "avg":
            yield f"noise = {noise}\npieces = {{0: {name} - noise, 1: {name} + noise{others(name)}}}"
        else:
            worse = f"{name} {'-' if placement.reduce_op == 'max' else '+'} 2 * {noise}.abs()"
            yield (
                f"worse, mine = {worse}, torch.rand({name}.shape) < 0.5\n"
                f"pieces = {{0: torch.where(mine, {name}, worse), 1: torch.where(mine, worse, {name})"
                f"{others('worse')}}}"
            )


def _literal(tensor: Tensor) -> str:
    text = repr(tensor.tolist()).replace("inf", 'float("inf")').replace("nan", 'float("nan")')
    return f"torch.tensor({text}, dtype={tensor.dtype})"


def _literal_pieces(pieces: Sequence[Tensor]) -> str:
    return "pieces = {" + ", ".join(f"{rank}: {_literal(piece)}" for rank, piece in enumerate(pieces)) + "}"


def _names(count: int) -> list[str]:
    return list(string.ascii_lowercase[:count]) if count <= 3 else [f"x{i}" for i in range(count)]


def _expression(call: Call, names: Sequence[str]) -> str:
    """The call as code, with these names in the places of its tensors."""

    class Code(str):
        __repr__ = str.__str__

    named = call.with_tensors([Code(name) for name in names])
    args, kwargs = with_leaves(
        (list(named.args), dict(named.kwargs)),
        lambda leaf: leaf if isinstance(leaf, Code) else Code(_argument(leaf)),
    )
    parts = [repr(a) for a in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"torch.ops.{call.op}({', '.join(parts)})"


def _argument(leaf: Any) -> str:
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return f'float("{leaf}")'
    if isinstance(leaf, torch.device):
        return f'torch.device("{leaf}")'
    return repr(leaf)


def _code(placement: Placement) -> str:
    if is_replicate(placement):
        return "Replicate()"
    if hasattr(placement, "split_factor"):
        return f"_StridedShard({placement.dim}, split_factor={placement.split_factor})"
    return f"Shard({placement.dim})" if is_shard(placement) else f'Partial("{placement.reduce_op}")'


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
