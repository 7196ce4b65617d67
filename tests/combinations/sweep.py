"""The sweep: calls of every overload at sizes that can be cut, their choices on small meshes, what experiments say."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random

import torch
from torch import Tensor

from shardwise.calls import Call, resized
from shardwise.expansion import Choice, Combinations
from shardwise.experiments import WAYS, MeshExperiment
from shardwise.mesh import Mesh
from shardwise.placements import Row, parse_placement
from shardwise.rules import book_rows
from tests.independent.calls import Call as Sample
from tests.independent.samples import attention_calls, opinfos, recorded
from tests.independent.workers import Died, Failed, Mark, run

MESHES = tuple(map(Mesh.parse, ("a=2,b=2", "a=3,b=2", "a=2,b=2,c=2")))
# Elements of a call's tensors, and of those choices of a call on a mesh that need no local form, how many are tried.
LARGEST, SAMPLE = 60_000, 12
# Of those that are not allowed.
EXCLUDED = 4
# The library's own operator, which no OpInfo reaches, in parts.
ATTENTION = [f"attention {part}" for part in range(16)]


@dataclass
class Result:
    """`lost` are choices that hold although `Combinations` does not allow them."""

    calls: int = 0
    choices: int = 0
    with_forms: int = 0
    undecided: Counter[str] = field(default_factory=Counter)
    overloads: set[str] = field(default_factory=set)
    refuted: list[tuple[str, str, str]] = field(default_factory=list)
    excluded: int = 0
    lost: list[tuple[str, str]] = field(default_factory=list)
    crashed: list[Died] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)

    def add(self, other: "Result") -> None:
        self.calls += other.calls
        self.choices += other.choices
        self.with_forms += other.with_forms
        self.undecided += other.undecided
        self.overloads |= other.overloads
        self.refuted += other.refuted
        self.excluded += other.excluded
        self.lost += other.lost


def sweep(
    seed: int,
    jobs: int = 1,
    each: int = 3,
    only: Sequence[str] | None = None,
    progress: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Try the choices of the calls that OpInfos of these names make, of all by default; `each` is how many of an
    overload one of them gives."""
    names = every_name() if only is None else list(only)

    def work(name: str, mark: Mark) -> Result:
        result, random = Result(), Random(f"{seed} {name}")
        for call in calls_of(name, seed, each):
            mark(str(call))
            try_call(call, random, result, mark)
        return result

    total = Result()
    for _, result in run(work, names, jobs, batch=20):
        if isinstance(result, Result):
            total.add(result)
        else:
            (total.crashed if isinstance(result, Died) else total.failed).append(result)
        progress(total)
    return total


def every_name() -> list[str]:
    """The OpInfos, and the parts of attention."""
    return [*ATTENTION, *opinfos()]


def calls_of(name: str, seed: int, each: int) -> Iterator[Call]:
    if name in ATTENTION:
        calls = [*grouped_attention(), *attention_calls(seed)]
        samples: Iterable[Sample] = calls[ATTENTION.index(name) :: len(ATTENTION)]
    else:
        samples = recorded(name, seed)
    counts: Counter[str] = Counter()
    for sample in samples:
        if name not in ATTENTION and counts[sample.name] >= each:
            continue
        if sample.is_random or sample.written or sample.outs or any(map(_is_huge, sample.tensors)):
            continue
        counts[sample.name] += 1
        args, kwargs = sample.split_arguments
        yield Call(sample.op, tuple(args), kwargs)


def grouped_attention() -> Iterator[Sample]:
    """Attention with so many heads that they can be cut by all axes, key heads fewer than query heads."""
    from shardwise.graph import attention

    for heads, shared, causal in product((8, 12), (2, 4), (False, True)):
        query, key, value = (
            torch.randn(4, heads, 8, 4),
            torch.randn(4, shared, 8, 4),
            torch.randn(4, shared, 8, 6),
        )
        rest = (None, None, causal, 0.5, 0.0)
        yield Sample.of(torch.ops.shardwise.attention.default, (query, key, value, *rest), {}, "attention")
        output, logsumexp = attention(query, key, value, *rest)
        saved = (torch.randn_like(output), query, key, value, output, logsumexp, *rest)
        yield Sample.of(torch.ops.shardwise.attention_backward.default, saved, {}, "attention")


def try_call(call: Call, random: Random, result: Result, mark: Mark = lambda _: None) -> None:
    """Try choices of a call on all meshes, at its own sizes and at sizes that the mesh divides."""
    for mesh in MESHES:
        for sized in (call, larger(call, mesh.ranks)):
            if sized is None:
                continue
            experiment = MeshExperiment(sized, random.choice(WAYS))
            try:
                outputs = [None if not hasattr(e, "shape") else e.shape for e in experiment.expected]
            except Exception:  # the operator does not take these values
                continue
            made = tuple(outputs[: len(outputs) - len(sized.mutated)])
            known = Call(sized.op, sized.args, sized.kwargs, made)
            rows = book_rows(known)
            if not rows:
                continue
            result.calls += 1
            result.overloads.add(sized.name)
            for choice, allowed in choices(known, rows, mesh, random):
                mark(f"{sized} {mesh} {choice}")
                tried = experiment.check(choice)
                needs_form = choice.local is not None
                text = "; ".join(row.text for row in choice.rows)
                if not allowed:
                    result.excluded += 1
                    if tried.outcome == "holds":
                        result.lost.append((str(sized), f"{mesh}: {text}"))
                    continue
                result.choices += 1
                result.with_forms += needs_form
                if tried.outcome == "refuted":
                    result.refuted.append((str(sized), f"{mesh}: {text}", tried.reason))
                elif tried.outcome == "undecided":
                    result.undecided[tried.reason] += 1


def choices(call: Call, rows: Sequence[Row], mesh: Mesh, random: Random) -> Iterator[tuple[Choice, bool]]:
    """Choices to try, each with whether it is allowed: of those that are, all that need a local form on two axes and a
    sample of the others; of those that are not, a few."""
    replicated = Row(
        (parse_placement("R"),) * len(rows[0].inputs),
        tuple(None if p is None else parse_placement("R") for p in rows[0].outputs),
    )
    every = [replicated, *rows]
    combinations = Combinations.of(call, every, mesh, book_rows)
    layouts = Combinations(every, mesh, call.shapes, call.outputs)
    with_form, plain, excluded = [], [], []
    lines = list(product(range(len(every)), repeat=mesh.ndim))
    if len(lines) > 4000:
        lines = random.sample(lines, 4000)
    for line in lines:
        if sum(map(bool, line)) < 2:
            continue
        if not combinations.holds(line):
            if layouts.holds(line):
                excluded.append(line)
        elif any(every[i].local for i in line):
            with_form.append(line)
        else:
            plain.append(line)
    if mesh.ndim > 2:  # what holds on two axes rarely fails on three
        with_form = random.sample(with_form, min(SAMPLE, len(with_form)))
    plain = random.sample(plain, min(SAMPLE, len(plain)))
    for line in (*with_form, *plain):
        yield Choice(mesh, tuple(every[i] for i in line)), True
    for line in random.sample(excluded, min(EXCLUDED, len(excluded))):
        yield Choice(mesh, tuple(every[i] for i in line)), False


def larger(call: Call, ranks: int) -> Call | None:
    """The call at sizes that all are multiples of the number of ranks, if it takes them."""
    sizes = sorted({size for t in call.tensors for size in t.shape if size > 1})
    if not sizes or any(t.layout != torch.strided for t in call.tensors):
        return None
    for mapping in (
        {size: ranks * (i + 2) for i, size in enumerate(sizes)},
        {size: ranks * 2 ** (i + 1) for i, size in enumerate(sizes)},
        {size: ranks * size for size in sizes},
    ):
        for numbers in ({}, mapping):
            at = resized(call, mapping, numbers)
            if sum(t.numel() for t in at.tensors) > LARGEST:
                continue
            filled = at.with_tensors(
                [_like(t, example) for t, example in zip(at.tensors, call.tensors, strict=True)]
            )
            try:
                filled.run()
            except Exception:  # it does not take these sizes
                continue
            return filled
    return None


def _like(tensor: Tensor, example: Tensor) -> Tensor:
    """Values of the example, in turn; floats drawn anew where it has few."""
    if example.dtype.is_floating_point and example.numel() and not _has_one_sign(example):
        return torch.randn(tensor.shape, dtype=torch.float64).to(example.dtype)
    values = example.flatten() if example.numel() else example.new_ones(1)
    return values[torch.arange(tensor.numel()) % len(values)].reshape(tensor.shape).clone()


def _has_one_sign(example: Tensor) -> bool:
    """True for values of one sign, which the operator may need."""
    return bool((example > 0).all() or (example < 0).all())


def _is_huge(tensor: Tensor) -> bool:
    """True for integers so large that pieces of them overflow."""
    return tensor.dtype == torch.int64 and bool((tensor.abs() > 1 << 50).any() | (tensor < -(1 << 50)).any())
