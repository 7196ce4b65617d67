"""Valid documents of each kind, small, and what is done with them."""

import io
import json
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import shardwise as sw
from shardwise.calls import Call
from shardwise.cli import run
from shardwise.files import read_text
from shardwise.graph import Graph
from shardwise.planning import Discovered
from shardwise.rules import Book, Entry, Rule, book
from shardwise.rules import write as write_book
from shardwise.solver import Problem

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Kind:
    """A kind of document: a valid one, its text form, what is done with a file, and the places (a pattern) where it
    may say something else that is valid, and so lead to another result."""

    name: str
    document: Any
    use: Callable[[Path], Any]
    free: str = "nothing"
    dump: Callable[[Any], str] = json.dumps

    def may_say(self, place: str) -> bool:
        return re.fullmatch(self.free, place) is not None


def command(*arguments: object) -> Any:
    """What a command prints under --json; a `UsageError` where it ends with status 2."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = run([*map(str, arguments), "--json"])
    if status == 2:
        raise sw.UsageError(err.getvalue().strip().removeprefix("shardwise: "))
    return json.loads(out.getvalue())


@pytest.fixture(scope="session")
def kinds(tmp_path_factory) -> dict[str, Kind]:
    folder = tmp_path_factory.mktemp("valid")
    made = [*_of_models(folder), *_of_tables(), *_of_rules(folder)]
    return {kind.name: kind for kind in made}


def _of_models(folder: Path) -> list[Kind]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    graph = sw.capture(model, (torch.rand(8, 8),))
    plan = sw.plan(
        model, (torch.rand(8, 8),), mesh="dp=2,tp=2", cluster="laptop", pin={"0.weight": {"tp": "S(0)"}}
    )
    small = sw.capture(nn.Linear(8, 4), (torch.rand(8, 8),), training=False)
    small.save(folder / "small.json")

    def planned(file: Path) -> Any:
        if (loaded := Graph.load(file)) == graph:
            return loaded.to_json()
        made = command("plan", file, "--mesh", "d=2", "--cluster", "laptop", "--time-limit", "5")
        return made["graph"], made["choices"]

    def priced(file: Path) -> Any:
        sw.Cluster.of(file)
        return command("plan", folder / "small.json", "--mesh", "d=2", "--cluster", file)["cost"]

    # A graph may be of another program, a cluster another one; a plan must be the one whose costs it states.
    program = r"name|training|inputs\[\](\.(name|target|aliases.*|trainable|role))?|outputs.*"
    program += r"|nodes\[\](\.(name|module|phase|source|autograd|rule|args.*|kwargs.*))?"
    made_for = r"cluster\.(device\.)?name|meshes|choices\..*\[\]"
    made_for += r"|options\.(memory|bound|share_layers|confirmation.*|pins.*|baselines.*)"
    return [
        Kind("graph", graph.to_json(), planned, program),
        Kind(
            "plan",
            json.loads(json.dumps(plan.to_json())),
            lambda file: command("report", file, "--quick"),
            rf"{made_for}|graph\.({program})",
        ),
        Kind("cluster", json.loads(json.dumps(sw.Cluster.preset("h100").to_json())), priced, ".*"),
    ]


def _of_tables() -> list[Kind]:
    problem = Problem.build(
        costs=[[3, 5], [4, 1, 7], [2, 2]],
        usages=[[4, 2], [1, 5, 3], [2, 3]],
        intervals=[[0, 3], [1, 4], [2, 5]],
        edges=[[0, 1], [1, 2]],
        tables=[[0, 3, 1, 2, 0, 5], [1, 0, 0, 4, 2, 2]],
        usage_limit=9,
    )
    samples = json.loads((ROOT / "benchmarks" / "results" / "h200_samples.json").read_text())
    few = [
        sample
        for kind in sorted({s["kind"] for s in samples["samples"]})
        for sample in [s for s in samples["samples"] if s["kind"] == kind][:4]
    ]
    program = json.loads((ROOT / "examples" / "propagate" / "mlp.json").read_text())

    def solved(file: Path) -> Any:
        found = command("solve", file, "--max-iterations", 2, "--workers", 1, "--time-limit", 20)
        return {name: found[name] for name in ("status", "cost", "choices", "peak")}

    return [
        Kind("problem", problem.to_json(), solved, ".*"),
        Kind(
            "samples", {**samples, "samples": few}, lambda file: command("calibrate", "--samples", file), ".*"
        ),
        Kind("program", program, lambda file: command("propagate", file), ".*"),
    ]


def _without_evidence(entry: Entry) -> Entry:
    """An entry without the numbers that no result follows from."""
    return replace(entry, evidence={}, rule=replace(entry.rule, evidence={}))


def _of_rules(folder: Path) -> list[Kind]:
    x = torch.rand(4, 6, 8)
    calls = {"aten._softmax.default": (x, 1, False), "aten.sum.dim_IntList": (x, [1])}
    entries = {name: book().entry(name) for name in calls}
    write_book(folder / "book", entries.values(), "2.13.0", {"torch.sum": ["aten.sum.dim_IntList"]})
    call = Call.of(torch.ops.aten.neg.default, x)
    kept = Discovered(folder, find=lambda call: ([sw.Row.parse("S(0) -> S(0)")], "rows"), here={})
    kept.rows(call)

    def ruled(file: Path) -> Any:
        rule = Rule.from_yaml(read_text(file))
        return replace(rule, evidence={}), [str(row) for row in rule.rows(*calls.get(rule.op, (x,)))]

    def of_book(file: Path, part: str) -> Any:
        """What a book says of which one file is this."""
        own = file.parent / "book"
        shutil.copytree(folder / "book", own, dirs_exist_ok=True)
        (own / part).write_bytes(file.read_bytes())
        read = Book(own)
        found = {name: read.entry(name) for name in calls}
        rows = [str(row) for name, entry in found.items() for row in entry.rule.rows(*calls[name])]
        return read.torch, read.functions, rows, [_without_evidence(entry) for entry in found.values()]

    def cached(file: Path) -> Any:
        again = Discovered(file.parent, find=lambda call: (None, "found anew"), here={})
        again.kept.path.write_bytes(file.read_bytes())
        rows, note = again.rows(call)
        return [str(row) for row in rows or ()], note

    told = r"verdict|reason|clauses.*|constant.*|evidence.*|front|broadcast|no_dims|dims_of"
    entry = yaml.safe_load(str(entries["aten.sum.dim_IntList"]))
    other = str(entries["aten._softmax.default"])
    index = yaml.safe_load((folder / "book" / "index.yaml").read_text())
    return [
        Kind("rule", yaml.safe_load(sw.rule(torch.softmax).to_yaml()), ruled, f"op|{told}", yaml.safe_dump),
        Kind("index", index, lambda file: of_book(file, "index.yaml"), "torch|functions.*", yaml.safe_dump),
        Kind(
            "entry",
            entry,
            lambda file: of_book(file, "s.yaml"),
            told,
            lambda document: f"---\n{other}\n---\n{yaml.safe_dump(document, sort_keys=False)}",
        ),
        Kind("cache", json.loads(kept.kept.path.read_text()), cached),
    ]
