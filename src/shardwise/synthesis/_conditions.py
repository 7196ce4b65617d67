"""Conditions of clauses: simple statements about a call that separate the rows that hold from those that do not."""

import itertools
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from ..rules import Scope

# An argument with more values than this gets no condition on its values.
_FEW_VALUES = 12
_FEW_WORDS = 6


@dataclass(frozen=True)
class Condition:
    """Atoms that must all hold, the instances they keep, and how simple they are."""

    atoms: tuple[str, ...]
    keeps: tuple[bool, ...]
    cost: float


def atoms(
    scopes: Sequence[Scope], single: Sequence[str], several: Sequence[str], lists: Sequence[str]
) -> list[str]:
    """Statements worth making about this operator's calls, the most natural first."""
    found: list[str] = []
    for name in several:
        found += [f"d not in {name}", f"d in {name}"]
    for name in single:
        found += [
            f"d != {name}",
            f"d < {name}",
            f"d > {name}",
            f"d >= {name}",
            f"d <= {name}",
            f"d == {name}",
        ]
    for first, second in itertools.combinations(single, 2):
        found.append(f"d not in ({first}, {second})")
    given, numbers = _values(scopes, {*single, *several})
    found += given
    inputs = max((len(s.inputs) for s in scopes), default=0)
    if any(s.broadcast for s in scopes):
        found += ["d < outdim(0)-1", "d < outdim(0)-2"]
    for i in range(min(inputs, 3)):
        found += [f"d < ndim({i})-1", f"d < ndim({i})-2", f"d == ndim({i})-1", f"d >= ndim({i})-2"]
        found += [f"ndim({i}) == {n}" for n in _ranks(scopes, i)] + [
            f"ndim({i}) > {n}" for n in _ranks(scopes, i)
        ]
    found += numbers
    for name in lists:
        found += [f"d < ndim(0)-len({name})", f"d >= ndim(0)-len({name})"]
    for i, j in itertools.combinations(range(min(inputs, 3)), 2):
        found += [f"size({i}, d) == size({j}, d)", f"ndim({i}) == ndim({j})"]
        found += [f"size({i}, -1) == size({j}, -1)"]
    for i in range(min(inputs, 3)):
        found += [f"size({i}, d) == 1", f"size({i}, -1) == 1"]
    found += [f"d >= {n}" for n in (1, 2)]
    for name in lists:
        # Windows: the last dims have one number each, after two for batch and channel.
        found += [f"{name}[d-2] == {value}" for value in (0, 1)]
    for name in single:
        found += [f"size(0, {name}) == 1", f"size(0, {name}) != 1"]
    found.append("d < ndim(0)-3")
    return list(dict.fromkeys(found))


def _ranks(scopes: Sequence[Scope], index: int) -> list[int]:
    ranks = sorted({len(s.inputs[index]) for s in scopes if index < len(s.inputs)})
    return ranks if 1 < len(ranks) <= 5 else []


def _values(scopes: Sequence[Scope], dims: Set[str]) -> tuple[list[str], list[str]]:
    """Conditions on absent arguments and flags, then on arguments with few values: structure before numbers."""
    structure, numbers = list[str](), list[str]()
    names = dict.fromkeys(name for s in scopes for name in s.arguments if name not in dims)
    for name in names:
        values = {repr(s.arguments[name]): s.arguments[name] for s in scopes if name in s.arguments}
        if len(values) < 2:
            continue
        kinds = {type(v) for v in values.values()}
        if kinds == {bool}:
            structure += [name, f"not {name}"]
            continue
        if type(None) in kinds:
            structure += [f"{name} is None", f"{name} is not None"]
        signs = {(v > 0) - (v < 0) for v in values.values() if type(v) in (int, float)}
        if len(signs) > 1:
            numbers += [f"{name} > 0", f"{name} >= 0", f"{name} < 0", f"{name} == 0"]
        if len(values) <= _FEW_VALUES and kinds <= {int, float, str, bool, type(None)}:
            numbers += [f"{name} == {text}" for text in values] + [f"{name} != {text}" for text in values]
        if kinds == {str} and 3 < len(values) <= _FEW_WORDS:
            numbers += [
                f"{name} in ({first}, {second})" for first, second in itertools.combinations(values, 2)
            ]
    return structure, numbers


def narrow(
    vocabulary: Sequence[str],
    instances: Sequence[tuple[Scope, int | None]],
    right: Sequence[bool],
    counts: Sequence[bool],
    seed: Sequence[bool],
) -> Condition | None:
    """The condition that keeps no wrong instance and most of the right ones that count, the seed among them."""
    everything = (1 << len(instances)) - 1
    bad = everything & ~_bits(right)
    good, start = _bits(right) & _bits(counts), _bits(seed)
    if not good & start:
        return None
    if not bad:
        return Condition((), tuple(right), 0.0)
    truth = []
    for place, atom in enumerate(vocabulary):
        holds = _bits([bool(scope.evaluate(atom, d)) for scope, d in instances])
        if holds & start and holds != everything:
            truth.append((atom, holds, place))
    chosen = _smallest(truth, good, bad, start)
    if chosen is None:
        return None
    kept = everything
    for _, holds, _ in chosen:
        kept &= holds
    cost = sum(place for _, _, place in chosen) / 10
    return Condition(
        tuple(a for a, _, _ in chosen), tuple(bool(kept >> i & 1) for i in range(len(instances))), cost
    )


def _smallest(truth: list[tuple[str, int, int]], good: int, bad: int, seed: int) -> tuple[Any, ...] | None:
    """One atom, or two or three, that hold for nothing bad: those that keep most of the good."""
    useful = [t for t in truth if t[1] & bad != bad]
    best: tuple[tuple[int, int, int], tuple[Any, ...]] | None = None
    for count in (1, 2, 3):
        pool = useful if count < 3 else sorted(useful, key=lambda t: -(t[1] & good).bit_count())[:16]
        for choice in itertools.combinations(pool, count):
            kept = choice[0][1]
            for _, holds, _ in choice[1:]:
                kept &= holds
            if kept & bad or not kept & seed:
                continue
            score = (-(kept & good).bit_count(), count, sum(place for _, _, place in choice))
            if best is None or score < best[0]:
                best = (score, choice)
        if best is not None and -best[0][0] == good.bit_count():
            break
    return None if best is None else best[1]


def _bits(values: Sequence[bool]) -> int:
    bits = 0
    for i, value in enumerate(values):
        bits |= bool(value) << i
    return bits
