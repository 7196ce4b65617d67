"""Programs as JSON: the case format of `shardwise propagate` and of the public propagation cases.

    {"level": "basic", "mesh": {"a": 2}, "args": [{"name", "shape", "sharding"}],
     "ops": [{"op", "kind", "rule", "operands", "results": [{"name", "shape", "sharding"}]}],
     "results": [{"value", "sharding"}]}

A sharding is null or `{dims, open, priority?, replicated?, partial?}`. Where an `expected` sharding stands
beside one, `mismatches` compares it with what propagation gives.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..layout import Sharding
from ..mesh import Mesh
from ..rules import FactorRule, Template
from ._levels import LEVELS, Level
from ._program import OpKind, Program, kind_of
from ._run import Propagation

_SLICES = ("dynamic_slice", "dynamic_update_slice")


def read_cases(path: str | Path) -> Iterator[dict[str, Any]]:
    """The cases of a file: one JSON document, or one a line, either of them gzipped or not."""
    try:
        raw = Path(path).read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
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
            raise UsageError(f"line {number} of {path} is not JSON: {error.msg}") from None


def program_of(case: dict[str, Any]) -> Program:
    try:
        return _program(case)
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"case {case.get('id', '')!r} is not in the case format: {error!r} is missing or wrong"
        ) from None


def level_of(case: dict[str, Any], default: Level = "user-priority") -> Level:
    level = case.get("level", default)
    if level not in LEVELS:
        raise UsageError(f"unknown level {level!r}: use one of {', '.join(LEVELS)}")
    return level


def _program(case: dict[str, Any]) -> Program:
    mesh = Mesh(tuple(case["mesh"]), tuple(case["mesh"].values()))
    program = Program(mesh)

    def sharding(entry: dict[str, Any], shape: Sequence[int]) -> Sharding:
        return Sharding.from_json(entry.get("sharding"), mesh, len(shape))

    def value(entry: dict[str, Any]) -> str:
        # Not a tensor (a token), or one of unknown size: nothing passes through it, as if it had no dims.
        shape = () if entry["shape"] is None or min(entry["shape"], default=0) < 0 else entry["shape"]
        return program.value(entry["name"], shape, sharding(entry, shape))

    for arg in case["args"]:
        value(arg)
    for op in case["ops"]:
        inputs = op["operands"]
        outputs = [value(result) for result in op["results"]]
        rule = _rule(
            op["rule"], [program.values[v].shape for v in inputs], [program.values[v].shape for v in outputs]
        )
        kind = _kind(op["op"], op.get("kind"), rule)
        program.node(rule, inputs, outputs, op=op["op"], kind=kind, allowed=op.get("allowed", "both"))
    for result in case["results"]:
        program.result(result["value"], sharding(result, program.values[result["value"]].shape))
    for group in case.get("groups", ()):
        program.group(*group)
    return program


def _kind(op: str, kind: OpKind | None, rule: FactorRule | None) -> OpKind | None:
    """The kind as given, except for operations that the format calls `other` and tells by name."""
    if op in _SLICES:
        return "dynamic_slice"
    if op == "custom_call" and rule is not None and not rule.custom and len(rule.inputs) == 1:
        return "copy" if kind_of(rule) == "elementwise" else kind
    return kind


def _rule(text: str | None, inputs: list[Any], outputs: list[Any]) -> FactorRule | None:
    if text is None:
        return None
    if "[" in text or text.startswith("()->"):
        return FactorRule.parse(text)
    return Template.parse(text).on(inputs, outputs)


def mismatches(case: dict[str, Any], outcome: Propagation) -> list[str]:
    """Where the outcome is not what the case expects; priorities are not compared."""
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
