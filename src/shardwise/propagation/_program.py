"""`Program`: values with shapes and shardings, and the operations between them, each with its factor rule.

Constraints and barriers are operations too: both return their input unchanged. A constraint fixes the sharding of its
output, a barrier propagates shardings in some directions only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from ..errors import UsageError, require
from ..factors import FactorRule, Template, TensorFactors, rule_for
from ..layout import Sharding
from ..mesh import Mesh

# Determines when an operation is propagated at the levels `op-priority` and `user-priority`; see `_levels`.
OpKind = Literal[
    "elementwise", "reshape", "transpose", "broadcast", "dynamic_slice", "copy", "barrier", "other"
]
OP_KINDS: tuple[OpKind, ...] = get_args(OpKind)

Direction = Literal["forward", "backward", "both", "none"]
DIRECTIONS: tuple[Direction, ...] = ("none", "forward", "backward", "both")


@dataclass(frozen=True)
class ProgramValue:
    name: str
    shape: tuple[int, ...]
    sharding: Sharding


@dataclass(frozen=True)
class Operation:
    """An operation; its inputs and outputs are names of values. Without a rule nothing is propagated through it."""

    op: str
    kind: OpKind
    rule: FactorRule | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    allowed: Direction = "both"

    def __str__(self) -> str:
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)})"


@dataclass(frozen=True)
class Result:
    """A value that the program returns, and its sharding there."""

    value: str
    sharding: Sharding


@dataclass
class Program:
    """A graph in program order, built by calls that return the names of values.

    >>> program = Program(Mesh.parse("dp=2,tp=4"))
    >>> x = program.input("x", (8, 16), "[{dp}, {}]")
    >>> w = program.input("w", (16, 32), "[{}, {tp}]")
    >>> program.op("m k, k n -> m n", [x, w], name="y")
    'y'
    """

    mesh: Mesh
    values: dict[str, ProgramValue] = field(default_factory=dict)
    nodes: list[Operation] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    groups: list[tuple[str, ...]] = field(default_factory=list)
    _made: set[str] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        self.mesh = Mesh.of(self.mesh)

    def input(self, name: str, shape: Sequence[int], sharding: Sharding | str | None = None) -> str:
        self._made.add(self._add(name, shape, sharding))
        return name

    def op(
        self,
        rule: FactorRule | Template | str,
        inputs: Sequence[str],
        *,
        name: str | None = None,
        op: str = "op",
        kind: OpKind | None = None,
        shape: Sequence[int] | None = None,
        sharding: Sharding | str | None = None,
    ) -> str:
        """An operation with one output. Its shape follows from the rule unless given."""
        shapes = [self._value(value).shape for value in inputs]
        rule = rule_for(rule, shapes, None if shape is None else [shape])
        if len(rule.outputs) != 1 or rule.outputs[0] is None:
            raise UsageError(f"rule '{rule}' has {len(rule.outputs)} outputs: use 'node' for other than one")
        if shape is None:
            shape = [rule.size_of(names) for names in rule.outputs[0]]
        output = self._add(name or f"v{len(self.values)}", shape, sharding)
        return self.node(rule, inputs, [output], op=op, kind=kind)[0]

    def node(
        self,
        rule: FactorRule | None,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        op: str = "op",
        kind: OpKind | None = None,
        allowed: Direction = "both",
    ) -> tuple[str, ...]:
        """An operation between existing values."""
        if kind is not None and kind not in OP_KINDS:
            raise UsageError(f"unknown kind of operation {kind!r}: use one of {', '.join(OP_KINDS)}")
        if allowed not in DIRECTIONS:
            raise UsageError(f"unknown direction {allowed!r}: use one of {', '.join(DIRECTIONS)}")
        for value in outputs:
            if value in self._made:
                raise UsageError(
                    f"value {value!r} is produced twice: it is an input or the output of another operation"
                )
        given, made = ([self._value(value).shape for value in side] for side in (inputs, outputs))
        if rule is not None:
            rule_for(rule, given, made)
        node = Operation(
            op, kind or (kind_of(rule) if rule else "other"), rule, tuple(inputs), tuple(outputs), allowed
        )
        self.nodes.append(node)
        self._made.update(outputs)
        return node.outputs

    def value(self, name: str, shape: Sequence[int], sharding: Sharding | str | None = None) -> str:
        """A value that a later operation produces."""
        return self._add(name, shape, sharding)

    def constrain(self, value: str, sharding: Sharding | str, name: str | None = None) -> str:
        """The same value with a fixed sharding (where its dims are closed) for later uses."""
        shape = self._value(value).shape
        output = self._add(name or f"{value}.constrained", shape, sharding)
        return self.node(identity(shape), [value], [output], op="constraint", kind="elementwise")[0]

    def barrier(self, value: str, allowed: Direction = "none", name: str | None = None) -> str:
        """The same value; shardings are propagated only in the allowed direction; `forward` is from `value` to its
        uses."""
        shape = self._value(value).shape
        output = self._add(name or f"{value}.barrier", shape, None)
        return self.node(identity(shape), [value], [output], op="barrier", kind="barrier", allowed=allowed)[0]

    def group(self, *values: str) -> None:
        """Make these values share a sharding."""
        for value in values:
            if self._value(value).shape != self._value(values[0]).shape:
                raise UsageError(
                    f"values {values[0]!r} and {value!r} cannot share a sharding: their shapes are "
                    f"{self.values[values[0]].shape} and {self.values[value].shape}"
                )
        self.groups.append(tuple(values))

    def result(self, value: str, sharding: Sharding | str | None = None) -> None:
        """Return a value, with a separate sharding."""
        self.results.append(Result(value, self._sharding(sharding, self._value(value).shape)))

    def shape(self, value: str) -> tuple[int, ...]:
        return self._value(value).shape

    def _value(self, name: str) -> ProgramValue:
        if name not in self.values:
            raise UsageError(
                f"there is no value {name!r}: the last ones are {', '.join(list(self.values)[-5:])}"
            )
        return self.values[name]

    def _add(self, name: str, shape: Sequence[int], sharding: Sharding | str | None) -> str:
        if name in self.values:
            raise UsageError(f"value {name!r} already exists")
        require(shape, (tuple, list), f"the shape of {name!r}", "a tuple such as (8, 4)")
        self.values[name] = ProgramValue(name, tuple(shape), self._sharding(sharding, shape))
        return name

    def _sharding(self, sharding: Sharding | str | None, shape: Sequence[int]) -> Sharding:
        if sharding is None:
            return Sharding.unknown(self.mesh, len(shape))
        if isinstance(sharding, str):
            sharding = Sharding.parse(sharding, self.mesh)
        if sharding.mesh != self.mesh:
            raise UsageError(
                f"sharding {sharding} is of mesh {sharding.mesh} but the program's is {self.mesh}"
            )
        sharding.require_rank(shape)
        return sharding


def identity(shape: Sequence[int]) -> FactorRule:
    """The rule of an op that returns its input."""
    return Template.parse("{0} -> {0}".format(" ".join(f"f{dim}" for dim in range(len(shape))) or "()")).on(
        [shape]
    )


def kind_of(rule: FactorRule) -> OpKind:
    """The kind of an operation, as determined by its factors."""
    outputs = {tensor for tensor in rule.outputs if tensor is not None}
    inputs = [tensor for tensor in rule.inputs if tensor]
    moves = any(factor.kind != "pass_through" for factor in rule.factors)
    if moves or len(outputs) != 1 or not rule.inputs:
        return "other"
    output = outputs.pop()
    if all(_is_part(tensor, output) for tensor in inputs):
        whole = any(_factors(tensor) == _factors(output) for tensor in inputs) or not output
        return "elementwise" if whole else "broadcast" if len(inputs) == 1 else "other"
    if len(inputs) > 1:
        return "other"
    if sorted(inputs[0]) == sorted(output):
        return "transpose"
    return "reshape" if _factors(inputs[0]) == _factors(output) else "other"


def _is_part(tensor: TensorFactors, output: TensorFactors) -> bool:
    """True if the tensor's dims are dims of the output, in the same order; those without a factor are ignored."""
    remaining = iter(output)
    return all(dim in remaining for dim in tensor if dim)


def _factors(tensor: TensorFactors) -> list[str]:
    return [name for dim in tensor for name in dim]
