"""Programs as JSON: the format that `shardwise propagate` reads, which is that of the public propagation
cases.

    {"mesh": {"dp": 2}, "level": "basic", "groups": [["x", "y"]],
     "args": [{"name": "x", "shape": [8, 16], "sharding": "[{dp}, {?}]"}],
     "ops": [{"op": "neg", "kind": "elementwise", "rule": "... -> ...", "operands": ["x"],
              "results": [{"name": "y", "shape": [8, 16], "sharding": null}]}],
     "results": [{"value": "y", "sharding": null}]}

A sharding is null, its text form, or `{dims, open, priority?, replicated?, partial?}`. A rule is text in
the rule language or with sizes, or null: nothing is propagated. `kind` is optional. The ops `constraint` and
`barrier` (with `allowed`) need no rule. Where a sharding has an `expected` one, `mismatches` compares them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..documents import Field
from ..errors import UsageError
from ..factors import FactorRule, rule_for
from ..files import named, parse_json, path_of, read_text
from ..layout import Sharding
from ..mesh import Mesh
from ._levels import LEVELS, Level
from ._program import DIRECTIONS, OP_KINDS, OpKind, Program, identity, kind_of
from ._run import Propagation

_UNKNOWN = -(2**63)  # the size that MLIR gives a dim of unknown size
_SLICES = ("dynamic_slice", "dynamic_update_slice")
_IDENTITIES: dict[str, OpKind] = {"constraint": "elementwise", "barrier": "barrier"}


def read_cases(path: str | Path) -> Iterator[dict[str, Any]]:
    """The cases of a file: one JSON document, or one per line, optionally gzipped. Each is checked."""
    path = path_of(path)
    with named(path):
        for place, case in _documents(read_text(path)):
            program_of(case, place)
            yield case


def _documents(text: str) -> Iterator[tuple[str, Any]]:
    """Each document with its place in the file."""
    try:
        document = parse_json(text)
    except UsageError:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        if not lines or not _is_json(lines[0][1]):
            raise  # one document, which is damaged
        for number, line in lines:
            place = Field(line, f"line {number}")
            yield place.place, place.parsed(parse_json)
        return
    if isinstance(document, list):
        yield from ((f"[{i}]", case) for i, case in enumerate(document))
    else:
        yield "", document


def _is_json(line: str) -> bool:
    try:
        return parse_json(line) is not None
    except UsageError:
        return False


def program_of(case: dict[str, Any], place: str = "") -> Program:
    """The program of a case, which stands at a place of a file."""
    fields = Field(case, place).object(("mesh", "args", "ops", "results"), ("id", "level", "groups"))
    if "id" in fields:
        fields["id"].text()
    if "level" in fields:
        fields["level"].one_of(LEVELS)
    program = Program(_mesh(fields["mesh"]))
    for arg in fields["args"].items():
        _value(arg, program, program.input)
    for op in fields["ops"].items():
        with op.checked():
            _op(op, program)
    for result in fields["results"].items():
        _result(result, program)
    for group in fields["groups"].items() if "groups" in fields else ():
        names = [name.text() for name in group.items()]
        with group.checked():
            program.group(*names)
    return program


def level_of(case: dict[str, Any], default: Level = "user-priority") -> Level:
    level = case.get("level", default)
    if level not in LEVELS:
        raise UsageError(f"unknown level {level!r}: use one of {', '.join(LEVELS)}")
    return level


def _mesh(field: Field) -> Mesh:
    if isinstance(field.value, str):
        return field.parsed(Mesh.parse)
    sizes = {name: size.integer(least=1) for name, size in field.members().items()}
    with field.checked():
        return Mesh(tuple(sizes), tuple(sizes.values()))


def _value(entry: Field, program: Program, add: Callable[..., str]) -> str:
    fields = entry.object(("name", "shape"), ("sharding", "expected"))
    sizes = [] if fields["shape"].value is None else fields["shape"].items()
    shape = tuple(size.integer(least=_UNKNOWN) for size in sizes)
    # Not a tensor (a token), or one of unknown size: nothing is propagated through it, as if it had no dims.
    shape = () if min(shape, default=0) < 0 else shape
    name, given = fields["name"].text(), _sharding(fields, "sharding", program.mesh, len(shape))
    _sharding(fields, "expected", program.mesh, len(shape))
    with entry.checked():
        return add(name, shape, given)


def _sharding(fields: dict[str, Field], name: str, mesh: Mesh, rank: int) -> Sharding:
    """The sharding of this name; without information where there is none."""
    return Sharding.read(fields[name], mesh, rank) if name in fields else Sharding.unknown(mesh, rank)


def _op(entry: Field, program: Program) -> None:
    fields = entry.object(("op", "operands", "results"), ("rule", "kind", "allowed"))
    op = fields["op"].text()
    inputs = [name.text() for name in fields["operands"].items()]
    given = [program.shape(name) for name in inputs]
    outputs = [_value(result, program, program.value) for result in fields["results"].items()]
    made = [program.shape(name) for name in outputs]
    rule: FactorRule | None = None
    if op in _IDENTITIES:
        if len(inputs) != 1:
            raise fields["operands"].expected("a list of 1")
        rule = identity(given[0])
    elif "rule" not in fields:
        raise entry.wrong(f"expected the field 'rule', which {op} needs")
    elif fields["rule"].value is not None:
        rule = fields["rule"].parsed(lambda text: rule_for(text, given, made))
    kind = fields["kind"].optional(lambda one: one.one_of(OP_KINDS)) if "kind" in fields else None
    program.node(
        rule,
        inputs,
        outputs,
        op=op,
        kind=_kind(op, kind, rule),  # type: ignore[arg-type]
        allowed=fields["allowed"].one_of(DIRECTIONS) if "allowed" in fields else "both",  # type: ignore[arg-type]
    )


def _result(entry: Field, program: Program) -> None:
    fields = entry.object(("value",), ("sharding", "expected"))
    value = fields["value"].text()
    with fields["value"].checked():
        rank = len(program.shape(value))
    program.result(value, _sharding(fields, "sharding", program.mesh, rank))
    _sharding(fields, "expected", program.mesh, rank)


def _kind(op: str, kind: OpKind | None, rule: FactorRule | None) -> OpKind | None:
    """The given kind, except for operations that the format identifies by name."""
    if op in _SLICES:
        return "dynamic_slice"
    if op in _IDENTITIES:
        return _IDENTITIES[op]
    if op == "custom_call" and rule is not None and not rule.custom and len(rule.inputs) == 1:
        return "copy" if kind_of(rule) == "elementwise" else kind
    return kind


def mismatches(case: dict[str, Any], outcome: Propagation) -> list[str]:
    """Where the result differs from what the case expects; priorities are not compared."""
    wrong = []

    def compare(where: str, entry: dict[str, Any], got: Sharding) -> None:
        if "expected" in entry:
            expected = Sharding.from_json(entry["expected"], got.mesh, got.rank).without_priorities()
            if expected != got.without_priorities():
                wrong.append(f"{where}: expected {expected}, got {got}")

    for entry in [*case["args"], *(result for op in case["ops"] for result in op["results"])]:
        compare(entry["name"], entry, outcome[entry["name"]])
    for entry, got in zip(case["results"], outcome.results, strict=True):
        compare(f"return {entry['value']}", entry, got)
    return wrong
