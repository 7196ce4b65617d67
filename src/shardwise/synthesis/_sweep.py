"""Many calls of one operator, designed so that everything that conditions can refer to varies independently.

Calls come from OpInfo samples, or from the user. From a few diverse ones of each overload a design is made
(`_columns`, `_covering`): every pair of levels of any two columns occurs in some call. Calls that do not run, or whose
result contradicts the operator's own fake kernel, are outside of its domain: they are left out and counted. No-ops
(a roll by 0) are kept apart.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..calls import Call, dispatched, facts, find_opinfos, flat_outputs, samples
from ..experiments import changes_nothing
from ._columns import MOST_EXAMPLES, Change, Column, Domain, applied, columns, has_shapes, slides, unusual
from ._covering import Covering, Levels, covering_rows

# More dims than this show nothing that fewer do not.
MOST_DIMS = 5
# Designed calls with more elements than this in an output take long and show nothing new.
MOST_ELEMENTS = 20_000
# Known calls of an overload that are taken as they are, and calls of a design.
MOST_SAMPLES, MOST_PAIRS = 40, 150


class Design:
    """The calls that can be made from known calls of one overload, by changing what conditions can refer to. With
    `as_alike`, only calls whose operands have one shape, where those of all known calls have."""

    def __init__(
        self,
        known: Sequence[Call],
        values: Mapping[str, Sequence[Any]] | None = None,
        as_alike: bool = False,
    ) -> None:
        self.examples = spread(known)[:MOST_EXAMPLES]
        self.domain = Domain.of(known)
        self.columns: list[Column] = columns(self.examples, self.domain, values or {})
        self.sizes = [len(self.examples), *map(len, self.columns)]
        self.unusual_changes = unusual(self.examples)
        self.as_alike = as_alike and self.domain.one_shape

    def call(self, levels: Levels) -> Call | None:
        """The call with one level of every column; None where the levels do not go together."""
        chosen = [column.changes[level] for column, level in zip(self.columns, levels[1:], strict=True)]
        return self._changed(self.examples[levels[0]], chosen)

    def _changed(self, call: Call, changes: Sequence[Change]) -> Call | None:
        changed = applied(call, changes)
        return None if changed is None or (self.as_alike and has_shapes(changed)) else changed

    def covering(
        self, strength: int, accepts: Callable[[Call], bool], most: int, covering: Covering | None = None
    ) -> Iterator[Call]:
        """Calls in which every combination of `strength` levels occurs that an accepted call can have."""
        made: dict[Levels, Call] = {}

        def accepted(levels: Levels) -> bool:
            call = self.call(levels)
            if call is None or not accepts(call):
                return False
            made[levels] = call
            return True

        for levels in covering_rows(self.sizes, strength, accepted, most, covering=covering):
            yield made[levels]

    def unusual(self) -> Iterator[Call]:
        """Examples with one change that makes them unusual, alone and with other changes in one or two columns."""
        choose = random.Random(0)
        for change in self.unusual_changes:
            for example in self.examples:
                for others in ([], self._some_changes(choose, 2)):
                    if (changed := self._changed(example, [*others, change])) is not None:
                        yield changed

    def _some_changes(self, choose: random.Random, places: int) -> list[Change]:
        """Changes in one to so many columns, in their order: dims are named after their number is known."""
        some = choose.sample(self.columns, min(len(self.columns), choose.randint(1, places)))
        return [choose.choice(column.changes) for column in self.columns if column in some]

    def at_random(self, seed: int, places: int = 4) -> Iterator[Call]:
        """Examples changed in one to `places` columns, every other one also in an unusual way, without end."""
        choose = random.Random(seed)
        while True:
            call: Call | None = choose.choice(self.examples)
            assert call is not None
            changes = self._some_changes(choose, places)
            if self.unusual_changes and choose.random() < 0.5:
                changes.append(choose.choice(self.unusual_changes))
            if (changed := self._changed(call, changes)) is not None:
                yield changed


@dataclass
class Sweep:
    """Calls by the overload they reach, in a fixed random order, the design of each overload, and how many calls were
    left out. A rule need not yield all rows of `exempt` calls, but must not yield wrong ones: no-ops, and
    calls that are unusual for the examples."""

    calls: dict[str, list[Call]] = field(default_factory=dict)
    designs: dict[str, Design] = field(default_factory=dict)
    exempt: dict[str, list[Call]] = field(default_factory=dict)
    skipped: int = 0
    values: dict[str, list[Any]] = field(default_factory=dict)
    coverage: dict[str, Covering] = field(default_factory=dict)


def sweep(
    op: Callable[..., Any],
    examples: Sequence[Call] = (),
    values: Mapping[str, Sequence[Any]] | None = None,
    most: int = MOST_PAIRS,
    as_alike: bool = False,
) -> Sweep:
    """The calls of an operator by overload. `examples` are calls of it, by default those of OpInfo. `values` are those
    to try for named arguments, beside the examples' own; a design has up to `most` calls; `as_alike` is that of
    `Design`."""
    found = Sweep()
    seen: set[Any] = set()
    for call in examples or _samples(op):
        _add(found, call, seen)
    for name in found.exempt.keys() - found.calls.keys():
        found.calls[name] = found.exempt.pop(name)  # changes to no-ops may lead to calls that do something
    for name, known in found.calls.items():
        found.calls[name] = known = spread(known)[:MOST_SAMPLES]
        design = found.designs[name] = Design(known, values, as_alike)
        covering = found.coverage[name] = Covering()
        for call in design.covering(2, lambda c: in_domain(c, MOST_ELEMENTS), most, covering):
            _add(found, call, seen, MOST_ELEMENTS)
        found.exempt.setdefault(name, []).extend(c for c in found.calls[name] if design.domain.is_unusual(c))
        found.calls[name] = [c for c in found.calls[name] if not design.domain.is_unusual(c)]
        # A list of one tensor says little about lists: a cat of one is that one.
        long = [call for call in found.calls[name] if all(len(group) > 1 for group in call.lists)]
        found.calls[name] = long or found.calls[name]
        random.Random(0).shuffle(found.calls[name])
    return found


def _samples(op: Callable[..., Any]) -> Iterator[Call]:
    for info in find_opinfos(op):
        yield from samples(info)


def in_domain(call: Call, elements: float = math.inf) -> bool:
    """True if a call runs, gives something to compare, and gives what the operator's fake kernel promises."""
    return _outputs(call, elements) is not None


def _outputs(call: Call, elements: float = math.inf) -> list[Tensor] | None:
    if not all(0 < t.numel() <= elements for t in call.tensors):
        return None
    try:
        results = call.run()
    except Exception:
        return None  # an operator takes only some of the changes
    outputs = [o for o in results if isinstance(o, Tensor)]
    if not outputs or not all(0 < o.numel() <= elements for o in outputs):
        return None
    return outputs if _is_as_promised(call, outputs) else None


def _is_as_promised(call: Call, outputs: Sequence[Tensor]) -> bool:
    """False where the operator's own kernel for fake tensors gives other shapes: the call is outside of its domain,
    whatever the kernel makes of it."""
    try:
        promised = flat_outputs(call.on_meta()())
    except Exception:
        return True  # it has no such kernel, or that looks at values
    shapes = [o.shape for o in promised if isinstance(o, Tensor)]
    return len(shapes) != len(outputs) or shapes == [o.shape for o in outputs]


def _add(found: Sweep, call: Call, seen: set[Any], elements: float = math.inf) -> bool:
    """Keep a call that runs, is new and does something, with no more than so many elements in an output."""
    try:
        judged = dispatched(call).judged
    except Exception:
        found.skipped += 1
        return False
    if judged.signature in seen:
        return False
    seen.add(judged.signature)
    outputs = _outputs(judged, elements)
    if outputs is None or _is_pointless(judged, outputs):
        found.skipped += 1
        return False
    if len(list(judged.leaves())) > len(judged.tensors) and changes_nothing(judged.tensors, outputs):
        found.skipped += 1
        found.exempt.setdefault(judged.name, []).append(judged)
        return False
    found.calls.setdefault(judged.name, []).append(judged)
    tried = facts(judged.op)
    for name, value in judged.leaves():
        if not isinstance(value, Tensor) and (
            name in tried.dims or name in tried.values or isinstance(value, bool | str)
        ):
            known = found.values.setdefault(name, [])
            if value not in known:
                known.append(value)
    return True


def _is_pointless(call: Call, outputs: Sequence[Tensor]) -> bool:
    """True for a call that shows little about how the operator can be sharded."""
    single = bool(call.tensors) and all(t.numel() == 1 for t in call.tensors)
    large = any(t.ndim > MOST_DIMS or _is_scalar_mask(t) for t in call.tensors)
    # A window that fits a dim once does not move along it: the dim is summed over, by coincidence of its size.
    still = slides(call) and any(1 in output.shape[2:] for output in outputs)
    return single or large or still


def _is_scalar_mask(tensor: Tensor) -> bool:
    """A mask of one element, or an index without dims: it means all or nothing, which says little about masks."""
    if tensor.dtype == torch.bool:
        return tensor.numel() == 1
    return tensor.ndim == 0 and not tensor.is_floating_point() and not tensor.is_complex()


def spread(calls: Sequence[Call]) -> list[Call]:
    """Calls of different ranks and with different words, flags and counts in turn, so that few of them show much."""
    kinds: dict[Any, list[Call]] = {}
    for call in calls:
        ranks = tuple(t.ndim for t in call.tensors)
        words = tuple(
            str(leaf)
            for name, leaf in call.leaves()
            if isinstance(leaf, bool | str) or name in facts(call.op).counts
        )
        kinds.setdefault((ranks, words), []).append(call)
    queues = [kinds[k] for k in sorted(kinds, key=lambda k: (-sum(k[0]), k[1]))]
    found = []
    while any(queues):
        found += [queue.pop(0) for queue in queues if queue]
    return found
