"""Propagation compared with expected shardings, and its speed on transformers of growing depth.

    python benchmarks/propagation.py FILE...

reads files in the case format of `shardwise propagate` and prints, for each, `matched N of M` with every
mismatch (with one sweep per stage, as in Shardy); without files it reads `shardy/tests.jsonl.gz` and
`shardy/fuzz.jsonl.gz` from the directory SHARDWISE_DATA. Then it measures the CPU time (one thread) to propagate
training steps of 8, 16, 32 and 64 layers and random graphs of up to 20,000 operations: both grow linearly.
"""

import argparse
import gc
import os
import sys
import time
from pathlib import Path
from random import Random

from record import Record, Sheet, takes_json

from shardwise.propagation import Program, level_of, mismatches, program_of, propagate, read_cases


def match(path: Path, table: Sheet) -> bool:
    total = at_fixed_point = 0
    wrong = []
    for case in read_cases(path):
        total += 1
        program, level = program_of(case), level_of(case)
        differing = mismatches(case, propagate(program, level=level, sweeps=1))
        if differing:
            wrong.append((case, differing))
        at_fixed_point += not mismatches(case, propagate(program, level=level))
    table.add(path.name, total, total - len(wrong), at_fixed_point)
    for case, lines in wrong:
        print(f"  {case.get('id')} ({level_of(case)})")
        for line in lines:
            print(f"    {line}")
    return not wrong


def transformer(layers: int, mesh: str = "dp=4,tp=8") -> Program:
    """A training step of a decoder: forward, backward and update, about 280 operations a layer."""
    program = Program(mesh)
    tokens, width, heads, size, hidden = 64, 512, 16, 32, 2048
    x = program.input("x", (8, tokens, width), "[{dp}, {}, {}]")
    saved = []
    for layer in range(layers):
        x, tape = _layer(program, x, f"l{layer}", (tokens, width, heads, size, hidden))
        saved.append(tape)
    program.result(x)
    gradient = program.op("... -> ...", [x], op="loss_backward")
    for tape in reversed(saved):
        gradient = _backward(program, gradient, tape)
    program.result(gradient)
    return program


def _layer(
    program: Program, x: str, name: str, sizes: tuple[int, int, int, int, int]
) -> tuple[str, list[tuple[str, str, str]]]:
    tokens, width, heads, size, hidden = sizes
    tape: list[tuple[str, str, str]] = []

    def elementwise(*inputs: str, op: str = "elementwise") -> str:
        return program.op(", ".join(["..."] * len(inputs)) + " -> ...", inputs, op=op)

    def linear(x: str, weight: str) -> str:
        tape.append(("linear", x, weight))
        return program.op("... m k, k n -> ... m n", [x, weight], op="matmul")

    def norm(x: str) -> str:
        square = elementwise(x, x, op="mul")
        mean = program.op("... d -> ... reduction={d}", [square], op="sum")
        spread = program.op("b t -> b t d", [mean], shape=program.values[x].shape, op="broadcast")
        for _ in range(3):
            spread = elementwise(spread)
        scale = program.input(f"{name}.norm{len(program.values)}", (width,))
        return elementwise(elementwise(x, spread, op="mul"), scale, op="mul")

    def weight(part: str, shape: tuple[int, int], sharding: str) -> str:
        return program.input(f"{name}.{part}", shape, sharding)

    normed = norm(x)
    column, row = "[{?}, {tp, ?}]", "[{tp, ?}, {?}]"
    parts = []
    for part in "qkv":
        flat = linear(normed, weight(part, (width, width), column))
        split = program.op("b t (h d) -> b t h d", [flat], shape=(8, tokens, heads, size), op="view")
        turned = program.op("b t h d -> b h t d", [split], op="transpose")
        for _ in range(6):
            turned = elementwise(turned, op="rotary")
        parts.append(turned)
    scores = program.op("b h m d, b h n d -> b h m n", parts[:2], op="matmul")
    for _ in range(8):
        scores = elementwise(scores, op="softmax part")
    mixed = program.op("b h m n, b h n d -> b h m d", [scores, parts[2]], op="matmul")
    back = program.op("b h t d -> b t h d", [mixed], op="transpose")
    flat = program.op("b t h d -> b t (h d)", [back], op="view")
    x = elementwise(x, linear(flat, weight("o", (width, width), row)), op="add")
    normed = norm(x)
    gate = linear(normed, weight("gate", (width, hidden), column))
    up = linear(normed, weight("up", (width, hidden), column))
    for _ in range(4):
        gate = elementwise(gate, op="silu part")
    x = elementwise(
        x, linear(elementwise(gate, up, op="mul"), weight("down", (hidden, width), row)), op="add"
    )
    return x, tape


def _backward(program: Program, gradient: str, tape: list[tuple[str, str, str]]) -> str:
    """For each linear: the gradients of input and weight, and an Adam-like update of twenty pointwise operations."""
    for _, x, weight in reversed(tape):
        columns = program.values[weight].shape[-1]
        upstream = gradient
        if program.values[upstream].shape[-1] != columns:
            upstream = program.op("b t k -> b t n", [upstream], shape=(8, 64, columns), op="reshape")
        into = program.op("... m n, k n -> ... m k", [upstream, weight], op="matmul")
        update = program.op("b m k, b m n -> k n", [x, upstream], op="matmul")
        for _ in range(20):
            update = program.op("..., ... -> ...", [update, weight], op="adam part")
        program.result(update)
        for _ in range(7):
            into = program.op("..., ... -> ...", [into, x], op="pointwise backward")
        gradient = into
    return gradient


def tangle(operations: int, seed: int = 0) -> Program:
    """A random graph: random shapes, operations and shardings, so that no step repeats."""
    random = Random(seed)
    program = Program("a=2,b=4,c=4")
    sizes = range(8, 136, 8)

    def leaf(rank: int) -> str:
        dims = [["?"] for _ in range(rank)]
        for axis in "abc":
            if random.random() < 0.5:
                dims[random.randrange(rank)].insert(0, axis)
        sharding = "[" + ", ".join("{" + ", ".join(dim) + "}" for dim in dims) + "]"
        shape = [random.choice(sizes) for _ in range(rank)]
        return program.input(f"x{len(program.values)}", shape, sharding if random.random() < 0.7 else None)

    values = [leaf(random.choice([2, 3, 4])) for _ in range(operations // 50)]
    while len(program.nodes) < operations:
        x = random.choice(values[-40:] if random.random() < 0.8 else values)
        names = [f"d{dim}" for dim in range(len(program.values[x].shape))]
        kind = random.choice(["pointwise", "pointwise", "transpose", "matmul", "matmul", "sum", "expand"])
        if kind == "pointwise":
            made = program.op("..., ... -> ...", [x, x])
        elif kind == "transpose":
            made = program.op(f"{' '.join(names)} -> {' '.join(random.sample(names, len(names)))}", [x])
        elif kind == "matmul":
            width = (program.values[x].shape[-1], random.choice(sizes))
            made = program.op("... m k, k n -> ... m n", [x, program.input(f"w{len(program.values)}", width)])
        elif kind == "sum" and len(names) > 2:
            made = program.op(f"{' '.join(names)} -> {' '.join(names[:-1])}", [x])
        elif kind == "expand" and len(names) < 4:
            made = program.op("... -> n ...", [x], shape=(random.choice(sizes), *program.values[x].shape))
        else:
            continue
        values.append(made)
    return program


def speed(record: Record) -> None:
    columns = {"graph": "", "level": "", "operations": "{:,}", "CPU s": "{:.2f}", "us an operation": "{:.1f}"}
    table = record.sheet("Speed", columns | {"sweeps": "{:d}", "updates": "{:,}"}, wide=14)
    graphs = [(f"{layers} layers", transformer, layers) for layers in (8, 16, 32, 64)]
    graphs += [("random", tangle, count) for count in (2500, 5000, 10000, 20000)]
    for name, make, count in graphs:
        program = make(count)
        for level in ("basic", "user-priority"):
            # As timeit does: garbage collection would be charged to whichever run it happens in.
            gc.collect()
            gc.disable()
            start = time.process_time()
            outcome = propagate(program, level=level)
            seconds = time.process_time() - start
            gc.enable()
            size = len(program.nodes)
            work = 1e6 * seconds / size
            table.add(name, level, size, seconds, work, outcome.sweeps, outcome.updates)


def main() -> None:
    data = Path(os.environ.get("SHARDWISE_DATA", "../shared/data")) / "shardy"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE")
    takes_json(parser)
    options = parser.parse_args()
    paths = options.paths
    if not paths and data.is_dir():
        paths = [data / "tests.jsonl.gz", data / "fuzz.jsonl.gz"]
    if not paths:
        print(f"no cases: {data} is not there; give files, or name its parent in SHARDWISE_DATA")
    record = Record(__doc__, options.json)
    columns = {"cases": "", "programs": "{:,}", "as expected": "{:,}", "at the fixed point": "{:,}"}
    table = record.sheet("Expected shardings", columns, wide=18)
    matched = [match(path, table) for path in paths]
    speed(record)
    sys.exit(0 if all(matched) else 1)


if __name__ == "__main__":
    main()
