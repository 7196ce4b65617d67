"""Propagation against expected shardings, and its speed on transformers of growing depth.

    python benchmarks/propagation.py FILE...

reads files in the case format of `shardwise propagate` and prints, for each, `matched N of M` with every
mismatch; without files it takes `shardy/tests.jsonl.gz` and `shardy/fuzz.jsonl.gz` from the folder
SHARDWISE_DATA names. Then the time (of the processor, one thread) to propagate training steps of 8, 16, 32
and 64 layers, in total and per operation.
"""

import os
import sys
import time
from pathlib import Path

from shardwise.propagate import Program, level_of, mismatches, program_of, propagate, read_cases


def match(path: Path) -> bool:
    total = 0
    wrong = []
    for case in read_cases(path):
        total += 1
        differing = mismatches(case, propagate(program_of(case), level_of(case)))
        if differing:
            wrong.append((case, differing))
    print(f"{path}: matched {total - len(wrong)} of {total}")
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
    """For each linear: the gradients of input and weight, and an Adam-like update of twenty pointwise
    operations.
    """
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


def speed() -> None:
    print(f"\n{'layers':>6} {'ops':>6} {'seconds':>8} {'us/op':>6}  level")
    for level in ("basic", "user-priority"):
        for layers in (8, 16, 32, 64):
            program = transformer(layers)
            start = time.process_time()
            outcome = propagate(program, level)
            seconds = time.process_time() - start
            per_op = 1e6 * seconds / len(program.nodes)
            print(
                f"{layers:>6} {len(program.nodes):>6} {seconds:>8.2f} {per_op:>6.1f}  {level}: "
                f"{outcome.summary}"
            )


def main() -> None:
    data = Path(os.environ.get("SHARDWISE_DATA", "../shared/data")) / "shardy"
    paths = [Path(name) for name in sys.argv[1:]] or [data / "tests.jsonl.gz", data / "fuzz.jsonl.gz"]
    matched = [match(path) for path in paths]
    speed()
    sys.exit(0 if all(matched) else 1)


if __name__ == "__main__":
    main()
