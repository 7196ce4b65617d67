"""`shardwise discover` and `shardwise check`: how an operator may be sharded, and whether one row holds."""

import ast
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import UsageError
from ..files import require_writable, write_text
from ..progress import Progress
from ._app import Json, app, print_json
from ._progress import Bars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..discover import Found
    from ..report import Block

_SHAPE_HELP = (
    "Shape of an input tensor, as 4,6,8 or 4,6:int64; 4,6;4,6 for a list of tensors. Repeat for more."
)
Op = Annotated[
    str, typer.Argument(help="torch.mm, aten.mm.default, package.module:function or namespace::name.")
]
Shapes = Annotated[list[str] | None, typer.Option("--shape", help=_SHAPE_HELP)]
Args = Annotated[list[str] | None, typer.Option("--arg", help="A positional argument after the tensors.")]
Keywords = Annotated[
    list[str] | None, typer.Option("--kw", help="A keyword argument, as dim=1. Repeat for more.")
]
Partials = Annotated[bool, typer.Option("--product", help="Consider P(product) too.")]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep", help="Vary ranks, shapes and arguments and find the rule; dim=0,1,-1 adds values."
    ),
]
Narrow = Annotated[
    bool, typer.Option("--narrowing", help="Accept sums of pieces rounded to a narrower dtype.")
]


@app.command("discover")
def discover_command(
    op: Op,
    shape: Shapes = None,
    arg: Args = None,
    kw: Keywords = None,
    product: Partials = False,
    narrowing: Narrow = False,
    sweep: Sweeps = None,
    yaml: Annotated[Path | None, typer.Option(help="With --sweep: write the report here.")] = None,
    emit_strategy: Annotated[
        Path | None, typer.Option(help="With --sweep: write a DTensor strategy here.")
    ] = None,
    emit_tests: Annotated[
        Path | None, typer.Option(help="With --sweep: write tests of the strategy here.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write what was found here, as one HTML file.")] = None,
    json: Json = False,
) -> None:
    """Find the rows that hold for a call, or with --sweep the rule of the operator, by experiment.

    Example: shardwise discover torch.softmax --shape 4,6,8 --kw dim=1

    Example: shardwise discover torch.linalg.cross --sweep --yaml cross.yaml
    """
    require_writable(yaml, emit_strategy, emit_tests, html)
    if sweep is not None:
        examples = [] if not shape and not arg else [_call(op, shape, arg, kw)[1:]]
        _sweep(op, examples, sweep, yaml, emit_strategy, emit_tests, html, json)
        return
    if yaml or emit_strategy or emit_tests:
        raise UsageError(
            "--yaml, --emit-strategy and --emit-tests need --sweep: a rule comes from many calls"
        )
    from ..discover import Policy, discover_isolated

    function, args, kwargs = _call(op, shape, arg, kw)
    partials = ("sum", "avg", "max", "min", "product") if product else ("sum", "avg", "max", "min")
    with Bars(quiet=json) as progress:
        progress("running experiments")
        found = discover_isolated(function, args, kwargs, Policy(partials, narrowing))
    if html is not None:
        _write_page(html, _found_blocks(found, f"{found.op}{_shown(args, kwargs)}"))
    if json:
        print_json(found.to_json())
        return
    console = Console()
    console.print(f"[bold]{found.op}[/bold]{_shown(args, kwargs)}")
    if found.overloads:
        console.print(f"dispatches to {', '.join(found.overloads)}")
    if not found.rows:
        console.print(f"{found.verdict}" + (f": {found.reason}" if found.reason else ""))
        return
    table = Table("row", "shards", "local form", "experiments survived")
    for row, evidence in found.evidence.items():
        table.add_row(str(row), row.shards, row.local or "", str(evidence.total()))
    console.print(table)
    console.print(
        f"{len(found.rows)} rows beside the all-replicated one; "
        f"{found.combinations} claims tried in {found.experiments} experiments, {found.seconds:.2f} CPU seconds"
    )


def _sweep(
    op: str,
    examples: list[Any],
    sweep: list[str],
    yaml: Path | None,
    strategy: Path | None,
    tests: Path | None,
    html: Path | None,
    json: bool,
) -> None:
    """Sweep, synthesize, report and emit, in a child process that may crash."""
    import torch

    from ..discover import Crash, report, resolve_op, run_isolated, studies, yaml_report

    torch.set_num_threads(1)
    values = dict(_swept(text) for text in sweep if text)
    if tests is not None and strategy is None:
        raise UsageError("--emit-tests needs --emit-strategy: the tests import the strategy")

    def answer(progress: Progress) -> dict[str, Any]:
        progress("collecting calls")
        found = studies(resolve_op(op), examples, values, partial(progress, "studying calls"))
        progress("writing")
        rules = [s.rule for s in found if s.rule is not None]
        texts = {"yaml": yaml_report(found), "reports": [report(s) for s in found]}
        if strategy is not None and rules:
            from ..discover import emit_strategy, emit_tests

            calls = [
                (j.call.op, *j.call.arguments(j.call.tensors)) for s in found if s.rule for j in s.judged
            ]
            try:
                texts["strategy"] = emit_strategy(rules, calls)
                if tests is not None:
                    texts["tests"] = emit_tests(rules, calls, strategy.stem)
            except UsageError as error:
                texts["refused"] = str(error)
        return texts

    with Bars(quiet=json) as bars:
        texts = run_isolated(answer, progress=bars)
    if isinstance(texts, Crash):
        raise UsageError(
            f"{op} ended the process with {texts} during the sweep: give other examples with --shape"
        )
    paths = {"yaml": yaml, "strategy": strategy, "tests": tests}
    for key, path in paths.items():
        if path is not None and key in texts:
            write_text(path, texts[key])
    if html is not None:
        _write_page(html, _rule_blocks(op, texts["reports"]))
    if json:
        print_json(texts["reports"])
    else:
        _show_reports(texts, paths)
    if strategy is not None and "strategy" not in texts:
        why = texts.get("refused") or f"no few clauses yield the rows of {op}"
        raise UsageError(f"{strategy} was not written: {why}")


def _show_reports(texts: dict[str, Any], paths: Mapping[str, Path | None]) -> None:
    console = Console()
    for document in texts["reports"]:
        _show_report(console, document)
    for key, path in paths.items():
        if path is not None and key in texts:
            console.print(f"wrote {path}")


def _show_report(console: Console, document: dict[str, Any]) -> None:
    console.print(f"[bold]{document['overload']}[/bold]  {document['analysis']['category']}")
    if "clauses" not in document:
        console.print(_without_rule(document))
        return
    table = Table("clause", "because")
    for clause, reason in _clauses(document):
        table.add_row(clause, reason)
    console.print(table)
    console.print(_held(document))


def _clauses(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Each clause of a report with its reason; none where no rule was found."""
    if "clauses" not in document:
        return []
    rules = [*document["unconditional_rules"][1:], *document["conditional_rules"]]
    reasons = {
        (tuple(r["inputs"]), tuple(r["output"]), r.get("condition")): r["justification"] for r in rules
    }
    return [(clause, _reason(clause, reasons)) for clause in document["clauses"]]


def _found_blocks(found: "Found", call: str) -> "Iterator[Block]":
    """What was found for one call, as the blocks of a page."""
    from ..report import Heading, Table

    yield Heading(1, call)
    if found.overloads:
        yield f"Dispatches to {', '.join(f'`{name}`' for name in found.overloads)}."
    yield f"{found.combinations} claims were tried in {found.experiments} experiments."
    yield Heading(2, "Rows that hold")
    if not found.rows:
        yield f"None but the replicated one: {found.reason or found.verdict}."
        return
    rows = [(f"`{r}`", r.shards, r.local or "", str(e.total())) for r, e in found.evidence.items()]
    yield Table(("row", "shards", "local form", "experiments survived"), rows)


def _rule_blocks(op: str, reports: list[dict[str, Any]]) -> "Iterator[Block]":
    """The rules that a sweep found, as the blocks of a page."""
    from ..report import Heading, Table

    yield Heading(1, f"How {op} may be sharded")
    for document in reports:
        yield Heading(2, document["overload"])
        if "clauses" not in document:
            yield _without_rule(document)
            continue
        yield _held(document)
        yield Table(("clause", "because"), [(f"`{clause}`", why) for clause, why in _clauses(document)])


def _held(document: dict[str, Any]) -> str:
    evidence = document["evidence"]
    return (
        f"Built from {evidence['calls_built_from']} calls, held against {evidence['calls_held_out']} others; "
        f"{evidence['experiments']} experiments, {evidence['cpu_seconds']} CPU seconds."
    )


def _without_rule(document: dict[str, Any]) -> str:
    held, wrong = document["evidence"]["calls_held_out"], document["evidence"]["calls_that_disagree"]
    why = f": {wrong} of {held} further calls disagree" if held else f" of {len(document['rows'])} calls"
    return f"No few clauses yield the rows{why}; --json and --yaml have the rows of each call."


def _write_page(path: Path, blocks: "Iterator[Block]") -> None:
    from ..report import prose_page

    write_text(path, prose_page(blocks))


def _reason(text: str, reasons: dict[Any, str]) -> str:
    from ..rules import Clause

    clause = Clause.parse(text)
    key = (
        tuple(map(str, clause.inputs)),
        tuple(map(str, clause.outputs)),
        " and ".join(clause.when) if clause.when else None,
    )
    return reasons.get(key, "")


def _swept(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not equals:
        raise UsageError(f"--sweep {text!r} has no '=': write it as dim=0,1,-1")
    return name, [_value(value) for value in values.split(",")]


@app.command("check")
def check_command(
    op: Op,
    row: Annotated[str, typer.Argument(help='The row, as "P(sum) -> P(sum)".')],
    shape: Shapes = None,
    arg: Args = None,
    kw: Keywords = None,
    narrowing: Narrow = False,
    json: Json = False,
) -> None:
    """Try to refute one row. Exit status 1 if that succeeds.

    Example: shardwise check torch.abs "P(sum) -> P(sum)" --shape 4,6
    """
    from ..discover import Crash, Policy, check, run_isolated

    function, args, kwargs = _call(op, shape, arg, kw)

    def answer() -> dict[str, Any]:
        verdict = check(function, row, *args, policy=Policy(narrowing=narrowing), **kwargs)
        example = verdict.counterexample
        return {**verdict.to_json(), "op": op, "shown": None if example is None else example.shown()}

    with Bars(quiet=json) as progress:
        progress("running experiments")
        result = run_isolated(answer)
    if isinstance(result, Crash):
        raise UsageError(f"{op} ended the process with {result}: this row cannot be checked on this machine")
    shown = result.pop("shown")
    if json:
        print_json(result)
    else:
        console = Console()
        word = "[green]holds[/green]" if result["valid"] else "[red]refuted[/red]"
        console.print(f"{result['row']}  {word}: {result['reason']}")
        if shown is not None:
            console.print(shown, highlight=False)
    raise typer.Exit(0 if result["valid"] else 1)


def _call(
    op: str, shapes: list[str] | None, args: list[str] | None, kw: list[str] | None
) -> tuple[Any, list[Any], dict[str, Any]]:
    """The call that the options describe; an OpInfo sample where they give no shapes."""
    import torch

    from ..discover import resolve_op, telling_sample

    torch.set_num_threads(1)
    function = resolve_op(op)
    kwargs = dict(_keyword(text) for text in kw or ())
    positional = [_value(text) for text in args or ()]
    if not shapes and not positional:
        function, sample, sample_kwargs = telling_sample(function)
        return function, sample, {**sample_kwargs, **kwargs}
    return function, [*(_tensors(text) for text in shapes or ()), *positional], kwargs


def _keyword(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--kw {text!r} has no '=': write it as dim=1")
    return name, _value(value)


def _value(text: str) -> Any:
    import torch

    if text.startswith("torch.") and hasattr(torch, text[6:]):
        return getattr(torch, text[6:])
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _tensors(text: str) -> Any:
    if ";" in text:
        return [_tensor(part) for part in text.split(";") if part.strip()]
    return _tensor(text)


def _tensor(text: str) -> Any:
    import torch

    sizes, _, name = text.partition(":")
    try:
        shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    except ValueError:
        raise UsageError(f"--shape {text!r} is not a shape: write it as 4,6,8 or 4,6:int64") from None
    dtype = getattr(torch, name or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"--shape {text!r} names no dtype of torch: use one such as float32, int64 or bool")
    if any(size < 0 for size in shape):
        raise UsageError(f"--shape {text!r} has a negative size")
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def _shown(args: list[Any], kwargs: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        if hasattr(value, "shape"):
            return f"{str(value.dtype)[6:]}{list(value.shape)}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(text(v) for v in value) + "]"
        return repr(value)

    parts = [text(a) for a in args] + [f"{k}={text(v)}" for k, v in kwargs.items()]
    return "(" + ", ".join(parts) + ")"
