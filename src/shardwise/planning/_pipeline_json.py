"""The JSON form of a pipeline: the plans of its stages, each as a plan's own form, and how they belong together."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..documents import Field
from ..dtensor import SCHEDULES, stage_ranks
from ..errors import UsageError
from ..files import path_of, read_document, write_text
from ..mesh import Cluster, Mesh
from ._candidates import read_candidates
from ._json import read_plan
from ._json import to_json as plan_to_json
from ._pipeline import AXIS, Pipeline, inner_mesh
from ._plan import Plan

FORMAT = "shardwise.pipeline/1"


def to_json(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": pipeline.name,
        "mesh": str(pipeline.mesh),
        "cluster": pipeline.cluster.to_json(),
        "schedule": pipeline.schedule,
        "micro_batches": pipeline.micro_batches,
        "cuts": list(pipeline.cuts),
        "memory": pipeline.memory,
        "bound": pipeline.bound,
        "candidates": [candidate.to_json() for candidate in pipeline.candidates],
        "stages": [plan_to_json(plan) for plan in pipeline.stages],
    }


def is_pipeline(document: Any) -> bool:
    """True if a JSON document is that of a pipeline."""
    return isinstance(document, dict) and document.get("format") == FORMAT


def from_json(document: Any) -> Pipeline:
    if not is_pipeline(document):
        raise UsageError(f"this is not a pipeline: its 'format' is not {FORMAT!r}")
    field = Field(document)
    names = (
        "format",
        "name",
        "mesh",
        "cluster",
        "schedule",
        "micro_batches",
        "cuts",
        "memory",
        "bound",
        "stages",
    )
    fields = field.object(names, ("candidates",))
    mesh = fields["mesh"].parsed(Mesh.parse)
    if AXIS not in mesh:
        raise fields["mesh"].expected(f"a mesh with the axis {AXIS}")
    stages = tuple(read_plan(stage) for stage in fields["stages"].items())
    cuts = tuple(cut.integer(least=0) for cut in fields["cuts"].items())
    if len(cuts) != len(stages) + 1 or cuts[0] != 0 or any(a >= b for a, b in pairwise(cuts)):
        raise fields["cuts"].expected(f"{len(stages) + 1} growing numbers that begin with 0")
    for stage, plan in zip(fields["stages"].items(), stages, strict=True):
        if plan.mesh != inner_mesh(mesh):
            raise stage.expected(f"a plan on mesh {inner_mesh(mesh)}")
    schedule = fields["schedule"].one_of(SCHEDULES)
    with fields["stages"].checked():
        stage_ranks(schedule, mesh[AXIS], len(stages))
        require_joined(stages)
    return Pipeline(
        fields["name"].text(),
        mesh,
        Cluster.read(fields["cluster"]),
        schedule,
        fields["micro_batches"].integer(least=1),
        cuts,
        stages,
        fields["memory"].optional(lambda memory: memory.integer(least=0)),
        fields["bound"].optional(Field.number),
        read_candidates(fields["candidates"]) if "candidates" in fields else (),
    )


def require_joined(stages: tuple[Plan, ...]) -> None:
    """Refuse stages of which one does not take what the one before it gives."""
    for number, (stage, after) in enumerate(pairwise(stages)):
        pairs = zip(stage.graph.outputs, stage.outputs, strict=True)
        given = {output.target: layout for output, layout in pairs if output.role == "user_output"}
        taken = {
            e.target: after.inputs[e.name] for e in after.graph.with_role("user_input") if e.target in given
        }
        if given != taken:
            raise UsageError(f"stage {number + 1} does not take what stage {number} gives, as it gives it")


def save(pipeline: Pipeline, path: Path) -> None:
    write_text(path, json.dumps(to_json(pipeline)) + "\n")


def load(path: Path) -> Pipeline:
    return read_document(path, from_json)


def load_plan(path: str | Path) -> Plan | Pipeline:
    """A plan or a pipeline from a file."""
    return read_document(
        path_of(path),
        lambda document: from_json(document) if is_pipeline(document) else Plan.from_json(document),
    )
