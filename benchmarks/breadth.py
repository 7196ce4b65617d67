"""How many architectures work unmodified: tiny models of transformers, timm, diffusers, torchvision, peft and torch.

Each is trained for a step on a mesh of 2x2 simulated ranks, by the cheapest plan and by two random ones, and compared
with itself unsharded; its state before capture, after it and after verification is compared as well. Every model has a
process of its own, with a limit of CPU time, and, where several run at a time, a core of its own. What was found is
kept in one JSON file, model by model, and a second run of the command goes on with what is left.

    python benchmarks/breadth.py                            half an hour of them, one after the other
    python benchmarks/breadth.py --jobs 16 --minutes 9      all of them, on a machine with 16 cores
    python benchmarks/breadth.py --only LSTM GRU            those whose names contain one of these
    python benchmarks/breadth.py --sample 30                thirty of them, by chance
    python benchmarks/breadth.py --again "timed out" wrong  those that ended so before
    python benchmarks/breadth.py --report                   the table of what is kept

A library that is not installed is skipped. Those besides transformers may lie in a folder on PYTHONPATH, as Python
files alone, since their compiled operators are not used; Pillow must be one for the running Python:

    pip install --no-deps --target FOLDER timm diffusers torchvision peft accelerate psutil requests urllib3 idna \\
        certifi charset_normalizer importlib_metadata zipp pillow
"""

import argparse
import json
import os
import random
import re
import resource
import select
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from architectures import Built, architectures
from record import Record, takes_json

from shardwise.errors import UsageError
from shardwise.graph import capture
from shardwise.planning import Offers, plan_graph, random_plan
from shardwise.solver import prepare
from shardwise.verification import verify

MESH = "a=2,b=2"
PLANS = 3
OUTCOMES = ("verified", "refused", "wrong", "not compared", "changed", "crashed", "timed out")


def examine(build: Callable[[], Built]) -> Iterator[dict[str, Any]]:
    """What becomes of one model, piece by piece; the last piece has the outcome, and why."""
    torch.manual_seed(0)
    yield {"stage": "building"}
    try:
        model, args, kwargs = build()
        _train(model, args, kwargs)
    except Exception as error:
        yield {"outcome": "does not run", "why": f"{type(error).__name__}: {error}"[:300]}
        return
    before = state(model)
    try:
        yield from _planned(model, args, kwargs, before)
    except UsageError as error:
        yield {"outcome": "refused", "why": str(error), "unchanged": not difference(before, state(model))}
    except Exception as error:
        yield {"outcome": "crashed", "why": f"{type(error).__name__}: {error}"[:300]}


def _planned(model: Any, args: Any, kwargs: Any, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = _cpu_seconds()
    yield {"stage": "capturing"}
    graph = capture(model, args, kwargs)
    yield {"captured": True, "nodes": len(graph.nodes), "capture CPU s": _cpu_seconds() - begun}
    if changed := difference(before, state(model)):
        yield {"outcome": "changed", "why": changed, "unchanged": False}
        return
    yield {"stage": "planning"}
    clock, captured = time.perf_counter(), _cpu_seconds()
    plan = plan_graph(graph, mesh=MESH)
    yield {"planning CPU s": _cpu_seconds() - captured, "planning s": time.perf_counter() - clock}
    yield {"stage": "verifying"}
    offers = Offers(graph)
    plans = [plan, *(random_plan(graph, mesh=MESH, seed=seed, offers=offers) for seed in range(PLANS - 1))]
    for number, each in enumerate(plans, 1):
        report = verify(model, args, kwargs, plan=each, only_plan=True)
        if not report.ok:
            kind = "not compared" if report.verdict.kind == "not compared" else "wrong"
            yield {"outcome": kind, "why": report.verdict.reason}
            return
        yield {"verified plans": number}
    changed = difference(before, state(model))
    yield {"unchanged": not changed, "outcome": "changed" if changed else "verified", "why": changed}


def _cpu_seconds() -> float:
    """Of this process and those that it started."""
    return sum(os.times()[:4])


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


@dataclass
class Running:
    """A model that is examined in a process of its own."""

    name: str
    process: int
    pipe: int
    seconds: int
    core: int | None
    begun: float = field(default_factory=time.monotonic)
    text: bytes = b""

    @classmethod
    def start(cls, name: str, build: Callable[[], Built], seconds: int, core: int | None) -> "Running":
        receiving, sending = os.pipe()
        process = os.fork()
        if process:
            os.close(sending)
            return cls(name, process, receiving, seconds, core)
        os.close(receiving)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        if core is not None:
            os.sched_setaffinity(0, {core})
        with os.fdopen(sending, "w", buffering=1) as pipe:
            for piece in examine(build):
                print(json.dumps(piece), file=pipe)
        os._exit(0)

    def ended(self) -> bool:
        """Read what has come. True at the end."""
        piece = os.read(self.pipe, 1 << 16)
        self.text += piece
        return not piece

    def outcome(self) -> dict[str, Any]:
        os.close(self.pipe)
        _, status = os.waitpid(self.process, 0)
        told: dict[str, Any] = {"captured": False, "verified plans": 0}
        for line in self.text.decode().splitlines():
            told |= json.loads(line)
        stage = told.pop("stage", "starting")
        if "outcome" not in told:
            late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
            told["outcome"] = "timed out" if late else "crashed"
            told["why"] = f"{stage} after {self.seconds} CPU s" if late else f"status {status} while {stage}"
        return {**told, "seconds": time.monotonic() - self.begun}


class Kept:
    """Outcomes by model, in a JSON file that is written after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, told: dict[str, Any]) -> None:
        self.outcomes[name] = told
        written = self.path.with_suffix(".part")
        written.write_text(json.dumps(self.outcomes, indent=1, sort_keys=True))
        written.replace(self.path)


def run_all(builds: list[tuple[str, Callable[[], Built]]], kept: Kept, options: argparse.Namespace) -> None:
    """Examine models in so many processes at a time, until the minutes are over."""
    begun, waiting, running = time.monotonic(), builds[::-1], dict[int, Running]()
    cores = sorted(os.sched_getaffinity(0))
    free = [cores[n % len(cores)] for n in range(options.jobs)] if options.jobs > 1 else [None]
    while waiting or running:
        while waiting and free:
            if time.monotonic() - begun > 60 * options.minutes:
                waiting.clear()
                break
            started = Running.start(*waiting.pop(), options.timeout, free.pop())
            running[started.pipe] = started
        for pipe in select.select(list(running), [], [])[0] if running else ():
            if running[pipe].ended():
                ended = running.pop(pipe)
                told = ended.outcome()
                free.append(ended.core)
                kept.add(ended.name, told)
                print(f"{told['seconds']:5.0f} s", ended.name, told["outcome"], told["why"], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    where = Path("build/breadth.json")
    parser.add_argument("--kept", type=Path, default=where, metavar="FILE", help="outcomes, by model")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="models whose names contain one of these"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="so many models, by chance")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument(
        "--timeout", type=int, default=150, metavar="SECONDS", help="of CPU time, of each model"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="begin no model after these")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument(
        "--again", nargs="*", default=[], metavar="OUTCOME", help="run models of these outcomes again"
    )
    takes_json(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = Kept(options.kept)
    builds, skipped = architectures()
    # In an order that mixes libraries: a run that is cut short is a sample.
    order = sorted(builds, key=lambda name: crc32(name.encode()))
    if options.sample is not None:
        order = random.Random(options.seed).sample(sorted(builds), options.sample)
    asked = [name for name in order if any(text in name for text in options.only)]
    chosen = [] if options.report else asked
    left = [n for n in chosen if n not in kept.outcomes or kept.outcomes[n]["outcome"] in options.again]
    if left:
        prepare()  # once for all processes
    run_all([(name, builds[name]) for name in left], kept, options)
    record = Record(__doc__, options.json)
    for library, why in skipped.items():
        record.say(f"Models of {library} are left out: {why}.")
    told = {name: each for name, each in kept.outcomes.items() if any(text in name for text in options.only)}
    report(told, len(builds), record, options.timeout)


def report(told: dict[str, dict[str, Any]], known: int, record: Record, seconds: int) -> None:
    ran = {name: each for name, each in told.items() if each["outcome"] != "does not run"}
    sheet = record.sheet("by library", {"": "", "models": "{:d}"} | dict.fromkeys(OUTCOMES, "{:d}"))
    for library in sorted({name.split()[0] for name in ran}):
        count = Counter(each["outcome"] for name, each in ran.items() if name.split()[0] == library)
        sheet.add(library, count.total(), *(count[outcome] for outcome in OUTCOMES))
    others = record.sheet("not verified", {"model": "", "outcome": "", "why": ""}, wide=40)
    for name, each in sorted(ran.items()):
        if each["outcome"] != "verified":
            others.add(
                name, each["outcome"], re.sub(r"\S*/(?:site-packages/|(?=benchmarks/))", "", each["why"])
            )
    verified = sum(each["outcome"] == "verified" for each in ran.values())
    record.say(
        f"{len(told)} of {known} models were run, in one or more runs of the command, each for at most {seconds} CPU "
        f"s; {len(told) - len(ran)} of them do not run unsharded."
    )
    record.say(f"{verified} of {len(ran)} models that train unsharded are captured and verified.")
    kept = sum(each.get("unchanged", False) for each in ran.values())
    record.say(f"{kept} of {sum('unchanged' in each for each in ran.values())} are unchanged afterwards.")
    times = sorted((each["planning CPU s"], name) for name, each in ran.items() if "planning CPU s" in each)
    if times:
        record.say(
            f"Planning after capture: median {times[len(times) // 2][0]:.1f} CPU s, "
            f"longest {', '.join(f'{spent:.1f} ({name})' for spent, name in times[:-4:-1])}."
        )


if __name__ == "__main__":
    main()
