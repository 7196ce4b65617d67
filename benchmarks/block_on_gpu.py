"""Predictions compared with measurements on one GPU: time and peak memory of transformer blocks, forward and backward.

    python benchmarks/block_on_gpu.py capture out/blocks            here: capture every shape
    python benchmarks/block_on_gpu.py run out/blocks measured.json  on the GPU
    python benchmarks/block_on_gpu.py compare out/blocks measured.json [--cluster h200]    here: the table
    python benchmarks/block_on_gpu.py        the table, from the measurements in results/

The captured graph is measured as the planner prices it: its operators one after another, each tensor that they make
freed after its last use. The module in eager mode is measured too, and the results of both are compared. `shardwise
calibrate` measures none of these shapes.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from blocks import Shape
from record import Record, takes_json
from torch import Tensor, nn

DTYPE = torch.bfloat16
MEASURED = Path(__file__).parent / "results" / "h200_blocks.json"

SHAPES = (
    Shape("llama", batch=2, positions=4096, width=4096, heads=32, groups=8, inner=14336),
    Shape("llama", batch=8, positions=1024, width=2560, heads=20, groups=20, inner=6912),
    Shape("llama", batch=1, positions=6144, width=5120, heads=40, groups=8, inner=13824),
    Shape("llama", batch=3, positions=2560, width=1536, heads=24, groups=6, inner=4224),
    Shape("gpt", batch=4, positions=2048, width=3072, heads=24, groups=24, inner=12288),
    Shape("gpt", batch=16, positions=512, width=1600, heads=25, groups=25, inner=6400),
    Shape("gpt", batch=1, positions=12288, width=1280, heads=20, groups=20, inner=5120),
)
# Used kernel by kernel to develop the prices; not part of the reported results.
STUDIED = (
    Shape("llama", batch=4, positions=2048, width=3072, heads=24, groups=8, inner=8192),
    Shape("gpt", batch=8, positions=1024, width=2048, heads=32, groups=32, inner=8192),
    Shape("llama", batch=2, positions=1536, width=2048, heads=16, groups=16, inner=5632),
)
TINY = (
    Shape("llama", batch=2, positions=16, width=64, heads=4, groups=2, inner=96),
    Shape("gpt", batch=2, positions=16, width=64, heads=4, groups=4, inner=96),
)
SETS = {"claimed": SHAPES, "studied": STUDIED, "tiny": TINY}


def capture_all(folder: Path, names: list[str]) -> None:
    from shardwise import capture

    folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(DTYPE)
    for name in names:
        for shape in SETS[name]:
            with torch.device("meta"):
                model, x = shape.build(), shape.input("meta")
            capture(model, (x,), {}).save(folder / f"{shape.name}.json")


def run_all(folder: Path, out: Path, names: list[str], device: str) -> None:
    import_module("shardwise.graph")  # registers `shardwise::attention` and its kernels
    torch.set_default_dtype(DTYPE)
    rows = []
    for name in names:
        for shape in SETS[name]:
            row = {"set": name, "shape": shape.name, **_measured(shape, folder, device)}
            rows.append(row)
            print({k: v for k, v in row.items() if k != "nodes"}, flush=True)
            out.write_text(json.dumps({"device": _name(device), "torch": torch.__version__, "rows": rows}))


def _measured(shape: Shape, folder: Path, device: str) -> dict[str, Any]:
    document = json.loads((folder / f"{shape.name}.json").read_text())
    torch.manual_seed(0)
    with torch.device(device):
        module = shape.build()
    x = shape.input(device)
    tangent = torch.randn_like(x)
    program = Program(document, device)

    def given() -> dict[Key, Tensor]:
        return program.given(module, x, tangent)

    def eager() -> None:
        module(x).backward(tangent)
        _forget_gradients(module, x)

    error = _disagreement(program, given(), module, x, tangent)
    _forget_gradients(module, x)
    timer = Timer(device)
    peaks = {"peak": timer.peak(lambda: program.run(given())), "eager_peak": timer.peak(eager)}
    ready = given()
    return {
        "seconds": timer.seconds(lambda: program.run(dict(ready))),
        "host": timer.host(lambda: program.run(dict(ready))),
        "eager_seconds": timer.seconds(eager),
        **peaks,
        "error": error,
        "nodes": program.profile(ready, timer),
    }


Key = tuple[str, int]  # a node and which of its outputs


def compare_all(folder: Path, measured: Path, cluster: str, record: Record) -> None:
    """The table of predictions and measurements on one device."""
    from shardwise import Graph

    document = json.loads(measured.read_text())
    columns = {"block": "", "predicted": "{:.2f} ms", "measured": "{:.2f} ms", "error": "{:+.1%}"}
    columns |= {"eager": "{:.2f} ms", "peak predicted": "{:.0f} MB", "peak measured": "{:.0f} MB"}
    columns |= {"error of peak": "{:+.1%}", "eager peak": "{:.0f} MB"}
    where = f"Measured on {document['device']} with torch {document['torch'].partition('+')[0]}"
    table = record.sheet(f"{where}; predicted with cluster {cluster}", columns, wide=36)
    times, peaks = [], []
    for row in document["rows"]:
        graph = Graph.load(folder / f"{row['shape']}.json")
        cost = on_one_device(graph, cluster).cost
        times.append(cost.seconds / row["seconds"] - 1)
        peaks.append(cost.peak / row["peak"] - 1)
        table.add(
            *(row["shape"], cost.seconds * 1e3, row["seconds"] * 1e3, times[-1], row["eager_seconds"] * 1e3),
            *(cost.peak / 1e6, row["peak"] / 1e6, peaks[-1], row["eager_peak"] / 1e6),
        )
    record.say(f"Largest error: time {max(map(abs, times)):.1%}, peak memory {max(map(abs, peaks)):.1%}.")


def on_one_device(graph: Any, cluster: str) -> Any:
    """The only plan on a mesh of one device: everything replicated."""
    from shardwise import Cluster, Mesh, Plan, Row
    from shardwise.expansion import Choice
    from shardwise.layout import Layout
    from shardwise.placements import parse_placement

    mesh, whole = Mesh.parse("d=1"), parse_placement("R")
    layout = Layout(mesh, (whole,))
    choices = {
        node.name: Choice(
            mesh,
            (Row((whole,) * len(node.inputs), tuple(None if t is None else whole for t in node.outputs)),),
        )
        for node in graph.nodes
    }
    inputs = {entry.name: layout for entry in graph.inputs}
    outputs = tuple(None if output.value is None else layout for output in graph.outputs)
    return Plan(graph, mesh, Cluster.of(cluster), inputs, choices, (), outputs, "none")


class Program:
    """A captured graph's JSON, run operator by operator."""

    def __init__(self, document: dict[str, Any], device: str) -> None:
        self.document, self.device = document, device
        self.nodes = [
            (
                node["name"],
                _overload(node["op"]),
                self._argument(node["args"]),
                {key: self._argument(value) for key, value in node["kwargs"].items()},
            )
            for node in document["nodes"]
        ]
        self.results = {
            entry["target"]: _key(entry["value"])
            for entry in document["outputs"]
            if entry["value"] is not None
        }
        last: dict[Key, int] = {}
        for place, node in enumerate(document["nodes"]):
            last.update({(node["name"], i): place for i in range(len(node["outputs"]))})
            last.update(dict.fromkeys(_keys((node["args"], node["kwargs"])), place))
        self.dead: list[list[Key]] = [[] for _ in self.nodes]
        for key, place in last.items():
            if key not in self.results.values():
                self.dead[place].append(key)

    def given(self, module: nn.Module, x: Tensor, tangent: Tensor) -> dict[Key, Tensor]:
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        values = {}
        for entry in self.document["inputs"]:
            named = {"user_input": x, "tangent": tangent}
            value = named[entry["role"]] if entry["role"] in named else state[entry["target"]]
            values[entry["name"], 0] = value.detach()
        return values

    def run(self, values: dict[Key, Any], before: Callable[[str], None] | None = None) -> dict[str, Tensor]:
        """The output and the gradients by name. Empties `values`."""
        with torch.no_grad():
            for place, (name, op, args, kwargs) in enumerate(self.nodes):
                if before is not None:
                    before(name)
                made = op(*_filled(args, values), **_filled(kwargs, values))
                for i, value in enumerate([made] if isinstance(made, Tensor) else made):
                    values[name, i] = value
                del made
                value = None
                for gone in self.dead[place]:
                    del values[gone]
        return {target: values[key] for target, key in self.results.items()}

    def profile(self, values: dict[Key, Any], timer: "Timer") -> dict[str, float]:
        """Seconds of each operator, the median over a few runs."""
        rounds = [timer.marks(lambda before: self.run(dict(values), before)) for _ in range(5)]
        return {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}

    def _argument(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._argument(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "%" in value:
            return Ref(_key(value))
        [(kind, text)] = value.items()
        if kind == "device":
            return torch.device(self.device)
        return float(text) if kind == "float" else getattr(torch, text)


@dataclass(frozen=True)
class Ref:
    key: Key


class Timer:
    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def seconds(self, call: Callable[[], Any], rounds: int = 15) -> float:
        """The median after warm-up, with runs back to back as in training."""
        for _ in range(3):
            call()
        if not self.cuda:
            return self.host(call)
        return statistics.median(self._rounds(call, rounds))

    def in_turns(self, *calls: Callable[[], Any], turns: int = 4, rounds: int = 4) -> list[float]:
        """The same of each of several, which take turns: a device that warms up slows all of them."""
        found: list[list[float]] = [[] for _ in calls]
        for _ in range(turns):
            for seconds, call in zip(found, calls, strict=True):
                call()
                seconds += self._rounds(call, rounds) if self.cuda else [self.host(call)]
        return [statistics.median(seconds) for seconds in found]

    def _rounds(self, call: Callable[[], Any], rounds: int) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]

    def host(self, call: Callable[[], Any]) -> float:
        """The host time to launch the kernels: irrelevant if it is below the device time."""
        self.wait()
        begun = time.perf_counter()
        call()
        seconds = time.perf_counter() - begun
        self.wait()
        return seconds

    def peak(self, call: Callable[[], Any]) -> int:
        if not self.cuda:
            return 0
        call()
        self.wait()
        torch._C._cuda_clearCublasWorkspaces()  # each thread that called cuBLAS keeps one
        torch.cuda.reset_peak_memory_stats()
        call()
        self.wait()
        return torch.cuda.max_memory_allocated()

    def marks(self, run: Callable[[Callable[[str], None]], Any]) -> dict[str, float]:
        """Seconds between the calls that `run` makes of its argument, by name."""
        if not self.cuda:
            run(lambda name: None)
            return {}
        events: dict[str, Any] = {}

        def before(name: str) -> None:
            events[name] = torch.cuda.Event(enable_timing=True)
            events[name].record()

        self.wait()
        torch.cuda._sleep(100_000_000)  # some 50 ms: all kernels are waiting when the first one starts
        run(before)
        before("end")
        self.wait()
        names = list(events)
        return {a: events[a].elapsed_time(events[b]) / 1e3 for a, b in itertools.pairwise(names)}

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


def _disagreement(
    program: Program, values: dict[Key, Tensor], module: nn.Module, x: Tensor, tangent: Tensor
) -> float:
    """The largest difference between the graph's results and the module's, relative to their magnitude."""
    found = program.run(values)
    output = module(x)
    output.backward(tangent)
    wanted = {"output": output, "x": x.grad, **{name: p.grad for name, p in module.named_parameters()}}
    assert set(found) == set(wanted)
    apart = [
        (found[name].double() - wanted[name].detach().double()).norm() / wanted[name].detach().double().norm()
        for name in found
    ]
    return float(max(apart))


def _forget_gradients(module: nn.Module, x: Tensor) -> None:
    x.grad = None
    module.zero_grad(set_to_none=True)


def _filled(value: Any, values: dict[Key, Any]) -> Any:
    if isinstance(value, Ref):
        return values[value.key]
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return value


def _key(document: dict[str, Any]) -> Key:
    return document["%"], document.get("output", 0)


def _keys(document: Any) -> list[Key]:
    """The tensors in the arguments of a node."""
    if isinstance(document, dict) and "%" in document:
        return [_key(document)]
    if isinstance(document, dict):
        document = list(document.values())
    return [key for item in document for key in _keys(item)] if isinstance(document, list | tuple) else []


def _overload(name: str) -> Any:
    namespace, packet, which = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which)


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=["capture", "run", "compare", "again"], nargs="?", default="again")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--cluster", default="h200")
    parser.add_argument("--sets", default="claimed", help="claimed, studied, tiny; several with commas")
    takes_json(parser)
    given = parser.parse_args()
    record = Record(__doc__, given.json)
    names = given.sets.split(",")
    if given.command == "capture":
        capture_all(given.paths[0], names)
    elif given.command == "run":
        run_all(given.paths[0], given.paths[1], names, given.device)
    elif given.command == "compare":
        compare_all(given.paths[0], given.paths[1], given.cluster, record)
    else:
        with tempfile.TemporaryDirectory() as folder:
            capture_all(Path(folder), names)
            torch.set_default_dtype(torch.float32)
            compare_all(Path(folder), MEASURED, given.cluster, record)


if __name__ == "__main__":
    main()
