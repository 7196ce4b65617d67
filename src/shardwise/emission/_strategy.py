"""`emit_strategy`: rules as the source of a module that registers DTensor strategies for them.

The module depends on torch alone and reads as if written by hand: loops over dims with their conditions, the rules
and the evidence in the docstring. Rows that DTensor would run wrongly are left out, with a comment.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ..calls import Call, op_source
from ..errors import UsageError
from ..rules import Clause, Rule, merged
from ._calls import Example, calls_by_overload
from ._clause import WIDTH, Writer
from ._outputs import KnownCalls, why_unserved
from ._signature import Argument, Signature

_HELPERS = {
    "_broadcast_sharding": '''def _broadcast_sharding(
    meta: TensorMeta,
    dim: int,
    ndim: int,
) -> Placement | _ShardingPlaceholder:
    """How an operand is placed when dim ``dim`` of a result with ``ndim`` dims is sharded."""
    aligned = dim - ndim + len(meta.shape)
    if aligned < 0 or meta.shape[aligned] == 1:
        return Replicate()
    return _ShardingPlaceholder(aligned)
''',
    "_is_shardable": '''def _is_shardable(meta: TensorMeta, dim: int) -> bool:
    """Whether the tensor has such a dim, and it is not broadcast."""
    return dim < len(meta.shape) and meta.shape[dim] != 1
''',
    "_size": '''def _size(shape: Sequence[int], dim: int) -> int:
    """The size of a dim, 0 if there is no such dim."""
    return shape[dim] if -len(shape) <= dim < len(shape) else 0
''',
}


def emit_strategy(rules: Rule | Sequence[Rule], calls: Sequence[Example] = ()) -> str:
    """The text of a Python module that registers a single-dim strategy for each rule's overload.

    `calls` are example calls; they show how many dims the outputs have where a clause depends on that. Without
    them the operator is run on small meta tensors.
    """
    rules = [rules] if isinstance(rules, Rule) else list(rules)
    if not rules:
        raise UsageError("there is no rule to emit a strategy for: give at least one")
    known = calls_by_overload(calls)
    served = served_rules(rules, known)
    strategies = [_Strategy(rule, known.get(rule.op, ())) for rule in served]
    names = function_names(served)
    bodies = ["\n".join(s.lines(names[s.rule.op])) for s in strategies]
    helpers = {h for s in strategies for h in s.writer.helpers}
    parts = [
        f'"""{_title(served)}{_unserved(rules, known)}"""\n',
        _imports(bodies, helpers),
        "\n\naten = torch.ops.aten\n" if any(op_source(r.op) == r.op for r in served) else "",
        *(f"\n\n{text}" for name, text in _HELPERS.items() if name in helpers),
        *(f"\n\n{body}\n" for body in bodies),
    ]
    return "".join(parts)


def served_rules(rules: Sequence[Rule], known: Mapping[str, Sequence[Call]]) -> list[Rule]:
    """The rules of overloads for which DTensor would use a strategy."""
    reasons = {rule.op: why_unserved(rule, known.get(rule.op, ())) for rule in rules}
    served = [rule for rule in rules if reasons[rule.op] is None]
    if not served:
        said = "; ".join(f"{op}, since {why}" for op, why in reasons.items())
        raise UsageError(f"no strategy can be emitted for {said}")
    return served


def stated_clauses(rule: Rule, known: KnownCalls) -> tuple[list[Clause], list[tuple[Clause, str]]]:
    """The clauses that a single-dim strategy can state, each with what it leaves to its outputs made explicit, and
    those it cannot, with the reason."""
    kept: list[Clause] = []
    left_out: list[tuple[Clause, str]] = []
    for clause in rule.single_clauses:
        explicit = known.explicit(clause) if _is_sayable(clause) else None
        if explicit is not None and _is_writable(explicit, known):
            kept.append(explicit)
        elif explicit is not None:
            left_out.append((clause, "the number of dims of its outputs does not follow from its arguments"))
        elif clause.local is not None:
            left_out.append((clause, "each rank would need its own size arguments"))
        elif clause.shards == "even":
            left_out.append((clause, "it holds for even shards only, which a strategy cannot require"))
        else:
            left_out.append((clause, "no condition on its arguments determines which dims its outputs keep"))
    return list(merged(kept)), left_out


def _is_sayable(clause: Clause) -> bool:
    """True if all ranks call the operator with the same arguments, with shards of sizes that DTensor makes."""
    return clause.local is None and clause.shards != "even"


def _is_writable(clause: Clause, known: KnownCalls) -> bool:
    """False if it counts dims of an output whose number does not follow from the arguments in a known way."""
    try:
        Writer(known.signature, known, uneven=False).clause(clause)
    except UsageError:
        return False
    return True


def allows_uneven(clauses: Sequence[Clause]) -> bool:
    """True if every emitted row holds for shards of any size, empty ones too."""
    return bool(clauses) and all(c.shards == "any" for c in clauses)


class _Strategy:
    """One rule's strategy function."""

    def __init__(self, rule: Rule, calls: Sequence[Call]) -> None:
        self.rule = rule
        self.signature = Signature.of(rule.op, rule.function)
        for clause in rule.clauses:
            if (
                len(clause.inputs) != len(self.signature.tensors)
                or len(clause.outputs) != self.signature.returns
            ):
                raise UsageError(
                    f"clause '{clause}' of {rule.op} has {len(clause.inputs)} inputs and {len(clause.outputs)} "
                    f"outputs, but the operator has {len(self.signature.tensors)} and {self.signature.returns}"
                )
        known = KnownCalls(rule, self.signature, calls)
        self.clauses, self.left_out = stated_clauses(rule, known)
        self.uneven = allows_uneven(self.clauses)
        self.writer = Writer(self.signature, known, self.uneven)

    def lines(self, name: str) -> list[str]:
        blocks = [self._block(clause) for clause in self.clauses]
        declarations = self._declarations()
        kind = "Placement | _ShardingPlaceholder" + (" | None" if self._has_none() else "")
        lines = [
            *self._decorator(),
            f"def {name}(",
            "    op: OpOverload,",
            "    args_schema: ArgsType,",
            "    kwargs_schema: KwargsType,",
            f") -> list[list[{kind}]]:",
            *(f"    {line}".rstrip() for line in self._docstring()),
            *(f"    {line}" for line in declarations),
            f"    strategies: list[list[{kind}]] = []",
            *(f"    {line}".rstrip() for block in blocks for line in ["", *block]),
            *(f"    {line}".rstrip() for line in self._omissions()),
            *([""] if len(blocks) > 1 or self.left_out else []),
            "    return strategies",
        ]
        if len(self.writer.ndims) == 1:
            [only] = self.writer.ndims
            lines = [line.replace(f"{only}_ndim", "ndim") for line in lines]
        return lines

    def _block(self, clause: Clause) -> list[str]:
        comment = _comment(_sentence(clause.reason)) if clause.reason else []
        return [*comment, *self.writer.clause(clause)]

    def _omissions(self) -> list[str]:
        lines: list[str] = []
        for clause, why in self.left_out:
            lines += ["", *_comment(f"Left out: {clause}, since {why}.")]
        return lines

    def _has_none(self) -> bool:
        absent = any(t.kind == "-" for c in self.clauses for t in c.outputs)
        return absent or self.signature.output_mask is not None

    def _decorator(self) -> list[str]:
        used = self.writer.plain
        info = self.signature.schema_info(used)
        options = [f"schema_info={info}"] if info else []
        if options and len(options[0]) + 5 > WIDTH:
            parts = options[0].removesuffix(")").split("(", 1)
            options = [f"{parts[0]}(\n        {parts[1]},\n    )"]
        options += ["allow_uneven_sharding=True"] if self.uneven else []
        op = op_source(self.rule.op)
        flat = f"@register_single_dim_strategy({', '.join([op, *options])})"
        if len(flat) <= WIDTH and "\n" not in flat:
            return [flat]
        return ["@register_single_dim_strategy(", f"    {op},", *_exploded(options), ")"]

    def _docstring(self) -> list[str]:
        packet = self.rule.op.split(".")[1]
        lines = [f'"""Single-dim sharding strategy of {packet}, found by running it on shards.', ""]
        lines += ["Rules, inputs -> outputs (all replicated is added by the infrastructure):", ""]
        if self.rule.reading.broadcast:
            lines[-1:] = ["Where the output is sharded, dims are its own; operands broadcast to it.", ""]
        for clause in self.clauses:
            text = str(clause) + (f": {clause.reason}" if clause.reason else "")
            lines += textwrap.wrap(f"- {text}", WIDTH - 4, subsequent_indent="  ", break_long_words=False)
        if not self.clauses:
            lines.append("- none: the operator has to run on replicated tensors")
        evidence = _evidence_text(self.rule.evidence)
        if evidence:
            lines += ["", *textwrap.wrap(evidence, WIDTH - 4)]
        return [*lines, '"""']

    def _declarations(self) -> list[str]:
        """The variables that the clauses use, read from the schema."""
        writer, signature = self.writer, self.signature
        dims = [a for a in signature.arguments if a.is_dim and a.name in writer.plain]
        rank = ""
        if dims:
            first = self.rule.reading.dims_of == "input"
            rank = writer.ndim(0) if first else writer.output_ndim(0)
        lines: list[str] = []
        broadcast = list(signature.tensors) if writer.broadcasts else []
        for a in signature.tensors:
            if a.name in writer.tensors or a.name in writer.ndims or a in broadcast:
                lines += _tensor_declaration(a)
        for a in signature.tensors:
            if a.name in writer.ndims:
                meta = f"{a.variable}[0]" if a.kind == "list" else a.variable
                lines.append(f"{a.name}_ndim = len({meta}.shape)")
        if broadcast:
            lines += _broadcast_declaration(broadcast)
        for a in signature.tensors:
            if a.name in writer.replicated:
                lines.append(f"{a.name}_replicated = [Replicate()] if {a.variable} is not None else []")
        for a in signature.arguments:
            if a.kind == "plain" and a.name in writer.plain:
                lines += _plain_declaration(a, rank, self.rule.reading.no_dims)
        return lines


def _tensor_declaration(a: Argument) -> list[str]:
    if a.kind == "tensor":
        return [f"{a.variable} = cast(TensorMeta, {a.value})"]
    if a.kind == "list":
        if "Optional" in a.type:
            return [
                f"given = cast(Sequence[TensorMeta | None], {a.value})",
                f"{a.variable} = [meta for meta in given if meta is not None]",
            ]
        return [f"{a.variable} = cast(Sequence[TensorMeta], {a.value})"]
    value = a.value
    if a.position is not None and a.has_default:
        value = f"args_schema[{a.position}] if len(args_schema) > {a.position} else None"
    return [f"{a.variable} = cast(TensorMeta | None, {value})"]


def _broadcast_declaration(tensors: Sequence[Argument]) -> list[str]:
    parts = []
    for a in tensors:
        if a.kind == "tensor":
            parts.append(f"{a.variable}.shape")
        elif a.kind == "list":
            parts.append(f"*(meta.shape for meta in {a.variable})")
        else:
            parts.append(f"() if {a.variable} is None else {a.variable}.shape")
    flat = f"shape = torch.broadcast_shapes({', '.join(parts)})"
    if len(flat) + 4 <= WIDTH:
        return [flat]
    return ["shape = torch.broadcast_shapes(", *_exploded(parts), ")"]


def _plain_declaration(a: Argument, rank: str, no_dims: str) -> list[str]:
    kind = _python_type(a)
    name = a.variable
    if a.position is None or not a.has_default:
        lines = [f"{name} = cast({kind}, {a.value})"]
    else:
        lines = [
            f"{name} = {_default(a)}",
            f"if len(args_schema) > {a.position}:",
            f"    {name} = cast({kind}, {a.value})",
        ]
        flat = f"{name} = cast({kind}, {a.value}) if len(args_schema) > {a.position} else {_default(a)}"
        if len(flat) + 4 <= WIDTH:
            lines = [flat]
    if not a.is_dim:
        if a.is_list and not a.is_optional:
            lines = [f"{name} = tuple(cast({kind}, {a.value}))"]
        return lines
    if not a.is_list and not a.is_optional:
        return [*lines, f"{name} = normalize_dim({name}, {rank})"]
    several = name if a.is_list else f"[{name}]"
    lines.append(f"{a.normal} = [normalize_dim(i, {rank}) for i in {several}]")
    if a.is_list and not a.is_optional and no_dims == "none":
        return lines
    none = f"range({rank})" if no_dims == "all" else "[]"
    test = f"{name} is None" if not a.is_list else f"not {name}"
    lines[-1] = f"{a.normal} = [normalize_dim(i, {rank}) for i in ({none} if {test} else {several})]"
    return lines


def _python_type(a: Argument) -> str:
    inner = a.type.removeprefix("Optional[").removesuffix("]") if a.is_optional else a.type
    names = {"number": "float", "int": "int", "float": "float", "bool": "bool", "str": "str"}
    if inner.startswith("List["):
        text = f"Sequence[{names.get(inner[5:].rstrip(']'), 'object')}]"
    else:
        text = names.get(inner, "object")
    return f"{text} | None" if a.is_optional else text


def _default(a: Argument) -> str:
    return repr(a.default).replace("'", '"') if isinstance(a.default, str) else repr(a.default)


def function_names(rules: Sequence[Rule]) -> dict[str, str]:
    """The name of the emitted function for each overload."""
    packets = [rule.op.split(".")[1] for rule in rules]
    names = {}
    for rule, packet in zip(rules, packets, strict=True):
        overload = rule.op.split(".")[2] if packets.count(packet) > 1 else ""
        names[rule.op] = "_".join(p for p in (packet.lstrip("_"), overload, "single_dim_strategy") if p)
    return names


def _imports(bodies: Sequence[str], helpers: set[str]) -> str:
    text = "\n".join([*bodies, *(source for name, source in _HELPERS.items() if name in helpers)])

    def used(*names: str) -> list[str]:
        return [n for n in names if f"{n}" in text]

    lines = ["import math"] if "math" in helpers else []
    if "Sequence[" in text:
        lines.append("from collections.abc import Sequence")
    if "cast(" in text:
        lines.append("from typing import cast")
    lines += [""] if lines else []
    schema = ["ArgsType", "KwargsType", *used("RuntimeSchemaInfo")]
    placements = ["Partial"] if "Partial(" in text else []
    placements += ["Placement", *(["Replicate"] if "Replicate(" in text else [])]
    lines += ["import torch", "from torch._ops import OpOverload"]
    if "TensorMeta" in text:
        lines.append("from torch.distributed.tensor._dtensor_spec import TensorMeta")
    lines += _from("torch.distributed.tensor._op_schema", schema)
    lines += _from(
        "torch.distributed.tensor._ops.single_dim_strategy",
        ["_ShardingPlaceholder", "register_single_dim_strategy"],
    )
    if "normalize_dim(" in text:
        lines.append("from torch.distributed.tensor._ops.utils import normalize_dim")
    lines += _from("torch.distributed.tensor.placement_types", placements)
    return "\n" + "\n".join(lines) + "\n"


def _from(module: str, names: Sequence[str]) -> list[str]:
    flat = f"from {module} import {', '.join(names)}"
    return [flat] if len(flat) <= WIDTH else [f"from {module} import (", *_exploded(names), ")"]


def _exploded(items: Sequence[str]) -> list[str]:
    return [f"    {item}," for item in items]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 4, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _title(rules: Sequence[Rule]) -> str:
    names = list(dict.fromkeys(rule.op.split(".")[1] for rule in rules))
    return f"DTensor sharding strategies of {', '.join(names)}."


def _unserved(rules: Sequence[Rule], known: Mapping[str, Sequence[Call]]) -> str:
    """What the module's docstring says of rules that are not in it."""
    reasons = {rule.op: why_unserved(rule, known.get(rule.op, ())) for rule in rules}
    lines = [f"Left out: {op}, since {why}." for op, why in reasons.items() if why]
    return f"\n\n{chr(10).join(textwrap.fill(line, WIDTH) for line in lines)}\n" if lines else ""


def _evidence_text(evidence: Any) -> str:
    """The counts, as one sentence."""
    counts = []
    if "calls" in evidence:
        counts.append(f"built from {evidence['calls']} calls")
    if "held_out" in evidence:
        counts.append(f"validated on {evidence['held_out']} held-out calls")
    if "refutations_tried" in evidence:
        counts.append(f"{evidence['refutations_tried']} made to refute it")
    if "experiments" in evidence:
        counts.append(f"{evidence['experiments']} experiments")
    where = f" with torch {evidence['torch']}" if "torch" in evidence else ""
    return f"Evidence: {', '.join(counts)}{where}." if counts else ""
