"""The rule language: `... m k, ... k n -> ... m n`, an operator's factors without sizes.

Names separated by spaces are factors; `...` are batch dims, aligned from the right as in broadcasting; `1`
is a dim without a factor; `(a b)` a dim of two factors, a the major one; `?` a new anonymous factor;
`()` a tensor without dims. A text is parsed once into a `Template` and then applied to the shapes of calls.
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ..errors import UsageError
from ._factors import FactorRule, Shape, TensorFactors, shapes_text
from ._text import Groups, build_rule, parse_groups, parse_sizes

_TOKEN = re.compile(r"\s*(\.\.\.|\(|\)|\?|1(?!\w)|[A-Za-z]\w*)")
_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"

BATCH, FRESH = "...", "?"


@dataclass(frozen=True)
class Template:
    """A parsed rule; each dim is a tuple of factor names, `("...",)`, `("?",)` or, without a factor, `()`.

    >>> rule = Template.parse("... m k, ... k n -> ... m n").on([(8, 32, 64), (8, 64, 128)])
    >>> str(rule)
    '([i, m, k], [i, k, n])->([i, m, n]) {i=8, m=32, n=128, k=64} reduction={k}'
    """

    inputs: tuple[TensorFactors, ...]
    outputs: tuple[TensorFactors, ...]
    sizes: tuple[tuple[str, int], ...] = ()
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Template":
        return _parse(text)

    def __str__(self) -> str:
        left, right = (", ".join(tensor_text(t) for t in side) for side in (self.inputs, self.outputs))
        text = f"{left} -> {right}".strip()
        if self.sizes:
            text += " {" + ", ".join(f"{name}={size}" for name, size in self.sizes) + "}"
        for key, entries in self.groups:
            text += f" {key}={{{', '.join(entries)}}}"
        return text

    def on(self, inputs: Sequence[Shape], outputs: Sequence[Shape] | None = None) -> FactorRule:
        """The rule for a call with these shapes. Shapes of outputs are needed only where inputs do not determine
        them."""
        try:
            return _instantiate(
                self, [tuple(s) for s in inputs], None if outputs is None else [tuple(s) for s in outputs]
            )
        except UsageError as error:
            shapes = shapes_text(inputs) + ("" if outputs is None else f" -> {shapes_text(outputs)}")
            raise UsageError(f"rule {str(self)!r} on {shapes}: {error}") from None


def rule_for(
    rule: "FactorRule | Template | str", inputs: Sequence[Shape], outputs: Sequence[Shape] | None = None
) -> FactorRule:
    """The factor rule of a call, from a rule in any form: text of either kind, a template, or a factor rule.

    >>> str(rule_for("i -> i", [(8,)])) == str(rule_for("([i])->([i]) {i=8}", [(8,)]))
    True
    """
    if isinstance(rule, str):
        rule = FactorRule.parse(rule) if "[" in rule else Template.parse(rule)
    if isinstance(rule, Template):
        return rule.on(inputs, outputs)
    if outputs is None:
        if not all(dim for tensor in rule.outputs for dim in tensor or ()):
            raise UsageError(
                f"rule '{rule}' has a dim without a factor, so the shapes of its outputs are needed"
            )
        outputs = [[rule.size_of(dim) for dim in tensor] for tensor in rule.outputs if tensor is not None]
    remaining = iter(outputs)
    missing = sum(tensor is None for tensor in rule.outputs)
    if len(outputs) + missing == len(rule.outputs):
        return rule.verify(inputs, [None if t is None else next(remaining) for t in rule.outputs])
    return rule.verify(inputs, outputs)


@cache
def _parse(text: str) -> Template:
    try:
        left, arrow, rest = text.partition("->")
        if not arrow:
            raise UsageError("there is no '->' between the inputs and the outputs")
        right, tail = _split_tail(rest)
        sizes: dict[str, int] = {}
        if tail.startswith("{"):
            body, closed, tail = tail[1:].partition("}")
            if not closed:
                raise UsageError("the sizes have a '{' without its '}'")
            sizes = parse_sizes(body)
        groups = parse_groups(tail)
        if "rows" in groups:
            raise UsageError("only a rule with sizes can have rows")
        inputs = (
            tuple(_tensor(part, f"input {i}") for i, part in enumerate(left.split(",")))
            if left.strip()
            else ()
        )
        outputs = tuple(_tensor(part, f"output {i}") for i, part in enumerate(right.split(",")))
        template = Template(
            inputs,
            outputs,
            tuple(sizes.items()),
            tuple((key, tuple(entries)) for key, entries in groups.items()),
        )
        _require_known(template)
    except UsageError as error:
        raise UsageError(f"rule {text!r}: {error}") from None
    return template


def _split_tail(text: str) -> tuple[str, str]:
    """The outputs, and the braces that follow them."""
    match = re.search(r"\{|\b\w+\s*=\s*\{", text)
    return (text, "") if match is None else (text[: match.start()], text[match.start() :])


def _tensor(text: str, place: str) -> TensorFactors:
    dims: list[tuple[str, ...]] = []
    group: list[str] | None = None
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise UsageError(
                f"{text[position:].split()[0]!r} in {place} is not a factor: use names, '...', "
                "'1', '?' or '(a b)'"
            )
        token, position = match[1], match.end()
        if token == "(":
            if group is not None:
                raise UsageError(f"there is a '(' inside a '(' in {place}: a dim consists of plain factors")
            group = []
        elif token == ")":
            if group is None:
                raise UsageError(f"there is a ')' without its '(' in {place}")
            if group:
                dims.append(tuple(group))
            elif text.strip() != "()":
                raise UsageError(
                    f"there is an empty '()' among the dims of {place}: write 1 for a dim without a factor"
                )
            group = None
        elif group is None:
            dims.append(() if token == "1" else (token,))
        elif token in (BATCH, FRESH, "1"):
            raise UsageError(f"{token!r} is inside '( )' in {place}: a dim consists of named factors")
        else:
            group.append(token)
    if group is not None:
        raise UsageError(f"there is a '(' without its ')' in {place}")
    _require_once(dims, place)
    return tuple(dims)


def _require_once(dims: list[tuple[str, ...]], place: str) -> None:
    names = [name for dim in dims for name in dim if name != FRESH]
    for name in names:
        if names.count(name) > 1 and name == BATCH:
            raise UsageError(f"'...' is twice in {place}: it represents all batch dims together")
        if names.count(name) > 1:
            raise UsageError(f"factor {name} is twice in {place}: a tensor may carry a factor once")


def _require_known(template: Template) -> None:
    named = _names(template)
    for name, _ in template.sizes:
        if name not in named:
            raise UsageError(f"there is a size for the unknown factor {name}")
    for key, entries in template.groups:
        for entry in entries:
            if _name_of(entry) not in named:
                raise UsageError(f"{key} has the unknown factor {_name_of(entry)!r}")


def tensor_text(tensor: TensorFactors) -> str:
    if not tensor:
        return "()"
    return " ".join(f"({' '.join(dim)})" if len(dim) > 1 else (dim[0] if dim else "1") for dim in tensor)


def _instantiate(
    template: Template, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]] | None
) -> FactorRule:
    for side, dims, given in (("input", template.inputs, inputs), ("output", template.outputs, outputs)):
        if given is not None and len(dims) != len(given):
            raise UsageError(f"the rule has {len(dims)} {side}s but there are {len(given)} shapes")
    unknown: list[tuple[int, ...] | None] = [None] * len(template.outputs)
    shapes = [*inputs, *(unknown if outputs is None else outputs)]
    places = [f"input {i}" for i in range(len(inputs))] + [
        f"output {i}" for i in range(len(template.outputs))
    ]
    tensors = list(zip((*template.inputs, *template.outputs), shapes, places, strict=True))
    fresh = _fresh_names(template)
    batch = _Batch(fresh)
    for tensor, shape, place in tensors:
        if shape is not None:
            batch.see(place, tensor, shape)
    sizes = _Sizes(dict(template.sizes), _moving(template))
    expanded = [_expand(tensor, shape, place, batch, fresh, sizes) for tensor, shape, place in tensors]
    sizes.solve()
    left, right = expanded[: len(inputs)], expanded[len(inputs) :]
    # Precedence: factors of the outputs first, in order, then the contracted ones.
    order = dict.fromkeys(name for tensor in (*right, *left) for dim in tensor for name in dim)
    known = {name: sizes.of(name) for name in order}
    groups: Groups = {key: list(entries) for key, entries in template.groups}
    groups["reduction"] = _reductions(left, right, groups, {*_names(template), *batch.names})
    return build_rule(left, right, known, {k: v for k, v in groups.items() if v})


def _reductions(
    inputs: Sequence[TensorFactors], outputs: Sequence[TensorFactors], groups: Groups, contractible: set[str]
) -> list[str]:
    """The reductions in the text, and sum for the other factors that some output does not carry. That of a `?` which
    an output does not carry is unknown.
    """
    entries = {_name_of(entry): entry for entry in groups.get("reduction", ())}
    other = {
        _name_of(entry)
        for key in ("need_replication", "permutation", "unaffected")
        for entry in groups.get(key, ())
    }
    for name in dict.fromkeys(name for tensor in inputs for dim in tensor for name in dim):
        lacking = not all(any(name in dim for dim in tensor) for tensor in outputs)
        if lacking and name in contractible and name not in other:
            entries.setdefault(name, name)
    return list(entries.values())


def _name_of(entry: str) -> str:
    """The factor of an entry `k` or `k:max`."""
    return entry.partition(":")[0].strip()


def _names(template: Template) -> set[str]:
    """Everything in a rule that is a factor."""
    return {name for tensor in (*template.inputs, *template.outputs) for dim in tensor for name in dim}


def _moving(template: Template) -> set[str]:
    """Factors along which the op may change sizes."""
    return {
        _name_of(entry)
        for key, entries in template.groups
        if key in ("need_replication", "permutation")
        for entry in entries
    }


class _Batch:
    """The batch dims of all tensors, aligned from the right."""

    def __init__(self, fresh: Iterator[str]) -> None:
        self._fresh = fresh
        self._sizes: list[int] = []  # from the right
        self._first: list[str] = []
        self._names: dict[int, str] = {}

    def see(self, place: str, tensor: TensorFactors, shape: tuple[int, ...]) -> None:
        named = len(tensor) - ((BATCH,) in tensor)
        if len(shape) < named or (len(shape) != named and (BATCH,) not in tensor):
            atleast = "at least " if (BATCH,) in tensor else ""
            raise UsageError(f"{place} has {len(shape)} dims but the rule needs {atleast}{named}")
        if (BATCH,) not in tensor:
            return
        start = tensor.index((BATCH,))
        for position, size in enumerate(reversed(shape[start : start + len(shape) - named])):
            if position == len(self._sizes):
                self._sizes.append(size)
                self._first.append(place)
            elif self._sizes[position] == 1:
                self._sizes[position], self._first[position] = size, place
            elif size != self._sizes[position] and (size != 1 or place.startswith("output")):
                raise UsageError(
                    f"batch dims do not broadcast: dim {-position - 1} of '...' is "
                    f"{self._sizes[position]} in "
                    f"{self._first[position]} and {size} in {place}"
                )

    def dims(self, shape: tuple[int, ...] | None) -> list[tuple[tuple[str, ...], int]]:
        """Factors and sizes of a tensor's batch dims, of this shape or, if None, of all batch dims."""
        sizes = tuple(reversed(self._sizes)) if shape is None else shape
        dims: list[tuple[tuple[str, ...], int]] = []
        for position, size in zip(range(len(sizes) - 1, -1, -1), sizes, strict=True):
            if size == 1:
                dims.append(((), 1))
            else:
                dims.append(((self._name(position),), size))
        return dims

    @property
    def names(self) -> list[str]:
        return list(self._names.values())

    def _name(self, position: int) -> str:
        if not self._names:
            for place in range(len(self._sizes) - 1, -1, -1):
                if self._sizes[place] != 1:
                    self._names[place] = next(self._fresh)
        return self._names[position]


class _Sizes:
    """Sizes of factors, solved from the sizes of dims."""

    def __init__(self, known: dict[str, int], moving: set[str]) -> None:
        self._known = dict(known)
        self._given = dict.fromkeys(known, "the sizes")
        self._moving = moving
        self._open: list[tuple[tuple[str, ...], int, str, int]] = []

    def dim(self, names: tuple[str, ...], size: int, place: str, dim: int) -> None:
        if len(names) != 1:
            self._open.append((names, size, place, dim))
            return
        name = names[0]
        known = self._known.setdefault(name, size)
        given = self._given.setdefault(name, place)
        if known != size and name not in self._moving:
            raise UsageError(f"factor {name} is {known} in {given} and {size} in {place}")

    def solve(self) -> None:
        """Solves dims of several factors, each as soon as at most one of its factors is unknown."""
        pending = self._open
        while pending:
            ready = [entry for entry in pending if sum(name not in self._known for name in entry[0]) < 2]
            if not ready:
                names, size, place, dim = pending[0]
                unknown = next(name for name in names if name not in self._known)
                raise UsageError(
                    f"the size of factor {unknown} is not determined by dim {dim} of {place}, {size} = "
                    f"{' * '.join(names)}: give it as {{{unknown}=...}} or give the shapes of the outputs"
                )
            for names, size, place, dim in ready:
                self._divide(names, size, place, dim)
            pending = [entry for entry in pending if entry not in ready]

    def _divide(self, names: tuple[str, ...], size: int, place: str, dim: int) -> None:
        product = math.prod(self._known.get(name, 1) for name in names)
        unknown = [name for name in names if name not in self._known]
        sizes = " * ".join(str(self._known.get(name, name)) for name in names)
        if unknown and size % product == 0:
            self._known[unknown[0]] = size // product
            self._given[unknown[0]] = place
        elif (unknown or product != size) and not self._moving.intersection(names):
            raise UsageError(f"dim {dim} of {place} is {size}, which is not ({' '.join(names)}) = {sizes}")
        elif unknown:
            self._known[unknown[0]] = max(1, size // product)

    def of(self, name: str) -> int:
        if name not in self._known:
            raise UsageError(
                f"the size of factor {name} is unknown: give it as {{{name}=...}} or give the "
                "shapes of the outputs"
            )
        return self._known[name]


def _expand(
    tensor: TensorFactors,
    shape: tuple[int, ...] | None,
    place: str,
    batch: _Batch,
    fresh: Iterator[str],
    sizes: _Sizes,
) -> TensorFactors:
    """The tensor's dims with `...` and `?` replaced by factors; the sizes that its shape determines are recorded."""
    dims: list[tuple[str, ...]] = []
    named = len(tensor) - ((BATCH,) in tensor)
    for names in tensor:
        if names == (BATCH,):
            start = len(dims)
            part = None if shape is None else shape[start : start + len(shape) - named]
            for factors, size in batch.dims(part):
                dims.append(factors)
                if factors:
                    sizes.dim(factors, size, place, len(dims) - 1)
            continue
        factors = (next(fresh),) if names == (FRESH,) else names
        dims.append(factors)
        if shape is not None and factors:
            sizes.dim(factors, shape[len(dims) - 1], place, len(dims) - 1)
    return tuple(dims)


def _fresh_names(template: Template) -> Iterator[str]:
    used = _names(template)
    letters = itertools.chain(_LETTERS, (f"z_{n}" for n in itertools.count(1)))
    return (letter for letter in letters if letter not in used)
