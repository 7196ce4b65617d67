"""Clauses as Python source: conditions and dim expressions over the variables of an emitted strategy.

Each clause becomes a loop over d with its condition and one appended row, and a loop over reductions around it where it
is about several. What the source uses (tensors, arguments, helpers) is collected on the way, so that the
module declares nothing else.
"""

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import UsageError
from ..rules import Clause, Scope, Term
from ._outputs import KnownCalls
from ._signature import Argument, Signature

_ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
WIDTH = 88


@dataclass
class Writer:
    """The source of one strategy's clauses; `known` are calls from which the outputs' shapes are derived."""

    signature: Signature
    known: KnownCalls
    uneven: bool
    tensors: set[str] = field(default_factory=set)
    ndims: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)
    helpers: set[str] = field(default_factory=set)
    replicated: set[str] = field(default_factory=set)
    broadcasts: bool = False

    def clause(self, clause: Clause) -> list[str]:
        """The lines for one clause."""
        clause, reductions = self._broadcasting(clause), clause.reductions
        self.broadcasts |= self.known.is_broadcast and any(t.kind == "B" for t in clause.inputs)
        lines: list[str] = []
        indent = 0

        def put(text: str) -> None:
            lines.append("    " * indent + text)

        tensor = self._variable_tensor(clause)

        def put_conditions(conditions: Sequence[str]) -> None:
            nonlocal indent
            joined = " and ".join(conditions)
            for condition in [joined] if len(joined) + 4 * indent + 8 <= WIDTH else conditions:
                if condition:
                    put(f"if {condition}:")
                    indent += 1

        put_conditions([*self._presence(tensor), *self._conditions(clause, with_d=False)])
        if reductions:
            names = ", ".join(f'"{reduction}"' for reduction in reductions)
            put(f"for reduce_op in ({names}):")
            indent += 1
        if self._variable(clause) is not None:
            put(f"for d in {self._range(clause, tensor)}:")
            indent += 1
        put_conditions([*self._conditions(clause, with_d=True), *self._shardable(clause)])
        reduction = "reduce_op" if reductions else None
        row = [
            *self._outputs(clause, reduction),
            *self._inputs(clause, reduction),
            *self._outs(clause, reduction),
        ]
        counted = next((p for p in row if "sum(" in p), None)
        if counted is not None:
            put(f"out_dim = {counted.removeprefix('_ShardingPlaceholder(').removesuffix(')')}")
            row = ["_ShardingPlaceholder(out_dim)" if p == counted else p for p in row]
        if any(t.kind == "B" for t in clause.inputs) and not self._is_cut(clause):
            # Where every operand broadcasts, the output cannot be sharded.
            lines += broken(f"{'    ' * indent}row = [", row, "]")
            put(f"if any(isinstance(p, _ShardingPlaceholder) for p in row[{len(clause.outputs)}:]):")
            put("    strategies.append(row)")
            return lines
        lines += appended(row, 4 * indent)
        return lines

    def _is_cut(self, clause: Clause) -> bool:
        """True if some input is sharded whenever the output is."""
        return self.broadcasts or any(t.kind == "S" for t in clause.inputs)

    def _broadcasting(self, clause: Clause) -> Clause:
        """The clause with its operands' own dims: a term of kind B stands for an operand that may broadcast to the
        output's dim, all others are sharded along the dim aligned with it."""
        if not clause.aligned(self._scope):
            return clause
        inputs = []
        for i, term in enumerate(clause.inputs):
            if term.kind == "S" and not term.inside.isdigit():
                shift = None if term.each or self.known.is_broadcast else self.known.shift(clause, i)
                may_broadcast = Term("B", term.inside, term.each)
                term = may_broadcast if shift is None else Term("S", shifted(term.inside, shift))
            inputs.append(term)
        return replace(clause, inputs=tuple(inputs))

    @property
    def _scope(self) -> Scope:
        return Scope({}, [], [], self.known.rule.reading.broadcast)

    def _variable(self, clause: Clause) -> tuple[str, int] | None:
        return clause.variable(self._scope)

    def source(self, text: str) -> str:
        """An expression of clauses as Python source."""
        return ast.unparse(_Translation(self).visit(ast.parse(text, mode="eval").body))

    def output_ndim(self, output: int) -> str:
        if self.broadcasts and output == 0:
            return "len(shape)"
        return self.source(self.known.output_ndim(output))

    def ndim(self, index: int) -> str:
        argument = self._tensor(index)
        self.ndims.add(argument.name)
        return f"{argument.name}_ndim"

    def shape(self, index: int) -> str:
        argument = self._tensor(index)
        self.tensors.add(argument.name)
        return f"{argument.variable}[0].shape" if argument.kind == "list" else f"{argument.variable}.shape"

    def _tensor(self, index: int) -> Argument:
        tensors = self.signature.tensors
        if index < len(tensors) and not any(a.kind == "list" for a in tensors[:index]):
            return tensors[index]
        if tensors and tensors[0].kind == "list":
            return tensors[0]
        raise UsageError(f"{self.signature.op} has no tensor argument {index}")

    def _variable_tensor(self, clause: Clause) -> Argument | None:
        variable = self._variable(clause)
        if variable is None or variable[0] == "output":
            return None
        return self.signature.tensors[variable[1]]

    def _presence(self, tensor: Argument | None) -> list[str]:
        """Conditions that the optional tensors which the clause needs are there."""
        if tensor is None or tensor.kind != "optional":
            return []
        self.tensors.add(tensor.name)
        return [f"{tensor.variable} is not None"]

    def _range(self, clause: Clause, tensor: Argument | None) -> str:
        variable = self._variable(clause)
        assert variable is not None
        if tensor is None:
            return f"range({self.output_ndim(variable[1])})"
        self.ndims.add(tensor.name)
        below = [t for t in clause.when if self._is_bound(t, variable[1])]
        return f"range({self.source(below[0].partition('<')[2].strip()) if below else f'{tensor.name}_ndim'})"

    @staticmethod
    def _is_bound(condition: str, tensor: int) -> bool:
        """True for `d < ndim(0)-1`, which the range of d can say."""
        return condition.replace(" ", "").startswith(f"d<ndim({tensor})-") and condition[-1].isdigit()

    def _conditions(self, clause: Clause, with_d: bool) -> list[str]:
        found = []
        variable = self._variable(clause)
        ranged = variable if variable is not None and variable[0] == "input" else None
        for text in clause.when:
            if ranged is not None and self._is_bound(text, ranged[1]):
                continue
            tree = ast.parse(text, mode="eval").body
            if any(isinstance(n, ast.Name) and n.id == "d" for n in ast.walk(tree)) == with_d:
                source = self.source(text)
                found += [*self._guards(tree), f"({source})" if isinstance(tree, ast.BoolOp) else source]
        return list(dict.fromkeys(found))

    def _guards(self, tree: ast.AST) -> list[str]:
        """What must hold for the expression to have a value: optional arguments that it compares are given."""
        guards = []
        for node in ast.walk(tree):
            ordered = isinstance(node, ast.Compare) and any(isinstance(o, _ORDER) for o in node.ops)
            if ordered or isinstance(node, ast.BinOp):
                for name in (n.id for n in ast.walk(node) if isinstance(n, ast.Name)):
                    argument = self.signature.plain(name)
                    if argument is not None and argument.is_optional and not argument.is_dim:
                        guards.append(f"{argument.variable} is not None")
        return guards

    def _shardable(self, clause: Clause) -> list[str]:
        """Guards against dims of size 1, which DTensor shards where uneven shards are allowed."""
        broadcasting = [t for t in clause.inputs if t.kind == "B"]
        if broadcasting and self.broadcasts:
            return [f"shape[{self.source(broadcasting[0].inside)}] != 1"]
        required = [a.kind == "tensor" for a in self.signature.tensors]
        sharded = [(i, t) for i, t in enumerate(clause.inputs) if t.kind == "S" and required[i]]
        if not self.uneven or _sizes_agree(clause) or not self.known.may_differ(clause):
            return []
        self.helpers.add("_is_shardable")
        found = []
        for i, term in sharded:
            argument = self.signature.tensors[i]
            self.tensors.add(argument.name)
            found.append(f"_is_shardable({argument.variable}, {self._dim(term, i)})")
        return found

    def _dim(self, term: Term, index: int) -> str:
        """The dim of a shard of an input; negative ones are counted from 0."""
        if not term.inside.startswith("-"):
            return self.source(term.inside)
        self.ndims.add(self.signature.tensors[index].name)
        return f"{self.signature.tensors[index].name}_ndim - {term.inside[1:]}"

    def _inputs(self, clause: Clause, reduction: str | None) -> list[str]:
        return [
            self._input(term, i, argument, reduction)
            for i, (term, argument) in enumerate(zip(clause.inputs, self.signature.tensors, strict=True))
        ]

    def _input(self, term: Term, index: int, argument: Argument, reduction: str | None) -> str:
        variable = argument.variable
        if argument.kind != "tensor":
            self.tensors.add(argument.name)
        if argument.kind == "optional" and term.kind == "R":
            self.replicated.add(argument.name)
            return f"*{argument.name}_replicated"
        if argument.kind == "list":
            if term.kind == "B" or term.inside.startswith("-"):
                return f"*({self._placed(term, 'meta', 'len(meta.shape)', reduction)} for meta in {variable})"
            return f"*[{self._placed(term, variable, '', reduction)}] * len({variable})"
        placed = self._placed(term, variable, f"{argument.name}_ndim", reduction)
        if term.kind == "B":
            self.tensors.add(argument.name)
        if f"{argument.name}_ndim" in placed:
            self.ndims.add(argument.name)
        if argument.kind == "optional":
            return f"*([{placed}] if {variable} is not None else [])"
        return placed

    def _placed(self, term: Term, variable: str, ndim: str, reduction: str | None) -> str:
        """A placement; `ndim` is the expression for the tensor's number of dims."""
        if term.kind == "R":
            return "Replicate()"
        if term.kind == "-":
            return "None"
        if term.kind == "P":
            return f"Partial({reduction})" if "|" in term.inside else f'Partial("{term.inside}")'
        if term.kind == "B":
            self.helpers.add("_broadcast_sharding")
            ndim = self.output_ndim(0)
            dim = _from_end(ndim, term.inside) if term.inside[0] == "-" else self.source(term.inside)
            return f"_broadcast_sharding({variable}, {dim}, {ndim})"
        if term.inside.startswith("-"):
            return f"_ShardingPlaceholder({_from_end(ndim, term.inside)})"
        return f"_ShardingPlaceholder({self.source(term.inside)})"

    def _outputs(self, clause: Clause, reduction: str | None) -> list[str]:
        found = []
        for i, term in enumerate(clause.outputs):
            ndim = self.output_ndim(i) if term.kind == "S" and term.inside.startswith("-") else ""
            placed = self._placed(term, "", ndim, reduction)
            mask = self.signature.output_mask
            if mask is not None and term.kind != "-":
                self.plain.add(mask.name)
                placed += f" if {mask.variable}[{i}] else None"
            found.append(placed)
        return found

    def _outs(self, clause: Clause, reduction: str | None) -> list[str]:
        """The tensors given as `out=` are placed as the outputs."""
        return self._outputs(clause, reduction)[: len(self.signature.outs)]


class _Translation(ast.NodeTransformer):
    """Rewrites the names and functions of clauses. Calls become names with the call as their text, since the
    printer of syntax trees would put a second pair of brackets around a generator."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def visit_Name(self, node: ast.Name) -> ast.AST:
        argument = self.writer.signature.plain(node.id)
        if argument is not None:
            self.writer.plain.add(argument.name)
            return ast.Name(argument.normal)
        tensor = next((a for a in self.writer.signature.tensors if a.name == node.id), None)
        if tensor is not None:
            self.writer.tensors.add(tensor.name)
            return ast.Name(tensor.variable)
        if node.id == "inf":
            self.writer.helpers.add("math")
            return _parsed("math.inf")
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Name(json.dumps(node.value)) if isinstance(node.value, str) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """An argument that may name several dims is a list: `d != dim` is `d not in dims`."""
        right = node.comparators[0]
        argument = self.writer.signature.plain(right.id) if isinstance(right, ast.Name) else None
        if argument is not None and argument.is_several and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            node.ops[0] = ast.In() if isinstance(node.ops[0], ast.Eq) else ast.NotIn()
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        given = [ast.unparse(self.visit(a)) for a in node.args]
        if name == "ndim":
            return _parsed(self.writer.ndim(int(given[0])))
        if name == "outdim":
            return _parsed(self.writer.output_ndim(int(given[0])))
        if name == "size":
            self.writer.helpers.add("_size")
            return ast.Name(f"_size({self.writer.shape(int(given[0]))}, {given[1]})")
        if name == "ones":
            shape = self.writer.shape(int(given[0]))
            if len(given) == 2:
                return ast.Name(f"sum(size == 1 for size in {shape}[:{given[1]}])")
            dims = self._several(node.args[2:], given[2:])
            return ast.Name(f"sum(i < {given[1]} and {shape}[i] == 1 for i in {dims})")
        if name == "before":
            return ast.Name(f"sum(i < {given[0]} for i in {self._several(node.args[1:], given[1:])})")
        return ast.Name(f"{name}({', '.join(given)})")

    def _several(self, nodes: Sequence[ast.expr], given: Sequence[str]) -> str:
        argument = self.writer.signature.plain(nodes[0].id) if isinstance(nodes[0], ast.Name) else None
        if len(given) == 1 and argument is not None and argument.is_several:
            return given[0]
        return f"({', '.join(given)},)" if len(given) == 1 else f"({', '.join(given)})"


def _sizes_agree(clause: Clause) -> bool:
    """True if the conditions say that all sharded dims have the same size."""
    sharded = {f"size({i},{t.inside})" for i, t in enumerate(clause.inputs) if t.kind == "S"}
    joined: set[str] = set()
    for text in clause.when:
        left, equals, right = text.replace(" ", "").partition("==")
        if equals and {left, right} <= sharded and (not joined or joined & {left, right}):
            joined |= {left, right}
    return joined == sharded


def shifted(expression: str, shift: int) -> str:
    """The expression plus a number, folded where it is a number itself or d."""
    if expression.lstrip("-").isdigit():
        return str(int(expression) + shift)
    return expression if shift == 0 else f"{expression}{shift:+d}"


def _from_end(ndim: str, negative: str) -> str:
    """A dim counted from the end as one counted from 0."""
    return str(int(ndim) + int(negative)) if ndim.isdigit() else f"{ndim} - {negative[1:]}"


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


_OPTIONAL = re.compile(r"\*\(\[(?P<placed>.*)\] if (?P<given>.* is not None) else \[\]\)")


def appended(row: Sequence[str], indent: int) -> list[str]:
    """`strategies.append([...])`, with a trailing comma where it takes several lines, as the formatter would."""
    pad = " " * indent
    flat = f"{pad}strategies.append([{', '.join(row)}])"
    if len(flat) + 4 <= WIDTH:
        return [flat]
    inner = [f"{pad}    [", *(line for item in row for line in _item(f"{pad}        ", item)), f"{pad}    ]"]
    return [f"{pad}strategies.append(", *inner, f"{pad})"]


def broken(start: str, items: Sequence[str], end: str) -> list[str]:
    """A list on one line where it fits, else an item per line."""
    flat = f"{start}{', '.join(items)}{end}"
    if len(flat) + 4 <= WIDTH:
        return [flat]
    pad = " " * (len(start) - len(start.lstrip()))
    return [start, *(line for item in items for line in _item(f"{pad}    ", item)), f"{pad}{end}"]


def _item(pad: str, item: str) -> list[str]:
    """An item of a list on its own line; an optional tensor's, if it is long, on several."""
    optional = _OPTIONAL.fullmatch(item)
    if optional is None or len(pad) + len(item) + 5 <= WIDTH:
        return [f"{pad}{item},"]
    lines = [f"[{optional['placed']}]", f"if {optional['given']}", "else []"]
    return [f"{pad}*(", *(f"{pad}    {line}" for line in lines), f"{pad}),"]
