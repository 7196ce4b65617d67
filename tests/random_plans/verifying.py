"""Random plans of one model on one mesh, each verified against the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from shardwise.graph import capture
from shardwise.planning import Offers, random_plan
from shardwise.verification import Report, verify

from .models import MODELS

MESHES = ("a=2,b=2", "a=3,b=2", "a=2,b=2,c=2")


@dataclass(frozen=True)
class Verified:
    model: str
    mesh: str
    seed: int
    begun: int  # moves that run beside calls
    report: Report


def verified(
    model: str,
    meshes: Sequence[str] = MESHES,
    seeds: Sequence[int] = range(20),
    ahead: int | None = None,
) -> Iterator[Verified]:
    """A random plan for each mesh and seed, verified, with `ahead` bytes of collectives under way beside calls."""
    torch.manual_seed(0)
    module, args, kwargs = MODELS[model]()
    graph = capture(module, args, kwargs)
    offers = Offers(graph)
    for mesh in meshes:
        for seed in seeds:
            plan = random_plan(graph, mesh=mesh, seed=seed, offers=offers, replicated=0.05)
            plan = replace(plan, ahead=ahead)
            begun = sum(move.begun for move in plan.schedule.moves)
            report = verify(module, args, kwargs, plan=plan, only_plan=True)
            yield Verified(model, mesh, seed, begun, report)
