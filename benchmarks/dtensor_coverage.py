"""The share of torch's OpInfo database that DTensor runs, and that it runs without communication.

    python benchmarks/dtensor_coverage.py [--op 'linalg.*'] [--samples 12] [--every 1] [--jobs 2] [--list]

Counted before and after `shardwise.install()`, in one run:

- names with no strategy: OpInfos with a sample on which DTensor raises for lack of a sharding strategy;
- names that fail only in backward for lack of a strategy: the forward of all samples runs, a backward does not;
- of the valid rows without partial inputs, found by experiment for up to two calls of every overload that the samples
  call, the share that DTensor executes without communication. Skipped are `out` variants, which repeat their
  originals, and calls whose results are empty or do not depend on any value, which are no evidence.

Every run is on two simulated ranks and is compared with the unsharded operator; runs that differ are listed, and count
neither as run nor as free of communication. Random operators are run but not compared.
"""

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from record import Record, takes_json
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree

import shardwise as sw
from shardwise.calls import diverse_calls, opinfos, samples
from shardwise.experiments import Crash, limited

RANKS = 2
# CPU seconds for one name or overload.
LIMIT = 120
# Arguments that list the sizes of a result.
SIZES = ("size", "sizes", "input_sizes", "input_size", "self_size", "output_size")
NO_STRATEGY = "does not have a sharding strategy registered"
Instance = tuple[int, str]


@dataclass
class Name:
    """How far an OpInfo's samples ran, forward and backward; `missing` are overloads without a strategy."""

    name: str
    forward: str = "not run"
    backward: str = "not run"
    missing: set[str] = field(default_factory=set)
    errors: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    lost: str = ""


@dataclass
class Rows:
    """Of the valid rows of an overload's calls, as (call, row), those that ran without communication."""

    op: str
    valid: list[Instance] = field(default_factory=list)
    silent: list[Instance] = field(default_factory=list)
    wrong: set[str] = field(default_factory=set)
    lost: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--op", default="*", help="names of OpInfos, with *")
    parser.add_argument("--samples", type=int, default=12, help="samples of an OpInfo that are run")
    parser.add_argument("--every", type=int, default=1, help="take every n-th name and overload")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="list what is counted")
    takes_json(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    infos = [info for info in opinfos() if fnmatch(info.name, options.op)][:: options.every]
    calls = [c for c in diverse_calls(options.op, 2).values() if tells(c[0])][:: options.every]
    names, rows = [counted_names(infos, options)], [counted_rows(calls, options, {})]
    titles = ["before", "after install()"]
    sw.install()
    names.append(counted_names(infos, options))
    rows.append(counted_rows(calls, options, {r.op: r.valid for r in rows[0]}))
    table = Record(__doc__, options.json).sheet("", {"counted": "", **dict.fromkeys(titles, "{:,}")}, wide=48)
    for line in zip(*(summary(n, r) for n, r in zip(names, rows, strict=True)), strict=True):
        table.add(line[0][0], *(value for _, value in line))
    if options.list:
        for title, n, r in zip(titles, names, rows, strict=True):
            listed(title, n, r)


def counted_names(infos: list, options: argparse.Namespace) -> list[Name]:
    def one(info: Any) -> Name:
        result = limited(partial(count_name, info, options.samples), LIMIT)
        return Name(info.formatted_name, lost=str(result)) if isinstance(result, Crash) else result

    return in_parallel("names", one, infos, options.jobs)


def counted_rows(calls: list, options: argparse.Namespace, known: dict[str, list[Instance]]) -> list[Rows]:
    def one(of_op: list) -> Rows:
        op = str(of_op[0].op)
        result = limited(partial(count_rows, of_op, known.get(op)), LIMIT)
        return Rows(op, known.get(op, []), lost=str(result)) if isinstance(result, Crash) else result

    return in_parallel("rows", one, calls, options.jobs)


def in_parallel(title: str, function: Callable[[Any], Any], items: list, jobs: int) -> list:
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(function, items)
        return list(track(done, title, total=len(items), console=Console(file=sys.stderr)))


def count_name(info: Any, limit: int) -> Name:
    result = Name(info.formatted_name)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    for call, _ in zip(samples(info), range(limit), strict=False):
        function, args, kwargs = call.op, list(call.args), dict(call.kwargs)
        run_function(result, function, args, kwargs, info.supports_autograd)
    return result


def count_rows(calls: list, known: list[Instance] | None) -> Rows:
    result = Rows(str(calls[0].op))
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    result.valid = valid_rows(calls) if known is None else known
    for index, row in result.valid:
        if runs_silently(result, calls[index], sw.Row.parse(row)):
            result.silent.append((index, row))
    return result


# -- support


def run_function(
    result: Name, function: Callable[..., Any], args: list, kwargs: dict, differentiable: bool
) -> None:
    """Run one sample on replicated DTensors, forward and backward, and record missing strategies."""
    whole = run_whole(function, args, kwargs, differentiable)
    if whole is None:
        return
    outcome = attempt(result, function, args, kwargs, whole, backward=False)
    result.forward = worse(result.forward, outcome)
    if differentiable and whole[1] is not None:
        result.backward = worse(
            result.backward, attempt(result, function, args, kwargs, whole, backward=True)
        )


def attempt(
    result: Name, function: Callable[..., Any], args: list, kwargs: dict, whole: tuple, backward: bool
) -> str:
    try:
        with LocalTensorMode(RANKS):
            mesh = init_device_mesh("cpu", (RANKS,))
            make = partial(replicated, mesh=mesh, needs_grad=backward)
            outputs, gradients = run(function, *pytree.tree_map(make, (args, kwargs)), backward)
            got = [gathered(t) for t in [*outputs, *(gradients or [])]]
    except Exception as error:
        if NO_STRATEGY in str(error):
            result.missing.add(str(error).split("Operator ")[1].split(" does")[0])
            return "no strategy"
        result.errors.add((str(error).strip() or type(error).__name__).splitlines()[0])
        return "other error"
    expected = [*whole[0], *((whole[1] or []) if backward else [])]
    # `empty` returns uninitialised memory, which may be equal in two runs.
    if whole[2] or "empty" in result.name or all(agree(e, g) for e, g in zip(expected, got, strict=True)):
        return "runs"
    result.wrong.add(f"{'backward' if backward else 'forward'} of {function}")
    return "wrong"


def run_whole(function: Callable[..., Any], args: list, kwargs: dict, differentiable: bool) -> Any:
    """(outputs, gradients or None, random) of the unsharded operator; None if it does not run."""
    runs = []
    for _ in range(2):
        fresh = pytree.tree_map(partial(plain, needs_grad=differentiable), (args, kwargs))
        try:
            runs.append(run(function, *fresh, differentiable))
        except Exception:
            try:
                runs.append(
                    run(function, *pytree.tree_map(partial(plain, needs_grad=False), (args, kwargs)), False)
                )
            except Exception:
                return None
    (outputs, gradients), (again, _) = runs
    random = not all(agree(a, b) for a, b in zip(outputs, again, strict=True))
    return outputs, gradients, random


def run(function: Callable[..., Any], args: list, kwargs: dict, backward: bool) -> tuple[list, list | None]:
    result = function(*args, **kwargs)
    outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
    if not backward:
        return outputs, None
    roots = [o for o in outputs if o.requires_grad]
    inputs = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
    if not roots:
        return outputs, None
    gradients = torch.autograd.grad(roots, inputs, [torch.ones_like(r) for r in roots], allow_unused=True)
    return outputs, [g for g in gradients if g is not None]


ORDER = ("not run", "runs", "other error", "wrong", "no strategy")


def worse(first: str, second: str) -> str:
    return max(first, second, key=ORDER.index)


# -- rows


def tells(call: Any) -> bool:
    return not any(argument.is_out for argument in call.schema.arguments)


def valid_rows(calls: list) -> list[Instance]:
    """The valid rows of an overload's calls with shards and no partials on the left. Where the result of one call
    depends on its inputs, another whose result does not (a zero gradient) has spurious rows: it is skipped."""
    found = [(index, discovered(call)) for index, call in enumerate(calls)]
    informative = any(f is not None and not f.ignores_values for _, f in found)
    return [
        (index, str(row))
        for index, f in found
        if f is not None and not (informative and f.ignores_values)
        for row in f.rows
        if any(p.is_shard() for p in row.inputs) and not any(p.is_partial() for p in row.inputs)
    ]


def discovered(call: Any) -> Any:
    """The discovery of a call; None where it cannot be tested or its results are empty."""
    try:
        found = sw.discover(call.op, *call.args, **call.kwargs)
    except sw.UsageError:
        return None
    return found if any(isinstance(t, Tensor) and t.numel() for t in call.run()) else None


def runs_silently(result: Rows, call: Any, row: sw.Row) -> bool:
    """True if DTensor runs the call with inputs placed so, correctly and without a collective.

    Sizes of sharded dims are those of the sample where they divide, else the next even ones."""
    args, kwargs = even(call, row)
    try:
        right = [
            t for t in pytree.tree_leaves(call.op(*copied(args), **copied(kwargs))) if isinstance(t, Tensor)
        ]
    except Exception:
        args, kwargs = call.args, call.kwargs
        right = [
            t for t in pytree.tree_leaves(call.op(*copied(args), **copied(kwargs))) if isinstance(t, Tensor)
        ]
    placements = iter(row.inputs)
    try:
        with LocalTensorMode(RANKS):
            mesh = init_device_mesh("cpu", (RANKS,))

            def place(leaf: Any) -> Any:
                return (
                    distribute_tensor(leaf.clone(), mesh, [next(placements)])
                    if isinstance(leaf, Tensor)
                    else leaf
                )

            placed = pytree.tree_map(place, (list(args), dict(kwargs)))
            with CommDebugMode() as communication:
                outputs = call.op(*placed[0], **placed[1])
            quiet = communication.get_total_counts() == 0
            got = [gathered(t) for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor)]
    except Exception:
        return False
    # `empty` returns uninitialised memory.
    if "empty" not in str(call.op) and not all(agree(e, g) for e, g in zip(right, got, strict=True)):
        result.wrong.add(f"{call.op} {row}")
        return False
    return quiet


def even(call: Any, row: sw.Row) -> tuple[Any, Any]:
    """The arguments with odd sizes of sharded dims, and all dims of that size, made even by repeating the last value;
    lists of sizes, such as those of a view, are made to agree."""
    sizes = {
        t.shape[p.dim]
        for t, p in zip(call.tensors, row.inputs, strict=True)
        if p.is_shard() and t.shape[p.dim] % RANKS
    }

    def grow(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        for dim, size in enumerate(leaf.shape):
            if size in sizes:
                leaf = torch.cat([leaf, leaf.narrow(dim, size - 1, 1)], dim)
        return leaf

    args, kwargs = pytree.tree_map(grow, (list(call.args), dict(call.kwargs)))
    for i, argument in enumerate(call.op._schema.arguments[: len(args)]):
        if argument.name in SIZES and isinstance(args[i], list | tuple):
            args[i] = [size + (size in sizes) for size in args[i]]
    return args, kwargs


# -- tensors


def plain(leaf: Any, needs_grad: bool) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return (
        leaf.detach().clone().requires_grad_(needs_grad and (leaf.is_floating_point() or leaf.is_complex()))
    )


def replicated(leaf: Any, mesh: Any, needs_grad: bool) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    tensor = distribute_tensor(leaf.detach().clone(), mesh, [Replicate()])
    return tensor.requires_grad_(needs_grad and (leaf.is_floating_point() or leaf.is_complex()))


def copied(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def gathered(tensor: Any) -> list[Tensor]:
    """The global tensor of every rank."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return list(whole._local_tensors.values()) if hasattr(whole, "_local_tensors") else [whole]


def agree(expected: Tensor, got: Tensor | list[Tensor]) -> bool:
    for value in got if isinstance(got, list) else [got]:
        if value.shape != expected.shape or value.dtype != expected.dtype:
            return False
        if expected.is_sparse or not expected.numel():
            continue
        expected = expected.detach()
        # Sums of a few rounded terms are as precise as their dtype, relative to the largest value.
        short = expected.dtype in (torch.bfloat16, torch.float16)
        relative, absolute = (0.0, 2**-6 * float(expected.abs().max())) if short else (1e-4, 1e-4)
        if not torch.allclose(expected, value.detach(), relative, absolute, equal_nan=True):
            return False
    return True


# -- results


def summary(names: list[Name], rows: list[Rows]) -> list[tuple[str, int | str]]:
    valid, silent = sum(len(r.valid) for r in rows), sum(len(r.silent) for r in rows)
    return [
        ("OpInfo names", len(names)),
        ("names with no strategy", sum(n.forward == "no strategy" for n in names)),
        ("names failing only in backward for lack of one", len(only_backward(names))),
        ("names with wrong numbers", sum(bool(n.wrong) for n in names)),
        ("valid shard-only rows", valid),
        ("rows executed without communication", f"{silent:,} ({100 * silent / max(valid, 1):.1f} %)"),
        ("rows with wrong numbers", sum(len(r.wrong) for r in rows)),
        ("lost to a crash or time limit", sum(bool(c.lost) for c in names) + sum(bool(c.lost) for c in rows)),
    ]


def only_backward(names: list[Name]) -> list[Name]:
    return [n for n in names if n.forward != "no strategy" and n.backward == "no strategy"]


def listed(title: str, names: list[Name], rows: list[Rows]) -> None:
    print(f"\n{title}")
    print("no strategy:", ", ".join(n.name for n in names if n.forward == "no strategy"))
    for n in only_backward(names):
        print(f"only in backward: {n.name} ({', '.join(sorted(n.missing))})")
    for n in names:
        for problem in (*sorted(n.wrong), *sorted(n.errors), *([n.lost] if n.lost else [])):
            print(f"{n.name}: {problem}")
    for r in rows:
        for problem in (*sorted(r.wrong), *([r.lost] if r.lost else [])):
            print(f"{r.op}: {problem}")
        lacking = [row for row in r.valid if row not in r.silent]
        if lacking:
            print(f"{r.op} communicates or raises for {', '.join(row for _, row in lacking)}")


if __name__ == "__main__":
    main()
