"""Random programs with the shardings that OpenXLA Shardy gives their values, for `benchmarks/propagation.py`.

    python benchmarks/shardy/make_cases.py cases.jsonl.gz --programs 500 --seed 0
    python benchmarks/propagation.py cases.jsonl.gz

The first command needs jax (0.10.2 was used), which Shardwise does not: run it in an environment of its own.
It writes programs as MLIR text, runs the propagation passes that come with jaxlib, and reads the shardings
and rules back. Programs have all kinds of operations, constraints and barriers in the middle, sub-axes,
priorities, replicated and partial axes, and calls with rules of their own.
"""

import argparse
import gzip
import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

LEVELS = ("basic", "aggressive", "op-priority", "user-priority")
SIZES = (1, 2, 3, 4, 6, 8, 8, 12, 16, 24)
AXES = (1, 2, 2, 3, 4, 4, 6, 8, 12)
SHARDING = re.compile(r"<@mesh, \[(.*?)\](?:, replicated=\{(.*?)\})?(?:, unreduced=\{(.*?)\})?>")

Shape = tuple[int, ...]


def tensor(shape: Shape) -> str:
    return "tensor<" + "".join(f"{size}x" for size in shape) + "f32>"


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


@dataclass
class Line:
    """One operation: its MLIR text, and what the case says of it."""

    text: str
    op: str
    kind: str
    operands: list[str]
    results: dict[str, Shape]
    allowed: str | None = None


@dataclass
class Maker:
    rng: random.Random
    mesh: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, Shape] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    returned: list[tuple[str, str]] = field(default_factory=list)
    values: dict[str, Shape] = field(default_factory=dict)

    def program(self) -> str:
        rng = self.rng
        self.mesh = {name: rng.choice(AXES) for name in "abcd"[: rng.randint(1, 4)]}
        for _ in range(rng.randint(1, 4)):
            old = rng.choice(list(self.values.values())) if self.values and rng.random() < 0.5 else None
            self.argument(
                old or tuple(rng.choice(SIZES) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 3, 4])))
            )
        makers = [
            self.pointwise,
            self.transpose,
            self.reshape,
            self.broadcast,
            self.reduce,
            self.slice,
            self.concatenate,
        ]
        makers += [self.pointwise, self.dot, self.dot, self.reverse, self.dynamic_slice, self.iota]
        makers += [self.constraint, self.barrier, self.call]
        for _ in range(rng.choice([1, 2, 3, 5, 8, 12])):
            rng.choice(makers)()
        # What nobody uses would be erased as dead, so it is returned.
        used = {name for line in self.lines for name in line.operands}
        for name in self.values:
            if (name not in used and name not in self.arguments) or rng.random() < 0.2:
                self.returned.append((name, self.sharding(name, 0.35)))
        if not self.returned:
            self.returned.append((next(iter(self.values)), ""))
        return self.text()

    def text(self) -> str:
        def attribute(sharding: str) -> str:
            return f" {{sdy.sharding = #sdy.sharding{sharding}}}" if sharding else ""

        mesh = ", ".join(f'"{name}"={size}' for name, size in self.mesh.items())
        arguments = ", ".join(
            f"%{n}: {tensor(s)}{attribute(self.given[n])}" for n, s in self.arguments.items()
        )
        results = ", ".join(tensor(self.values[n]) + attribute(s) for n, s in self.returned)
        names = ", ".join(f"%{n}" for n, _ in self.returned)
        types = ", ".join(tensor(self.values[n]) for n, _ in self.returned)
        constants = ["%zero = stablehlo.constant dense<0> : tensor<i32>"]
        constants += ["%none = stablehlo.constant dense<0.0> : tensor<f32>"]
        body = "\n  ".join([*constants, *(line.text for line in self.lines)])
        return (
            f"sdy.mesh @mesh = <[{mesh}]>\nfunc.func @main({arguments}) -> ({results}) {{\n"
            f"  {body}\n  return {names} : {types}\n}}\n"
        )

    # -- shardings

    def sharding(self, value: str | int, likely: float) -> str:
        """The text of a sharding for a value (or a rank), or nothing."""
        rng = self.rng
        if rng.random() > likely:
            return ""
        rank = value if isinstance(value, int) else len(self.values[value])
        dims: list[list[str]] = [[] for _ in range(rank)]
        replicated, unreduced = [], []
        for name in rng.sample(list(self.mesh), rng.randint(0, len(self.mesh))):
            place = rng.random()
            axis = self.axis(name)
            if place < 0.12:
                replicated.append(axis)
            elif place < 0.2:
                unreduced.append(axis)
            elif rank:
                rng.choice(dims).append(axis)
        texts = []
        for dim in dims:
            entries = dim + ["?"] * (rng.random() < 0.6)
            priority = f"p{rng.randint(0, 3)}" if entries and rng.random() < 0.3 else ""
            texts.append("{" + ", ".join(entries) + "}" + priority)
        order = [f'"{name}"' for name in self.mesh]
        text = f"<@mesh, [{', '.join(texts)}]"
        for key, axes in (("replicated", replicated), ("unreduced", unreduced)):
            if axes:
                text += f", {key}={{{', '.join(sorted(axes, key=lambda a: order.index(a.split(':')[0])))}}}"
        return text + ">"

    def axis(self, name: str) -> str:
        size = self.mesh[name]
        parts = [(pre, k) for pre in divisors(size) for k in divisors(size // pre) if 1 < k < size]
        if parts and self.rng.random() < 0.25:
            pre, part = self.rng.choice(parts)
            return f'"{name}":({pre}){part}'
        return f'"{name}"'

    # -- operations

    def argument(self, shape: Shape) -> str:
        name = f"arg{len(self.arguments)}"
        self.arguments[name] = self.values[name] = shape
        self.given[name] = self.sharding(name, 0.7)
        return name

    def pick(self, wanted: Callable[[Shape], bool] = lambda shape: True) -> str | None:
        names = [name for name, shape in self.values.items() if wanted(shape)]
        return self.rng.choice(names[-6:] if self.rng.random() < 0.7 else names) if names else None

    def add(
        self,
        op: str,
        operands: list[str],
        outputs: list[Shape],
        text: str,
        kind: str = "other",
        rule: str = "",
    ) -> Line:
        """Append an operation; `text` is its right-hand side, with ATTRIBUTES where they go."""
        number = len(self.lines)
        names = [f"v{number}"] if len(outputs) == 1 else [f"v{number}#{i}" for i in range(len(outputs))]
        shardings = [self.sharding(len(shape), 0.25) for shape in outputs]
        attributes = []
        if any(shardings):
            filled = [
                s or f"<@mesh, [{', '.join(['{?}'] * len(o))}]>"
                for s, o in zip(shardings, outputs, strict=True)
            ]
            attributes.append(f"sdy.sharding = #sdy.sharding_per_value<[{', '.join(filled)}]>")
        if rule:
            attributes.append(f"sdy.sharding_rule = #sdy.op_sharding_rule<{rule}>")
        left = f"%v{number}" + (f":{len(outputs)}" if len(outputs) > 1 else "")
        right = text.replace("ATTRIBUTES", f" {{{', '.join(attributes)}}}" if attributes else "")
        results = dict(zip(names, outputs, strict=True))
        self.lines.append(Line(f"{left} = {right}", op, kind, operands, results))
        self.values.update(results)
        return self.lines[-1]

    def pointwise(self) -> None:
        x = self.pick()
        shape = self.values[x]
        y = self.rng.choice([name for name, other in self.values.items() if other == shape])
        self.add(
            "add", [x, y], [shape], f"stablehlo.add %{x}, %{y}ATTRIBUTES : {tensor(shape)}", "elementwise"
        )

    def unary(self, op: str, x: str, output: Shape, options: str, kind: str = "other") -> None:
        types = f"({tensor(self.values[x])}) -> {tensor(output)}"
        self.add(op, [x], [output], f"stablehlo.{op} %{x}{options}ATTRIBUTES : {types}", kind)

    def transpose(self) -> None:
        x = self.pick()
        order = self.rng.sample(range(len(self.values[x])), len(self.values[x]))
        self.unary("transpose", x, tuple(self.values[x][i] for i in order), f", dims = {order}", "transpose")

    def reshape(self) -> None:
        x = self.pick()
        left, output = math.prod(self.values[x]), []
        while left > 1 and len(output) < 4:
            size = self.rng.choice(divisors(left))
            if size > 1 or self.rng.random() < 0.2:
                output.append(size)
                left //= size
        self.unary("reshape", x, (*output, left) if left > 1 else tuple(output), "", "reshape")

    def broadcast(self) -> None:
        if (x := self.pick(lambda shape: len(shape) < 4)) is None:
            return
        shape = self.values[x]
        output = [self.rng.choice(SIZES) for _ in range(len(shape) + self.rng.randint(0, 2))]
        places = sorted(self.rng.sample(range(len(output)), len(shape)))
        for place, size in zip(places, shape, strict=True):
            if size != 1 or self.rng.random() < 0.5:
                output[place] = size
        self.unary("broadcast_in_dim", x, tuple(output), f", dims = {places}", "broadcast")

    def reduce(self) -> None:
        if (x := self.pick(len)) is None:
            return
        shape = self.values[x]
        dims = sorted(self.rng.sample(range(len(shape)), self.rng.randint(1, len(shape))))
        output = tuple(size for dim, size in enumerate(shape) if dim not in dims)
        text = (
            f"stablehlo.reduce(%{x} init: %none) applies stablehlo.add across dimensions = {dims}ATTRIBUTES"
        )
        types = f" : ({tensor(shape)}, tensor<f32>) -> {tensor(output)}"
        self.add("reduce", [x, "none"], [output], text + types)

    def slice(self) -> None:
        if (x := self.pick(len)) is None:
            return
        ends = [size if self.rng.random() < 0.5 else self.rng.randint(1, size) for size in self.values[x]]
        self.unary("slice", x, tuple(ends), f" [{', '.join(f'0:{end}' for end in ends)}]")

    def reverse(self) -> None:
        if (x := self.pick(len)) is None:
            return
        dims = sorted(self.rng.sample(range(len(self.values[x])), self.rng.randint(1, len(self.values[x]))))
        shape = self.values[x]
        self.add(
            "reverse", [x], [shape], f"stablehlo.reverse %{x}, dims = {dims}ATTRIBUTES : {tensor(shape)}"
        )

    def dynamic_slice(self) -> None:
        if (x := self.pick(len)) is None:
            return
        shape = self.values[x]
        output = tuple(size if self.rng.random() < 0.6 else self.rng.randint(1, size) for size in shape)
        starts = ["zero"] * len(shape)
        text = f"stablehlo.dynamic_slice %{x}, {', '.join('%' + s for s in starts)}, sizes = {list(output)}ATTRIBUTES"
        types = f" : ({', '.join([tensor(shape), *['tensor<i32>'] * len(shape)])}) -> {tensor(output)}"
        self.add("dynamic_slice", [x, *starts], [output], text + types)

    def concatenate(self) -> None:
        if (x := self.pick(len)) is None:
            return
        shape, dim = self.values[x], self.rng.randrange(len(self.values[x]))

        def rest(other: Shape) -> Shape:
            return other[:dim] + other[dim + 1 :]

        alike = [n for n, s in self.values.items() if len(s) == len(shape) and rest(s) == rest(shape)]
        parts = [x, *self.rng.choices(alike, k=self.rng.randint(0, 2))]
        output = (*shape[:dim], sum(self.values[p][dim] for p in parts), *shape[dim + 1 :])
        text = f"stablehlo.concatenate {', '.join('%' + p for p in parts)}, dim = {dim}ATTRIBUTES"
        types = f" : ({', '.join(tensor(self.values[p]) for p in parts)}) -> {tensor(output)}"
        self.add("concatenate", parts, [output], text + types)

    def dot(self) -> None:
        x, y = self.pick(len), self.pick(len)
        if x is None or y is None:
            return
        a, b = self.values[x], self.values[y]
        pairs = [(i, j) for i, m in enumerate(a) for j, n in enumerate(b) if m == n]
        batch: list[tuple[int, int]] = []
        contracted: list[tuple[int, int]] = []
        for i, j in self.rng.sample(pairs, len(pairs)):
            if all(i != p and j != q for p, q in batch + contracted) and self.rng.random() < 0.7:
                (batch if self.rng.random() < 0.4 else contracted).append((i, j))
        free_a = [n for i, n in enumerate(a) if i not in [p for p, _ in batch + contracted]]
        free_b = [n for j, n in enumerate(b) if j not in [q for _, q in batch + contracted]]
        output = (*(a[i] for i, _ in batch), *free_a, *free_b)
        if len(output) > 5:
            return
        options = ""
        for key, chosen in (("batching_dims", batch), ("contracting_dims", contracted)):
            if chosen or key == "contracting_dims":
                options += f", {key} = {[i for i, _ in chosen]} x {[j for _, j in chosen]}"
        types = f" : ({tensor(a)}, {tensor(b)}) -> {tensor(output)}"
        self.add(
            "dot_general", [x, y], [output], f"stablehlo.dot_general %{x}, %{y}{options}ATTRIBUTES{types}"
        )

    def iota(self) -> None:
        shape = tuple(self.rng.choice(SIZES) for _ in range(self.rng.randint(1, 3)))
        dim = self.rng.randrange(len(shape))
        self.add("iota", [], [shape], f"stablehlo.iota dim = {dim}ATTRIBUTES : {tensor(shape)}")

    def constraint(self) -> None:
        x = self.pick()
        sharding = re.sub(r", unreduced=\{.*?\}", "", self.sharding(x, 1.0))
        line = self.add("constraint", [x], [self.values[x]], "", "elementwise")
        line.text = f"%{next(iter(line.results))} = sdy.sharding_constraint %{x} {sharding} : {tensor(self.values[x])}"

    def barrier(self) -> None:
        x, way = self.pick(), self.rng.choice(["FORWARD", "BACKWARD", "NONE"])
        text = f"sdy.propagation_barrier %{x} allowed_direction={way}ATTRIBUTES : {tensor(self.values[x])}"
        line = self.add("barrier", [x], [self.values[x]], text, "barrier")
        line.allowed = way.lower()

    def call(self) -> None:
        """A call with a rule of its own: any factors on any dims."""
        rng = self.rng
        sizes = [rng.choice([1, 2, 2, 3, 4, 6, 8]) for _ in range(rng.randint(1, 6))]
        tensors = []
        inputs, outputs = rng.randint(1, 3), rng.randint(1, 2)
        for _ in range(inputs + outputs):
            factors = rng.sample(range(len(sizes)), rng.randint(1, len(sizes)))
            dims = []
            while factors:
                take = rng.choice([1, 1, 2, 3])
                if any(sizes[f] == 1 for f in factors[:take]):
                    take = 1
                dims.append(factors[:take])
                factors = factors[take:]
            tensors.append(dims)
        used = sorted({f for dims in tensors for dim in dims for f in dim})
        letters = {factor: "ijklmnop"[place] for place, factor in enumerate(used)}
        groups: dict[str, list[str]] = {}
        for factor in used:
            kind = rng.random()
            returned = any(factor in dim for dims in tensors[inputs:] for dim in dims)
            if kind < 0.4 and not returned:
                groups.setdefault("reduction", []).append(letters[factor])
            elif kind > 0.85:
                groups.setdefault("need_replication", []).append(letters[factor])
            elif kind > 0.75:
                groups.setdefault("permutation", []).append(letters[factor])
            if rng.random() < 0.1:
                groups.setdefault("blocked_propagation", []).append(letters[factor])
        left, right = (
            ", ".join(
                "[" + ", ".join("".join(letters[f] for f in dim) for dim in dims) + "]" for dims in side
            )
            for side in (tensors[:inputs], tensors[inputs:])
        )
        rule = f"({left})->({right}) {{{', '.join(f'{letters[f]}={sizes[f]}' for f in used)}}}"
        for key in ("reduction", "need_replication", "permutation", "blocked_propagation"):
            if key in groups:
                rule += f" {key}={{{', '.join(groups[key])}}}"
        shapes = [tuple(math.prod(sizes[f] for f in dim) for dim in dims) for dims in tensors]
        operands = []
        for shape in shapes[:inputs]:
            alike = [name for name, other in self.values.items() if other == shape]
            operands.append(rng.choice(alike) if alike and rng.random() < 0.7 else self.argument(shape))
        types = f"({', '.join(tensor(s) for s in shapes[:inputs])}) -> "
        types += tensor(shapes[-1]) if outputs == 1 else f"({', '.join(tensor(s) for s in shapes[inputs:])})"
        text = f"stablehlo.custom_call @call({', '.join('%' + o for o in operands)})ATTRIBUTES : {types}"
        self.add("custom_call", operands, shapes[inputs:], text, rule=f"{rule}, custom")


# -- reading shardings back


def read_sharding(text: str) -> dict[str, object] | None:
    match = SHARDING.search(text)
    if match is None:
        return None

    def names(part: str | None) -> list[str]:
        return [name.strip().replace('"', "") for name in part.split(",")] if part and part.strip() else []

    dims = [(names(body), priority) for body, priority in re.findall(r"\{([^}]*)\}(?:p(\d+))?", match[1])]
    document: dict[str, object] = {
        "dims": [[name for name in axes if name != "?"] for axes, _ in dims],
        "open": ["?" in axes for axes, _ in dims],
        "priority": [int(priority) if priority else None for _, priority in dims],
    }
    if match[2]:
        document["replicated"] = names(match[2])
    if match[3]:
        document["partial"] = dict.fromkeys(names(match[3]), "sum")
    return document


def read(module: ir.Module, maker: Maker) -> tuple[dict[str, object], list[object], dict[int, str]]:
    """The shardings of values and of results, and the rules of operations."""
    function = next(op for op in module.body.operations if op.operation.name == "func.func")

    def listed(key: str, count: int) -> list[object]:
        if key not in function.attributes:
            return [None] * count
        entries = [function.attributes[key][i] for i in range(count)]
        return [read_sharding(str(e["sdy.sharding"])) if "sdy.sharding" in e else None for e in entries]

    values = dict(zip(maker.arguments, listed("arg_attrs", len(maker.arguments)), strict=True))
    results = listed("res_attrs", len(maker.returned))
    rules = {}
    operations = [op.operation for op in function.regions[0].blocks[0].operations]
    made = [op for op in operations if op.name not in ("stablehlo.constant", "func.return")]
    for number, (line, op) in enumerate(zip(maker.lines, made, strict=True)):
        key = "sharding" if op.name == "sdy.sharding_constraint" else "sdy.sharding"
        found = SHARDING.finditer(str(op.attributes[key])) if key in op.attributes else ()
        shardings = [read_sharding(match[0]) for match in found] or [None] * len(line.results)
        values.update(zip(line.results, shardings, strict=True))
        if "sdy.sharding_rule" in op.attributes:
            rules[number] = re.search(r"op_sharding_rule<(.*)>$", str(op.attributes["sdy.sharding_rule"]))[1]
    return values, results, rules


def cases(seed: int) -> list[dict[str, object]]:
    """One random program at every level."""
    maker = Maker(random.Random(seed))
    text = maker.program()
    made = []
    with make_ir_context(), ir.Location.unknown():
        given, given_results, _ = read(ir.Module.parse(text), maker)
        for level in LEVELS:
            module = ir.Module.parse(text)
            PassManager.parse(f"builtin.module(sdy-{level}-propagate{{keep-sharding-rules=true}})").run(
                module.operation
            )
            expected, expected_results, rules = read(module, maker)

            def value(name: str, shape: Shape, expected: dict[str, object] = expected) -> dict[str, object]:
                return {"name": name, "shape": shape, "sharding": given[name], "expected": expected[name]}

            constants = [
                {"op": "constant", "rule": None, "operands": [], "results": [{"name": name, "shape": []}]}
                for name in ("zero", "none")
            ]
            operations = [
                {
                    "op": line.op,
                    "kind": line.kind,
                    "rule": rules.get(number),
                    "operands": line.operands,
                    "results": [value(name, shape) for name, shape in line.results.items()],
                    **({"allowed": line.allowed} if line.allowed else {}),
                }
                for number, line in enumerate(maker.lines)
            ]
            results = [
                {"value": name, "sharding": before, "expected": after}
                for (name, _), before, after in zip(
                    maker.returned, given_results, expected_results, strict=True
                )
            ]
            arguments = [value(name, shape) for name, shape in maker.arguments.items()]
            case = {"id": f"seed {seed}", "level": level, "mesh": maker.mesh, "args": arguments}
            made.append({**case, "ops": constants + operations, "results": results})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file")
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with gzip.open(options.file, "wt") as file:
        for seed in range(options.seed, options.seed + options.programs):
            for case in cases(seed):
                file.write(json.dumps(case) + "\n")
    print(f"{options.file}: {options.programs} programs at {len(LEVELS)} levels")


if __name__ == "__main__":
    main()
