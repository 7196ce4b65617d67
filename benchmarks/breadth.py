"""How many architectures work unmodified: tiny models of transformers, timm, diffusers, torchvision and torch.

Each is trained for a step on a mesh of 2x2 simulated ranks, by the cheapest plan and by two random ones, and compared
with itself unsharded; its state before and after capture is compared as well. Every model has a process of its own.

    python benchmarks/breadth.py                  half an hour of them; the next run goes on with what is left
    python benchmarks/breadth.py --minutes 600    all of them
    python benchmarks/breadth.py --only LSTM      those whose names contain a text
"""

import argparse
import json
import os
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from architectures import Built, architectures
from record import Record, takes_json

from shardwise.errors import UsageError
from shardwise.graph import capture
from shardwise.planning import Offers, plan_graph, random_plan
from shardwise.verification import verify

MESH = "a=2,b=2"
OUTCOMES = ("verified", "refused", "wrong", "not compared", "changed", "crashed", "timed out")


def outcome(build: Callable[[], Built]) -> dict[str, Any]:
    """What becomes of one model: its outcome, why, and the time that capturing and planning took."""
    torch.manual_seed(0)
    try:
        model, args, kwargs = build()
        _train(model, args, kwargs)
    except Exception as error:
        return {"outcome": "does not run", "why": f"{type(error).__name__}: {error}"[:300]}
    before = state(model)
    try:
        begun = time.perf_counter()
        graph = capture(model, args, kwargs)
        captured = time.perf_counter()
        if changed := difference(before, state(model)):
            return {"outcome": "changed", "why": changed}
        plan = plan_graph(graph, mesh=MESH, compare=False)
        planned = time.perf_counter()
        offers = Offers(graph)
        plans = [plan, *(random_plan(graph, mesh=MESH, seed=seed, offers=offers) for seed in range(2))]
        reports = [verify(model, args, kwargs, plan=each, only_plan=True) for each in plans]
    except UsageError as error:
        return {"outcome": "refused", "why": str(error), "changed": difference(before, state(model))}
    made = {"nodes": len(graph.nodes), "capture": captured - begun, "planning": planned - captured}
    for report in reports:
        if not report.ok:
            kind = "not compared" if report.verdict.kind == "not compared" else "wrong"
            return {"outcome": kind, "why": report.verdict.reason, **made}
    return {"outcome": "verified", "why": "", **made}


def _train(model: Any, args: Any, kwargs: Any) -> None:
    """A forward and backward pass of the unsharded model."""
    from torch.utils._pytree import tree_leaves

    made = model(*args, **kwargs)
    leaves = [each for each in tree_leaves(made) if isinstance(each, torch.Tensor) and each.requires_grad]
    sum(each.sum() for each in leaves).backward()
    model.zero_grad()


def state(model: torch.nn.Module) -> dict[str, Any]:
    """Everything of a model that can be compared: tensors by their bytes, hooks and other attributes by identity."""
    found: dict[str, Any] = {"random": torch.get_rng_state().numpy().tobytes()}
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            where = f"{path}.{name}"
            if isinstance(value, dict):
                found |= {f"{where}.{key}": _shown(held) for key, held in value.items()}
            elif isinstance(value, list | tuple | set):
                found[where] = [_shown(held) for held in value]
            else:
                found[where] = _shown(value)
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return id(value), tuple(value.shape), value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    return value if isinstance(value, bool | int | float | str | type(None)) else id(value)


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The names of what is not as it was, or ""."""
    names = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    return ", ".join(sorted(names)[:5])


def alone(build: Callable[[], Built], seconds: int) -> dict[str, Any]:
    """The outcome of one model, in a process of its own."""
    receiving, sending = os.pipe()
    process = os.fork()
    if not process:
        os.close(receiving)
        signal.alarm(seconds)
        try:
            told = outcome(build)
        except Exception as error:
            told = {"outcome": "crashed", "why": f"{type(error).__name__}: {error}"[:300]}
        with os.fdopen(sending, "w") as pipe:
            pipe.write(json.dumps(told))
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        text = pipe.read()
    _, status = os.waitpid(process, 0)
    if text:
        return json.loads(text)
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    return {
        "outcome": "timed out" if late else "crashed",
        "why": f"after {seconds} s" if late else f"status {status}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kept", type=Path, default=Path("build/breadth"), metavar="DIR", help="outcomes, by model"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose names contain this")
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS")
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no model after these")
    parser.add_argument(
        "--again", nargs="*", default=[], metavar="OUTCOME", help="run models of these outcomes again"
    )
    takes_json(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options.kept.mkdir(parents=True, exist_ok=True)
    begun, told = time.monotonic(), {}
    # In an order that mixes libraries: a run that is cut short is a sample.
    for name, build in sorted(architectures().items(), key=lambda item: crc32(item[0].encode())):
        path = options.kept / f"{name.replace(' ', '_').replace(',', '')}.json"
        known = json.loads(path.read_text()) if path.exists() else None
        chosen = options.only in name and (known is None or known["outcome"] in options.again)
        if chosen and time.monotonic() - begun < 60 * options.minutes:
            known = alone(build, options.timeout)
            path.write_text(json.dumps(known))
            print(name, known["outcome"], known["why"], file=sys.stderr, flush=True)
        if known is not None:
            told[name] = known
    report(told, Record(__doc__, options.json), options.timeout)


def report(told: dict[str, dict[str, Any]], record: Record, seconds: int) -> None:
    ran = {name: each for name, each in told.items() if each["outcome"] != "does not run"}
    sheet = record.sheet("by library", {"": "", "models": "{:d}"} | dict.fromkeys(OUTCOMES, "{:d}"))
    for library in sorted({name.split()[0] for name in ran}):
        count = Counter(each["outcome"] for name, each in ran.items() if name.split()[0] == library)
        sheet.add(library, count.total(), *(count[outcome] for outcome in OUTCOMES))
    others = record.sheet("not verified", {"model": "", "outcome": "", "why": ""}, wide=40)
    for name, each in sorted(ran.items()):
        if each["outcome"] != "verified":
            others.add(name, each["outcome"], re.sub(r"\S*/site-packages/", "", each["why"]))
    times = sorted(each["planning"] for each in ran.values() if "planning" in each)
    verified = sum(each["outcome"] == "verified" for each in ran.values())
    record.say(
        f"{len(told)} of {len(architectures())} models were run, in one or more runs of the command, "
        f"each for at most {seconds} s."
    )
    record.say(f"{verified} of {len(ran)} models that train unsharded are captured and verified.")
    if times:
        record.say(f"planning: median {times[len(times) // 2]:.1f} s, longest {times[-1]:.1f} s")


if __name__ == "__main__":
    main()
