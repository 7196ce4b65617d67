"""The report on one operator: what was tested, which rules hold, why, and on what evidence."""

from collections.abc import Sequence
from typing import Any

import yaml

from ..calls import facts, is_tensor
from ..experiments import generators
from ..rules import Clause
from ..synthesis import Study
from ._properties import properties


def report(study: Study) -> dict[str, Any]:
    """The report as a document; `yaml_report` is its text."""
    rule = study.rule
    clauses = rule.single_clauses if rule is not None else ()
    conditional = [c for c in clauses if c.when or _depends_on_dim(c)]
    unconditional = [c for c in clauses if c not in conditional]
    names = (study.op, study.overload)
    used = {g for j in study.observations for e in j.found.evidence.values() for g in e}
    shapes = dict.fromkeys(tuple(tuple(t.shape) for t in j.call.tensors) for j in study.observations)
    dtypes = sorted({str(t.dtype).removeprefix("torch.") for j in study.observations for t in j.call.tensors})
    document: dict[str, Any] = {
        "operator": study.op,
        "overload": study.overload,
        "signature": str(study.observations[0].call.schema or study.overload) if study.observations else "",
        "analysis": _analysis(study),
        "sample_inputs_tested": {
            "shapes": [[list(shape) for shape in of_call] for of_call in shapes],
            "dtypes": dtypes,
            "world_size": list(study.ranks),
            "generators": [{g.name: g.doc} for g in generators(names) if g.pattern == "*" and g.name in used],
            "kwargs_swept": {name: _plain(values) for name, values in study.sweep.values.items()},
        },
        "unconditional_rules": [_all_replicated(study), *(_entry(c) for c in unconditional)],
        "conditional_rules": [_entry(c) for c in conditional],
        "adversarial_generators": [{g.name: g.doc} for g in generators(names) if g.pattern != "*"],
        "evidence": {
            "calls_built_from": study.built_from,
            "calls_held_out": study.validated_on,
            "calls_made_to_refute": study.refutations_tried,
            "calls_that_disagree": len(study.disagreed),
            "calls_skipped": study.sweep.skipped,
            "experiments": sum(j.found.experiments for j in study.observations),
            "cpu_seconds": round(study.seconds, 1),
        },
    }
    if rule is None:
        document["rows"] = {
            f"{[tuple(t.shape) for t in j.call.tensors]} {_rest(j)}": [str(r) for r in j.found.rows]
            for j in study.observations
        }
    else:
        document["clauses"] = [str(c) for c in rule.clauses]
    return document


def _plain(values: Sequence[Any]) -> list[Any]:
    """Values as YAML has them, numbers as numbers, in order; as text where it has none such."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value if value is None or type(value) in (bool, int, float, str) else str(value)

    def order(value: Any) -> tuple[bool, str, float, str]:
        number = isinstance(value, int | float)
        return not number, type(value).__name__ if not number else "", value if number else 0.0, str(value)

    return sorted(map(plain, values), key=order)


def yaml_report(studies: list[Study]) -> str:
    """The reports on an operator's overloads as YAML documents."""
    return yaml.safe_dump_all(
        [report(s) for s in studies], sort_keys=False, width=120, allow_unicode=True, default_flow_style=None
    )


def _all_replicated(study: Study) -> dict[str, Any]:
    if not study.observations:
        return {"inputs": [], "output": []}
    found = study.observations[0]
    return {"inputs": ["R"] * len(found.call.tensors), "output": ["R"] * len(found.outputs)}


def _entry(clause: Clause) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "inputs": [str(t) for t in clause.inputs],
        "output": [str(t) for t in clause.outputs],
    }
    if clause.when:
        entry["condition"] = " and ".join(clause.when)
    if clause.shards != "any":
        entry["shards"] = clause.shards
    if clause.local:
        entry["local_form"] = clause.local
    entry["justification"] = clause.reason
    return entry


def _depends_on_dim(clause: Clause) -> bool:
    return any(t.kind == "S" for t in (*clause.inputs, *clause.outputs)) and bool(clause.when)


def _rest(judged: Any) -> str:
    return str([leaf for _, leaf in judged.call.leaves() if not is_tensor(leaf)])


def _analysis(study: Study) -> dict[str, Any]:
    """What the clauses show: how dims are used, and in what the operator is linear or monotone."""
    clauses = study.rule.single_clauses if study.rule is not None else ()
    arguments = {name for o in study.observations for name, _ in o.call.leaves()}
    dims = [name for o in study.observations[:1] for name in facts(o.call.op).dims if name in arguments]
    contracted = any(c.reason.startswith("contracted") for c in clauses)
    conditions = {atom for c in clauses for atom in c.when if " d" in f" {atom}"}
    moves = {c.inputs[0].inside for c in clauses if len(c.inputs) == 1 and c.inputs[0].kind == "P"}
    if {"sum", "avg", "max", "min"} <= moves:
        category = "data movement"
    elif contracted and len({t.inside for c in clauses for t in c.inputs if t.kind == "S"}) > 1:
        category = "contraction"
    elif contracted:
        category = "reduction"
    elif conditions:
        category = "cross-dim operation"
    else:
        category = "elementwise" if clauses else "none of the known kinds"
    return {
        "category": category,
        "dim_parameter": next(iter(dims), None),
        "mathematical_properties": properties(study),
    }
