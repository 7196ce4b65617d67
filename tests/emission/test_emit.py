"""Emitted strategies and tests: what they say is what the rules say, and the tests catch a wrong row."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.tensor import Shard
from torch.distributed.tensor._dtensor_spec import TensorMeta
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor._ops import single_dim_strategy
from torch.utils._pytree import tree_leaves, tree_map_only

from shardwise.emission import emit_strategy, emit_tests
from shardwise.emission._calls import calls_by_overload
from shardwise.rules import Rule


class Emitted(NamedTuple):
    rules: list[Rule]
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
    # Inputs and outputs of a row that does not hold for the first case.
    wrong: tuple[str, str]


def _rule(op: str, *clauses: str, **reading: Any) -> Rule:
    return Rule.from_document({"op": op, **reading, "clauses": [{"rows": text} for text in clauses]})


def _call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    return op, args, kwargs


def _each_partial(text: str) -> list[str]:
    return [text.replace("*", reduction) for reduction in ("sum", "avg", "max", "min")]


def emitted(name: str) -> Emitted:
    torch.manual_seed(0)
    randn = torch.randn
    if name == "searchsorted":
        rule = _rule(
            "aten.searchsorted.Tensor",
            "S(d), S(d), S(d) -> S(d) when d < ndim(0)-1",
            "S(-1), R, R -> P(sum) when sorter is None",
            "R, S(d), R -> S(d) when ndim(0) == 1",
            "R, S(-1), R -> S(-1)",
            "R, P(max), R -> P(max)",
            "R, P(min), R -> P(min)",
        )
        calls = [
            _call(torch.searchsorted, randn(6, 8).sort().values, randn(6, 4)),
            _call(torch.searchsorted, randn(8).sort().values, randn(6, 4), right=True),
            _call(torch.searchsorted, (x := randn(4, 8)), randn(4, 6), sorter=x.argsort(-1)),
        ]
        return Emitted([rule], calls, ('[Replicate(), Partial("sum")]', '[Partial("sum")]'))
    if name == "cdist":
        rows = [
            "S(d), S(d) -> S(d) when d < ndim(0)-2 and ndim(0) == ndim(1) and size(0, d) == size(1, d)",
            "S(-2), R -> S(-2)",
            "R, S(-2) -> S(-1)",
        ]
        rules = [
            _rule(
                "aten._cdist_forward.default",
                *rows,
                "S(-1), S(-1) -> P(sum) when p == 1.0",
                "S(-1), S(-1) -> P(max) when p == inf",
            ),
            _rule("aten._euclidean_dist.default", *rows),
        ]
        calls = [
            _call(torch.cdist, randn(6, 8), randn(5, 8)),
            _call(torch.cdist, randn(4, 6, 8), randn(4, 5, 8), p=1.0),
            _call(torch.cdist, randn(6, 8), randn(5, 8), p=float("inf")),
            _call(torch.cdist, randn(4, 6, 8), randn(4, 5, 8), compute_mode="use_mm_for_euclid_dist"),
        ]
        return Emitted(rules, calls, ('[Partial("sum"), Replicate()]', '[Partial("sum")]'))
    if name == "addbmm":
        rule = _rule(
            "aten.addbmm.default",
            "S(-2), S(-2), R -> S(-2)",
            "S(-1), R, S(-1) -> S(-1)",
            "P(sum), S(0), S(0) -> P(sum)",
            "P(sum), S(2), S(1) -> P(sum)",
            "P(sum), P(sum), R -> P(sum)",
            "P(sum), R, P(sum) -> P(sum)",
            "P(avg), P(avg), R -> P(avg)",
            "P(max), R, R -> P(max)",
            "P(min), R, R -> P(min)",
            broadcast=True,
        )
        calls = [
            _call(torch.addbmm, randn(4, 6), randn(4, 4, 5), randn(4, 5, 6)),
            _call(torch.addbmm, randn(6), randn(4, 4, 5), randn(4, 5, 6), beta=2, alpha=0.5),
            _call(torch.addbmm, randn(4, 1), randn(8, 4, 4), randn(8, 4, 6)),
        ]
        return Emitted([rule], calls, ('[Partial("sum"), Replicate(), Replicate()]', '[Partial("sum")]'))
    if name == "renorm":
        calls = [
            _call(torch.renorm, randn(4, 6, 5), 2, 1, 1.0),
            _call(torch.renorm, randn(4, 6), 1, -2, 0.5),
        ]
        return Emitted(
            [_rule("aten.renorm.default", "S(dim) -> S(dim)")],
            calls,
            ("[Shard(0)]", "[Shard(0)]"),
        )
    if name == "unfold":
        rule = _rule(
            "aten.unfold.default",
            "S(d) -> S(d) when d != dimension",
            "S(dimension) -> S(dimension) when size == step for even shards",
            *_each_partial("P(*) -> P(*)"),
        )
        calls = [
            _call(torch.Tensor.unfold, randn(4, 15, 5), 1, 3, 2),
            _call(torch.Tensor.unfold, randn(4, 16), -1, 2, 2),
        ]
        return Emitted([rule], calls, ("[Shard(1)]", "[Shard(1)]"))
    if name == "block_diag":
        calls = [
            _call(torch.block_diag, randn(4, 6), randn(5, 3)),
            _call(torch.block_diag, randn(4), randn(2, 2)),
        ]
        rule = _rule("aten.block_diag.default", *_each_partial("[P(*)] -> P(*)"))
        return Emitted([rule], calls, ("[Shard(0), Shard(0)]", "[Shard(0)]"))
    if name == "masked_scatter":
        rule = _rule("aten.masked_scatter.default", *_each_partial("P(*), R, P(*) -> P(*)"))
        calls = [
            _call(torch.masked_scatter, randn(4, 6), randn(4, 6) > 0, randn(5, 7)),
            _call(torch.masked_scatter, randn(4, 6), randn(6) > 0, randn(4, 6)),
        ]
        return Emitted([rule], calls, ("[Shard(0), Shard(0), Shard(0)]", "[Shard(0)]"))
    if name == "scatter_reduce":
        equal = "size(0, d) == size(1, d) and size(1, d) == size(2, d)"
        along = "include_self and size(1, dim) == size(2, dim)"
        rule = _rule(
            "aten.scatter_reduce.two",
            f"S(d), S(d), S(d) -> S(d) when d != dim and {equal}",
            f"P(sum), S(dim), S(dim) -> P(sum) when reduce == 'sum' and {along}",
            f"P(max), S(dim), S(dim) -> P(max) when reduce == 'amax' and {along}",
            "P(sum), R, P(sum) -> P(sum) when reduce == 'sum'",
            "P(avg), R, P(avg) -> P(avg) when reduce == 'sum'",
            "P(max), R, P(max) -> P(max) when reduce == 'amax'",
        )
        index = torch.randint(0, 6, (4, 7, 5))
        calls = [
            _call(torch.scatter_reduce, randn(4, 6, 5), 1, index, randn(4, 7, 5), "sum"),
            _call(torch.scatter_reduce, randn(4, 6, 5), -2, index, randn(4, 7, 5), "amax"),
            _call(
                torch.scatter_reduce, randn(4, 6, 5), 1, index[:3], randn(4, 7, 5), "sum", include_self=False
            ),
        ]
        return Emitted([rule], calls, ('[Partial("sum"), Replicate(), Replicate()]', '[Partial("sum")]'))
    if name == "bilinear":
        expanded = "expand1 == (1, 3) and expand2 == (0,) and expand3 == (1, 2) and sumdim == (2, 3)"
        rule = _rule(
            "aten._trilinear.default",
            f"S(0), R, S(0) -> S(0) when {expanded}",
            f"R, S(0), R -> S(1) when {expanded}",
            f"R, S(2), S(1) -> P(sum) when {expanded}",
            "P(sum), R, R -> P(sum)",
            "R, P(sum), R -> P(sum)",
            "R, R, P(sum) -> P(sum)",
            "P(avg), R, R -> P(avg)",
        )
        calls = [
            _call(F.bilinear, randn(4, 6), randn(4, 5), randn(4, 6, 5), randn(4)),
            _call(F.bilinear, randn(2, 4, 6), randn(2, 4, 8), randn(3, 6, 8)),
        ]
        return Emitted([rule], calls, ('[Partial("sum"), Partial("sum"), Replicate()]', '[Partial("sum")]'))
    assert name == "im2col"
    rule = _rule(
        "aten.im2col.default",
        "S(0) -> S(0) when ndim(0) == 4",
        "S(-3) -> S(-2) for even shards",
        *_each_partial("P(*) -> P(*)"),
    )
    calls = [_call(F.unfold, randn(4, 3, 6, 6), 2), _call(F.unfold, randn(3, 6, 6), (2, 3), stride=2)]
    return Emitted([rule], calls, ("[Shard(2)]", "[Shard(2)]"))


NAMES = (
    *("searchsorted", "cdist", "addbmm", "renorm", "unfold"),
    *("block_diag", "masked_scatter", "scatter_reduce", "bilinear", "im2col"),
)


aten = torch.ops.aten


def other_kinds() -> Emitted:
    """Rules whose operators have other kinds of arguments and outputs: several dims or none, dims of the output,
    operands that broadcast, optional and keyword tensors, lists with gaps, several outputs, outputs that are
    missing, outputs written in place and to `out=` tensors."""
    torch.manual_seed(0)
    randn = torch.randn
    rules = [
        _rule(
            "aten.sum.dim_IntList",
            "S(d) -> S(d-before(d, dim)) when not keepdim and d not in dim",
            "S(d) -> S(d) when keepdim and d not in dim",
            "S(d) -> P(sum) when d in dim",
            "P(sum) -> P(sum)",
        ),
        _rule("aten.permute.default", "S(dims[d]) -> S(d)", "P(avg) -> P(avg)", no_dims="none"),
        _rule(
            "aten.unsqueeze.default",
            "S(d) -> S(d) when d < dim",
            "S(d) -> S(d+1) when d >= dim",
            dims_of="output",
        ),
        _rule("aten.lerp.Tensor", "S(d), S(d), S(d) -> S(d)", "P(sum), P(sum), R -> P(sum)", broadcast=True),
        _rule(
            "aten.native_layer_norm.default",
            "S(d), R, R -> S(d), S(d), S(d) when d < ndim(0)-len(normalized_shape)",
        ),
        _rule(
            "aten.native_layer_norm_backward.default",
            "S(0), S(0), S(0), S(0), R, R -> S(0), P(sum), P(sum) when ndim(1) > len(normalized_shape)",
        ),
        _rule("aten.index.Tensor", "P(sum), [R] -> P(sum)", "P(max), [R] -> P(max)"),
        _rule("aten.renorm_.default", "S(dim) -> S(dim)"),
        _rule("aten.renorm.out", "S(dim) -> S(dim)"),
        _rule("aten.sort.values", "S(d) -> S(d), S(d) when d != dim"),
        _rule("aten.aminmax.default", "S(d) -> P(min), P(max) when d in dim for nonempty shards"),
        _rule("aten.squeeze.default", "S(d) -> S(d-ones(0, d))"),
        _rule("aten.count_nonzero.dim_IntList", "S(d) -> P(sum) when d in dim"),
    ]
    x, index = randn(4, 6, 5), torch.randint(0, 4, (3,))
    normal = torch.ops.aten.native_layer_norm.default(x, [5], None, None, 1e-5)
    calls = [
        _call(aten.sum.dim_IntList, x, [1]),
        _call(aten.sum.dim_IntList, x, [-1, 0], True),
        _call(aten.sum.dim_IntList, x, None),
        _call(aten.permute.default, x, [1, -1, 0]),
        _call(aten.unsqueeze.default, x, -1),
        _call(aten.unsqueeze.default, x, 1),
        _call(aten.lerp.Tensor, x, randn(6, 1), randn(4, 1, 5)),
        _call(aten.lerp.Tensor, x, randn(4, 6, 5), randn(())),
        _call(aten.native_layer_norm.default, x, [5], randn(5), None, 1e-5),
        _call(aten.native_layer_norm.default, x, [6, 5], None, None, 1e-5),
        _call(
            aten.native_layer_norm_backward.default,
            *(randn(4, 6, 5), x, [5], normal[1], normal[2], randn(5), None, [True, True, False]),
        ),
        _call(aten.index.Tensor, x, [None, index]),
        _call(aten.index.Tensor, x, [index]),
        _call(aten.renorm_.default, x, 2, 1, 1.0),
        _call(aten.renorm.out, x, 2, -2, 1.0, out=torch.empty(0)),
        _call(aten.sort.values, x, 1, True, values=torch.empty(0), indices=torch.empty(0, dtype=torch.int64)),
        _call(aten.aminmax.default, x, dim=-1, keepdim=True),
        _call(aten.aminmax.default, x),
        _call(aten.squeeze.default, randn(4, 1, 6, 1)),
        _call(aten.count_nonzero.dim_IntList, torch.randint(0, 2, (4, 6)), [0, 1]),
    ]
    return Emitted(rules, calls, ("", ""))


class Registered:
    """What an emitted module registers, kept from DTensor."""

    def __init__(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.functions: dict[str, Any] = {}
        self.options: dict[str, dict[str, Any]] = {}

        def register(op: Any, **options: Any) -> Any:
            def keep(function: Any) -> Any:
                self.functions[str(op)] = function
                self.options[str(op)] = options
                return function

            return keep

        monkeypatch.setattr(single_dim_strategy, "register_single_dim_strategy", register)
        exec(compile(text, "emitted", "exec"), {"__name__": "emitted"})

    def rows(self, rule: Rule, args: Any, kwargs: Any) -> set[str]:
        """Rows that shard no dim of size 1, as DTensor would hold them."""
        outs = [a.name for a in rule.function._schema.arguments if a.is_out]
        inputs = (args, {k: v for k, v in kwargs.items() if k not in outs})
        tensors = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        metas = tree_map_only(
            torch.Tensor, lambda t: TensorMeta(t.shape, t.stride(), t.dtype), (tuple(args), kwargs)
        )
        found = set()
        for row in self.functions[rule.op](rule.function, *metas):
            count = len(rule.clauses[0].outputs)
            filled = [
                Shard(p.dim) if isinstance(p, single_dim_strategy._ShardingPlaceholder) else p for p in row
            ]
            inputs = filled[count : count + len(tensors)]
            if all(
                not isinstance(p, Shard) or (p.dim < t.ndim and t.shape[p.dim] > 1)
                for p, t in zip(inputs, tensors, strict=True)
            ):
                found.add(f"{inputs} -> {filled[:count]}")
        return found


def stated(rule: Rule, args: Any, kwargs: Any) -> set[str]:
    """The rule's rows that a strategy can state."""
    rows = [r for r in rule.rows(*args, **kwargs) if r.local is None and r.shards != "even"]
    return {f"{list(r.inputs)} -> {list(r.outputs)}" for r in rows}


@pytest.mark.parametrize("name", [*NAMES, "other kinds"])
def test_emitted_strategy_yields_the_rows_of_the_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = other_kinds() if name == "other kinds" else emitted(name)
    registered = Registered(emit_strategy(case.rules, case.calls), monkeypatch)
    for rule in case.rules:
        calls = calls_by_overload(case.calls)[rule.op]
        assert calls
        for call in calls:
            assert registered.rows(rule, call.args, call.kwargs) == stated(rule, call.args, call.kwargs)


# Arguments that a strategy reads are part of the key under which DTensor keeps its answer: from which position on,
# and by which names; tensors in lists are found only if it is told to look.
KEYS: dict[str, tuple[int | None, list[str], bool]] = {
    "aten.searchsorted.Tensor": (None, ["out_int32", "right", "side", "sorter"], False),
    "aten._cdist_forward.default": (2, [], False),
    "aten.block_diag.default": (None, [], True),
    "aten.scatter_reduce.two": (1, ["include_self"], False),
    "aten._trilinear.default": (3, [], False),
    "aten.sum.dim_IntList": (1, ["dtype"], False),
    "aten.renorm_.default": (2, [], False),
    "aten.renorm.out": (2, ["out"], False),
    "aten.index.Tensor": (None, [], True),
    "aten.aminmax.default": (None, ["dim", "keepdim"], False),
}
NO_KEYS = ("aten._euclidean_dist.default", "aten.masked_scatter.default", "aten.lerp.Tensor")


def test_emitted_strategies_say_which_arguments_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, dict[str, Any]] = {}
    for case in (*map(emitted, NAMES), other_kinds()):
        options |= Registered(emit_strategy(case.rules, case.calls), monkeypatch).options
    for op, (first, names, in_lists) in KEYS.items():
        expected = RuntimeSchemaInfo(needs_pytree=in_lists, static_kwargkey=names or None)
        if first is not None:
            expected.static_argnum = first
        assert options[op]["schema_info"] == expected, op
    assert all("schema_info" not in options[op] for op in NO_KEYS)


@pytest.mark.parametrize(
    ("clauses", "uneven"),
    [
        (["S(d) -> S(d) when d not in dim"], True),
        (["S(d) -> S(d) when d not in dim", "S(d) -> P(max) when d in dim for nonempty shards"], False),
        (["S(d) -> P(max) when d in dim for nonempty shards"], False),
        # A strategy cannot require even shards: such a row is left out, and the others decide.
        (["S(d) -> S(d) when d not in dim", "S(d) -> P(max) when d in dim for even shards"], True),
    ],
)
def test_emitted_strategies_allow_uneven_shards_where_all_their_rows_do(
    clauses: list[str], uneven: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = _rule("aten.amax.default", *clauses)
    case = [_call(torch.ops.aten.amax.default, torch.randn(4, 6), [1])]
    registered = Registered(emit_strategy([rule], case), monkeypatch)
    assert registered.options[rule.op].get("allow_uneven_sharding", False) == uneven


@pytest.mark.parametrize("name", [*NAMES, "other kinds"])
def test_emitted_source_is_formatted_and_stands_alone(name: str, tmp_path: Path) -> None:
    case = other_kinds() if name == "other kinds" else emitted(name)
    (tmp_path / "strategy.py").write_text(emit_strategy(case.rules, case.calls))
    (tmp_path / "test_strategy.py").write_text(emit_tests(case.rules, case.calls, "strategy"))
    for path in tmp_path.iterdir():
        assert "shardwise" not in path.read_text()
    for options in ((), ("--line-length", "110")):
        formatting = subprocess.run(
            [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", *options, str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert formatting.returncode == 0, formatting.stdout
    names = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E4,E7,E9,F", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert names.returncode == 0, names.stdout


RUN = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def written(case: Emitted, folder: Path) -> tuple[Path, Path]:
    strategy, tests = folder / "strategy.py", folder / "test_strategy.py"
    strategy.write_text(emit_strategy(case.rules, case.calls))
    tests.write_text(emit_tests(case.rules, case.calls, "strategy"))
    return strategy, tests


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The emitted tests in a fresh process that knows nothing of this project."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*RUN, *options, "test_strategy.py"], cwd=folder, env=environment, capture_output=True, text=True
    )


def add_to_strategy(strategy: Path, wrong: tuple[str, str]) -> None:
    """Add a row by hand to the first strategy of the module."""
    row = ", ".join(part.strip("[]") for part in (wrong[1], wrong[0])).replace(
        "Shard(", "_ShardingPlaceholder("
    )
    text = strategy.read_text().replace(
        "    return strategies", f"    strategies.append([{row}])\n    return strategies", 1
    )
    strategy.write_text(text)


def together(*names: str) -> Emitted:
    """One module for several operators."""
    cases = [emitted(name) for name in names]
    return Emitted(
        [r for c in cases for r in c.rules], [call for c in cases for call in c.calls], cases[0].wrong
    )


def passes_and_sees_a_row_added_to_the_strategy(case: Emitted, folder: Path) -> None:
    strategy, _ = written(case, folder)
    right = run(folder)
    assert right.returncode == 0, right.stdout + right.stderr
    assert "3 passed" in right.stdout
    add_to_strategy(strategy, case.wrong)
    wrong = run(folder)
    # The values are wrong, or the pieces are such that the operator refuses them.
    assert wrong.returncode == 1 and re.search("[23] failed", wrong.stdout), wrong.stdout


@pytest.mark.long
def test_emitted_tests_pass_on_four_ranks(tmp_path: Path) -> None:
    passes_and_sees_a_row_added_to_the_strategy(together("searchsorted", "addbmm", "block_diag"), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_emitted_tests_pass_and_catch_a_wrong_row(name: str, tmp_path: Path) -> None:
    passes_and_sees_a_row_added_to_the_strategy(emitted(name), tmp_path)


@pytest.mark.long
def test_emitted_tests_pass_for_other_kinds_of_arguments(tmp_path: Path) -> None:
    written(other_kinds(), tmp_path)
    result = run(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
