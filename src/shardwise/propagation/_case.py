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

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import path_of, read_text
from ..layout import Sharding
from ..mesh import Mesh
from ._factors import FactorRule
from ._language import rule_for
from ._levels import LEVELS, Level
from ._program import OpKind, Program, identity, kind_of
from ._run import Propagation

_SLICES = ("dynamic_slice", "dynamic_update_slice")
_IDENTITIES: dict[str, OpKind] = {"constraint": "elementwise", "barrier": "barrier"}


def read_cases(path: str | Path) -> Iterator[dict[str, Any]]:
    """The cases of a file: one JSON document, or one per line, optionally gzipped."""
    for case in _documents(path):
        if not isinstance(case, dict):
            raise UsageError(
                f"{path} contains {case!r}, which is not a case: a case is an object with a 'mesh'"
            )
        yield case


def _documents(path: str | Path) -> Iterator[Any]:
    text = read_text(path_of(path))
    try:
        document = json.loads(text)
        yield from document if isinstance(document, list) else [document]
        return
    except json.JSONDecodeError:
        pass
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if line.strip():
                yield json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"line {number} of {path} is not valid JSON: {error.msg}") from None


def program_of(case: dict[str, Any]) -> Program:
    try:
        return _program(case)
    except KeyError as error:
        raise UsageError(f"{_name(case)} has no {error}: see the case format") from None
    except (TypeError, AttributeError) as error:
        raise UsageError(f"{_name(case)} is not in the case format: {error}") from None


def _name(case: dict[str, Any]) -> str:
    return f"case {case['id']!r}" if "id" in case else "the case"


def level_of(case: dict[str, Any], default: Level = "user-priority") -> Level:
    level = case.get("level", default)
    if level not in LEVELS:
        raise UsageError(f"unknown level {level!r}: use one of {', '.join(LEVELS)}")
    return level


def _program(case: dict[str, Any]) -> Program:
    mesh = case["mesh"]
    program = Program(Mesh(tuple(mesh), tuple(mesh.values())) if isinstance(mesh, dict) else Mesh.of(mesh))

    def sharding(entry: dict[str, Any], shape: Sequence[int]) -> Sharding:
        return Sharding.from_json(entry.get("sharding"), program.mesh, len(shape))

    def value(entry: dict[str, Any], add: Callable[..., str] = program.value) -> str:
        # Not a tensor (a token), or one of unknown size: nothing is propagated through it, as if it had no dims.
        shape = () if entry["shape"] is None or min(entry["shape"], default=0) < 0 else entry["shape"]
        return add(entry["name"], shape, sharding(entry, shape))

    for arg in case["args"]:
        value(arg, program.input)
    for op in case["ops"]:
        inputs, outputs = op["operands"], [value(result) for result in op["results"]]
        shapes = [[program.values[name].shape for name in side] for side in (inputs, outputs)]
        if op["op"] in _IDENTITIES:
            rule: FactorRule | None = identity(shapes[0][0])
        else:
            rule = None if op["rule"] is None else rule_for(op["rule"], *shapes)
        kind = _kind(op["op"], op.get("kind"), rule)
        program.node(rule, inputs, outputs, op=op["op"], kind=kind, allowed=op.get("allowed", "both"))
    for result in case["results"]:
        program.result(result["value"], sharding(result, program.values[result["value"]].shape))
    for group in case.get("groups", ()):
        program.group(*group)
    return program


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
