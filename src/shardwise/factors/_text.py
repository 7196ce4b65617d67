"""The text of a factor rule with its sizes: `([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}`.

A dim of several factors is written `[ij]`, or `[(rows cols)]` where names are longer than a letter; a dim
without a factor is `1`, an output that is not returned is `-`. Groups in braces follow; empty ones are not
printed.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch.distributed.tensor import Replicate
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError
from ..placements import (
    PARTIALS,
    SHARDS,
    Row,
    Shards,
    is_partial,
    is_replicate,
    parse_placement,
    partial,
    placement_text,
)
from ._factors import Factor, FactorRule, Kind, TensorFactors, default_leaves, default_shards, is_reduced

GROUPS = (
    "reduction",
    "need_replication",
    "permutation",
    "blocked_propagation",
    "unaffected",
    "companion",
    "shards",
    "local",
    "rows",
)
_KINDS: tuple[Kind, ...] = ("reduction", "need_replication", "permutation")

_LETTER = re.compile(r"[A-Za-z](?:_\d+)?")
_NAME = re.compile(r"[A-Za-z]\w*")
_GROUP = re.compile(r"\s*(\w+)\s*=\s*\{([^{}]*)\}")

Groups = dict[str, list[str]]


def parse_factor_rule(text: str) -> FactorRule:
    try:
        return _parse(text)
    except UsageError as error:
        raise UsageError(f"rule {text!r}: {error}") from None


def _parse(text: str) -> FactorRule:
    left, arrow, rest = text.partition("->")
    if not arrow:
        raise UsageError("there is no '->' between the inputs and the outputs")
    right, rest = _balanced(rest.strip(), "()", "the outputs")
    left, after = _balanced(left.strip(), "()", "the inputs")
    if after.strip():
        raise UsageError(f"there is {after.strip()!r} between the inputs and '->'")
    custom = bool(re.search(r",\s*custom\s*$", rest))
    if custom:
        rest = rest[: rest.rindex(",")]
    sizes: dict[str, int] = {}
    if rest.strip().startswith("{"):
        body, rest = _balanced(rest.strip(), "{}", "the sizes")
        sizes = parse_sizes(body)
    groups = parse_groups(rest)
    inputs = _tensors(left, "the inputs")
    if "-" in inputs:
        raise UsageError("an input is '-': only outputs that are not returned are written so")
    return build_rule(
        [_tensor(part, sizes) for part in inputs],
        [None if part == "-" else _tensor(part, sizes) for part in _tensors(right, "the outputs")],
        sizes,
        groups,
        custom,
    )


def build_rule(
    inputs: Sequence[TensorFactors],
    outputs: Sequence[TensorFactors | None],
    sizes: dict[str, int],
    groups: Groups,
    custom: bool = False,
) -> FactorRule:
    """A rule from its parts; anything that is in no group has its default."""
    # A rule without the groups first: it refuses factors that are unknown, unused or twice in a tensor.
    rule = FactorRule(
        tuple(inputs), tuple(outputs), tuple(Factor(name, size) for name, size in sizes.items())
    )
    values = {key: _by_factor(key, groups, rule) for key in GROUPS if key != "rows"}
    kinds: dict[str, Kind] = {}
    for kind in _KINDS:
        for name in values[kind]:
            if name in kinds:
                raise UsageError(f"factor {name} is in both {kinds[name]} and {kind}: a factor has one kind")
            kinds[name] = kind
    for key in ("reduction", "unaffected"):
        for name in values[key]:
            if not default_leaves(rule.outputs, name, "sum"):
                raise UsageError(f"factor {name} is in {key} but every output carries it")
    factors = tuple(_refine(factor, rule, kinds, values) for factor in rule.factors)
    entries = _entries(groups["rows"]) if "rows" in groups else None
    return replace(rule, factors=factors, entries=entries, custom=custom)


def _refine(
    factor: Factor, rule: FactorRule, kinds: dict[str, Kind], values: dict[str, dict[str, str]]
) -> Factor:
    name = factor.name
    leaves: tuple[Placement, ...] | None = None
    if name in values["reduction"]:
        leaves = _reductions(values["reduction"][name] or "sum", name, rule)
    elif name in values["unaffected"]:
        leaves = tuple(Replicate() for _ in default_leaves(rule.outputs, name, "sum"))
    companions = None
    if name in values["companion"]:
        companions = tuple(parse_placement(part) for part in values["companion"][name].split("/"))
    shards = values["shards"].get(name) or default_shards((*rule.inputs, *rule.outputs), name)
    if shards not in SHARDS:
        raise UsageError(f"factor {name} has the unknown shards {shards!r}: use one of {', '.join(SHARDS)}")
    return replace(
        factor,
        kind=kinds.get(name, "pass_through"),
        blocked=name in values["blocked_propagation"],
        leaves=leaves,
        companions=companions,
        shards=shards,
        local=values["local"].get(name),
    )


def _reductions(text: str, name: str, rule: FactorRule) -> tuple[Placement, ...]:
    words = [word.strip() for word in text.split("/")]
    for word in words:
        if word not in (*PARTIALS, "R"):
            raise UsageError(
                f"factor {name} has the unknown reduction {word!r}: use one of {', '.join(PARTIALS)}"
            )
    if len(words) == 1 and words[0] != "R":
        return default_leaves(rule.outputs, name, words[0])
    return tuple(Replicate() if word == "R" else partial(word) for word in words)


def _by_factor(key: str, groups: Groups, rule: FactorRule) -> dict[str, str]:
    """The entries `k` or `k:value` of a group."""
    values: dict[str, str] = {}
    for entry in groups.get(key, ()):
        name, _, value = (part.strip() for part in entry.partition(":"))
        if name not in rule.by_name:
            known = ", ".join(rule.by_name) or "none"
            raise UsageError(f"{key} has the unknown factor {name!r}: the factors are {known}")
        if name in values:
            raise UsageError(f"{key} has factor {name} twice")
        if key in ("companion", "shards", "local") and not value:
            raise UsageError(f"{key} of factor {name} has no value: write it as '{name}:...'")
        values[name] = value
    return values


def _entries(parts: list[str]) -> tuple[str | Row, ...]:
    entries: list[str | Row] = []
    for part in parts:
        if "->" not in part:
            entries.append(part)
            continue
        match = re.fullmatch(r"(.*?)\s*(?:\[(\w+)?\s*(?:local=([^\]]*))?\])?", part)
        assert match is not None  # every part of the pattern is optional
        entries.append(Row.parse(match[1], _shards(match[2] or "any"), match[3]))
    return tuple(entries)


def _shards(text: str) -> Shards:
    if text not in SHARDS:
        raise UsageError(f"a row has the unknown shards {text!r}: use one of {', '.join(SHARDS)}")
    return text


def parse_sizes(body: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in _parts(body, ","):
        match = re.fullmatch(r"([A-Za-z]\w*)\s*=\s*(\d+)", part)
        if match is None:
            raise UsageError(f"size {part!r} is not of the form 'i=8'")
        if match[1] in sizes:
            raise UsageError(f"factor {match[1]} has two sizes: give it one")
        sizes[match[1]] = int(match[2])
    return sizes


def parse_groups(text: str) -> Groups:
    groups: Groups = {}
    position = 0
    while text[position:].strip():
        match = _GROUP.match(text, position)
        if match is None:
            raise UsageError(f"{text[position:].strip()!r} is not a group of the form 'reduction={{k}}'")
        key = match[1]
        if key not in GROUPS:
            raise UsageError(f"unknown group {key!r}: use one of {', '.join(GROUPS)}")
        if key in groups:
            raise UsageError(f"group {key} is given twice")
        groups[key] = _parts(match[2], ";" if key == "rows" else ",")
        position = match.end()
    return groups


def _tensors(text: str, where: str) -> list[str]:
    """The bracketed tensors of one side, without their brackets, and `-`."""
    parts: list[str] = []
    rest = text.strip()
    while rest:
        if rest.startswith("-"):
            parts.append("-")
            rest = rest[1:].strip()
        else:
            body, rest = _balanced(rest, "[]", where)
            parts.append(body)
        rest = rest.strip()
        if rest and not rest.startswith(","):
            raise UsageError(f"expected ',' before {rest!r} in {where}")
        if rest and not rest[1:].strip():
            raise UsageError(f"{where} end in ','")
        rest = rest[1:].strip()
    return parts


def _tensor(body: str, sizes: dict[str, int]) -> TensorFactors:
    if not body.strip():
        return ()
    return tuple(_dim(part.strip(), body, sizes) for part in body.split(","))


def _dim(part: str, body: str, sizes: dict[str, int]) -> tuple[str, ...]:
    if not part:
        raise UsageError(f"a dim of '[{body}]' is empty: name its factor, or write 1 if it has none")
    if part == "1":
        return ()
    if part.startswith("("):
        names = tuple(part[1:-1].split())
        if not part.endswith(")") or not names:
            raise UsageError(f"dim {part!r} is not of the form '(a b)'")
    elif part in sizes:
        names = (part,)
    else:
        names = tuple(_LETTER.findall(part))
        if "".join(names) != part:
            names = (part,)
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a factor: names are letters and digits and begin with a letter"
            )
    return names


def _balanced(text: str, brackets: str, where: str) -> tuple[str, str]:
    """The text inside the brackets at the start of `text`, and the text after them."""
    opening, closing = brackets[0], brackets[1]
    if not text.startswith(opening):
        raise UsageError(f"{where} do not begin with '{opening}'")
    depth = 0
    for position, char in enumerate(text):
        depth += (char == opening) - (char == closing)
        if depth == 0:
            return text[1:position], text[position + 1 :]
    raise UsageError(f"{where} have a '{opening}' without its '{closing}'")


def _parts(text: str, separator: str) -> list[str]:
    parts = [part.strip() for part in text.split(separator)] if text.strip() else []
    if "" in parts:
        raise UsageError(f"there is an empty entry in '{{{text}}}'")
    return parts


def factor_rule_text(rule: FactorRule) -> str:
    plain = all(_LETTER.fullmatch(name) for name in rule.by_name)
    sides = (", ".join(_tensor_text(t, plain) for t in side) for side in (rule.inputs, rule.outputs))
    text = "({})->({})".format(*sides)
    if rule.factors:
        text += " {" + ", ".join(f"{factor.name}={factor.size}" for factor in rule.factors) + "}"
    for key in GROUPS:
        entries = _group_entries(rule, key)
        if entries is not None:
            text += f" {key}={{{entries}}}"
    return text + (", custom" if rule.custom else "")


def _tensor_text(tensor: TensorFactors | None, plain: bool) -> str:
    if tensor is None:
        return "-"
    dims = []
    for names in tensor:
        if len(names) < 2 or plain:
            dims.append("".join(names) or "1")
        else:
            dims.append(f"({' '.join(names)})")
    return f"[{', '.join(dims)}]"


def _group_entries(rule: FactorRule, key: str) -> str | None:
    """The entries of a group as text; None if all are defaults."""
    if key == "rows":
        return None if rule.entries is None else "; ".join(_entry_text(entry) for entry in rule.entries)
    tell: Callable[[Factor], str | None] = {
        "reduction": lambda f: _reduction_text(f, rule) if f.kind == "reduction" else None,
        "need_replication": lambda f: f.name if f.kind == "need_replication" else None,
        "permutation": lambda f: f.name if f.kind == "permutation" else None,
        "blocked_propagation": lambda f: f.name if f.blocked else None,
        "unaffected": lambda f: f.name if f.leaves and not is_reduced(f) else None,
        "companion": lambda f: f.companions and f"{f.name}:{'/'.join(map(placement_text, f.companions))}",
        "shards": lambda f: f"{f.name}:{f.shards}" if f.shards != _default(f, rule) else None,
        "local": lambda f: f.local and f"{f.name}:{f.local}",
    }[key]
    return ", ".join(entry for entry in map(tell, rule.factors) if entry) or None


def _default(factor: Factor, rule: FactorRule) -> str:
    return default_shards((*rule.inputs, *rule.outputs), factor.name)


def _reduction_text(factor: Factor, rule: FactorRule) -> str:
    leaves = factor.leaves or ()
    if leaves == default_leaves(rule.outputs, factor.name, "sum"):
        return factor.name
    words = ["R" if is_replicate(leaf) else leaf.reduce_op for leaf in leaves]
    alike = len(set(words)) == 1 and is_partial(leaves[0])
    return f"{factor.name}:{words[0] if alike else '/'.join(words)}"


def _entry_text(entry: str | Row) -> str:
    if isinstance(entry, str):
        return entry
    notes = [entry.shards] * (entry.shards != "any") + [f"local={entry.local}"] * (entry.local is not None)
    return str(entry) + (f" [{' '.join(notes)}]" if notes else "")
