"""The whole check: record torch's samples, choose calls of every overload, examine them, add up what was found."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from random import Random

import torch

from .calls import Call, variants_of
from .checking import Finding
from .examining import Examined, examine
from .lookup import known
from .samples import attention_calls, opinfos, recorded
from .workers import Died, Failed, Mark, run

# Recorded calls of one overload that are checked as they are.
BASE = 12


@dataclass
class Result:
    """What the rows of all calls came to. `crashed` are local runs; calls that crash unsharded say nothing of rows.
    `failed` are mistakes of the checker itself."""

    seed: int
    calls: int = 0
    checks: int = 0
    by_shape: int = 0
    names: set[str] = field(default_factory=set)
    overloads: Counter[str] = field(default_factory=Counter)
    refuted: dict[tuple[str, str], list[Finding]] = field(default_factory=dict)
    rounding: dict[tuple[str, str], list[Finding]] = field(default_factory=dict)
    crashed: list[tuple[str, Died]] = field(default_factory=list)
    failed: list[tuple[str, Failed]] = field(default_factory=list)
    crashed_whole: list[tuple[str, Died]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    unchecked: dict[str, str] = field(default_factory=dict)

    def add(self, op: str, examined: Examined) -> None:
        outcome = examined.outcome
        if examined.skipped:
            self.skipped[examined.skipped] += 1
            self.unchecked.setdefault(op, examined.skipped)
        self.calls += 1
        self.checks += outcome.checks
        self.by_shape += outcome.by_shape
        if outcome.checks:
            self.names.add(examined.source)
            self.overloads[op] += outcome.checks
        for kept, found in ((self.refuted, outcome.refuted), (self.rounding, outcome.rounding)):
            for finding in found:
                kept.setdefault((op, finding.origin), []).append(finding)


Progress = Callable[[str, Result], None]


def record(names: Sequence[str], seed: int, jobs: int) -> dict[str, list[Call]]:
    """The calls that OpInfos make, by overload; those of in-place and out variants that the book knows are added."""

    def work(name: str, mark: Mark) -> list[Call]:
        # Raises in a child of a process whose autograd has threads: no backward would be recorded.
        torch.ones(1, requires_grad=True).sum().backward()
        return list(recorded(name, seed))

    by_op: dict[str, list[Call]] = {}
    opinfos()  # read once, before workers are forked
    for _, calls in run(work, names, jobs, batch=25):
        if isinstance(calls, Failed):
            raise RuntimeError(f"{calls.running}: {calls.traceback}")
        for call in calls if isinstance(calls, list) else ():
            by_op.setdefault(call.name, []).append(call)
    for call in attention_calls(seed):
        by_op.setdefault(call.name, []).append(call)
    ruled = known()
    for calls in list(by_op.values()):
        for variant in variants_of(calls[0].op):
            if str(variant) in ruled:
                same = [Call.of(variant, (), c.arguments, c.source) for c in calls]
                by_op.setdefault(str(variant), []).extend(same)
    return by_op


def chosen(by_op: Mapping[str, Sequence[Call]], seed: int) -> dict[str, list[Call]]:
    """A few calls of every overload; overloads that few OpInfos reach choose first, and calls of OpInfos that no other
    has chosen before others."""
    taken: set[str] = set()
    result = {}
    for op in sorted(by_op, key=lambda op: (len({c.source for c in by_op[op]}), op)):
        calls = list(by_op[op])
        Random(f"{seed} {op}").shuffle(calls)
        calls.sort(key=lambda call: call.source in taken)
        result[op] = calls[:BASE]
        taken |= {call.source for call in result[op]}
    return result


def check_calls(
    calls: Mapping[str, Sequence[Call]], seed: int, jobs: int, changes: int, progress: Progress
) -> Result:
    """Examine the overloads of these calls, each in a worker of its own."""

    def work(item: tuple[str, int], mark: Mark) -> Examined:
        op, number = item
        return examine(calls[op], number, seed, mark=mark)

    import torch._dynamo  # noqa: F401  (kernels for meta tensors import it: once here, not in every worker)

    items = [(op, number) for op in sorted(calls) for number in range(len(calls[op]) + changes)]
    result = Result(seed)
    for (op, _), found in run(work, items, jobs, batch=600):
        if isinstance(found, Failed):
            result.failed.append((op, found))
        elif isinstance(found, Died):
            sharded = "\n" in found.running
            (result.crashed if sharded else result.crashed_whole).append((op, found))
        else:
            result.add(op, found)
        progress(op, result)
    return result


def check_book(
    seed: int,
    jobs: int = 1,
    changes: int = 60,
    names: Sequence[str] | None = None,
    progress: Progress = lambda op, result: None,
    ops: Sequence[str] | None = None,
) -> Result:
    """Check the book on calls of these OpInfos, all of them if none are named, and of overloads of these patterns."""
    by_op = record(list(opinfos()) if names is None else names, seed, jobs)
    if ops is not None:
        by_op = {op: calls for op, calls in by_op.items() if any(fnmatch(op, pattern) for pattern in ops)}
    calls = chosen(by_op, seed)
    return check_calls(calls, seed, jobs, changes, progress)
