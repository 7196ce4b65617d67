"""Random plans of one model on one mesh, each verified against the model."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from shardwise.graph import capture
from shardwise.planning import Offers, random_plan
from shardwise.verification import Report, verify

from .models import MODELS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Built = tuple[Any, tuple[Any, ...], dict[str, Any]]
MESHES = ("a=2,b=2", "a=3,b=2", "a=2,b=2,c=2")


def models() -> Mapping[str, Callable[[], Built]]:
    """Those of the tests, and small ones of many architectures as benchmarks have them."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from architectures import architectures
    finally:
        sys.path.remove(str(BENCHMARKS))
    return {**MODELS, **architectures()[0]}


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
    module, args, kwargs = (MODELS[model] if model in MODELS else models()[model])()
    graph = capture(module, args, kwargs)
    offers = Offers(graph)
    for mesh in meshes:
        for seed in seeds:
            plan = random_plan(graph, mesh=mesh, seed=seed, offers=offers, replicated=0.05)
            plan = replace(plan, ahead=ahead)
            begun = sum(move.begun for move in plan.schedule.moves)
            report = verify(module, args, kwargs, plan=plan, only_plan=True)
            yield Verified(model, mesh, seed, begun, report)
