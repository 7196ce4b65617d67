"""`shardwise discover` and `shardwise check`: how an operator may be sharded, and whether one row holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import UsageError
from ..files import require_writable, write_text
from ._app import Json, app, print_json
from ._call import Args, Keywords, Op, Shapes, called
from ._progress import Bars
from ._sweep import Sweeps, sweep_op

if TYPE_CHECKING:
    from ..experiments import ExperimentPolicy

Partials = Annotated[bool, typer.Option("--product", help="Consider P(product) too.")]
Narrow = Annotated[
    bool, typer.Option("--narrowing", help="Accept partials through a cast to a narrower dtype.")
]

Ranks = Annotated[
    str | None, typer.Option(help="Numbers of ranks of the experiments, such as 2,8; 2,3,4 by default.")
]
Generators = Annotated[
    Path | None, typer.Option(help="A Python file with generators of inputs, used beside the usual ones.")
]


def _policy(op: str, ranks: str | None, generators: Path | None, **options: Any) -> "ExperimentPolicy":
    """The options of experiments, with the generators of a file for the operator."""
    from ..experiments import RANKS, ExperimentPolicy, add_generators
    from ..modules import module_of

    if generators is not None:
        if not generators.is_file():
            raise UsageError(f"--generators {generators} is not a file")
        if not add_generators(module_of(generators), f"*{op.rpartition('.')[2].rpartition(':')[2]}*"):
            raise UsageError(
                f"{generators} has no generators: write def name(shape, dtype, device, input_idx=0)"
            )
    counts = RANKS if ranks is None else tuple(map(_count, ranks.split(",")))
    return ExperimentPolicy(ranks=counts, **options)


def _count(text: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError(f"--ranks has {text.strip()!r}, which is not a number of ranks: write it as 2,8")
    return int(text)


@app.command("discover")
def discover_command(
    op: Op,
    shape: Shapes = None,
    arg: Args = None,
    kw: Keywords = None,
    product: Partials = False,
    narrowing: Narrow = False,
    strided: Annotated[
        bool, typer.Option("--strided", help="Say which rows hold for strided shards too: S(0, sf=*).")
    ] = False,
    ranks: Ranks = None,
    generators: Generators = None,
    sweep: Sweeps = None,
    yaml: Annotated[Path | None, typer.Option(help="With --sweep: write the report here.")] = None,
    emit_strategy: Annotated[
        Path | None, typer.Option(help="With --sweep: write a DTensor strategy here.")
    ] = None,
    emit_tests: Annotated[
        Path | None, typer.Option(help="With --sweep: write tests of the strategy here.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the result here, as one HTML file.")] = None,
    json: Json = False,
) -> None:
    """Find the rows that hold for a call, or with --sweep the rule of the operator, by experiment.

    Example: shardwise discover torch.softmax --shape 4,6,8 --kw dim=1

    Example: shardwise discover torch.linalg.cross --sweep --yaml cross.yaml
    """
    require_writable(yaml, emit_strategy, emit_tests, html)
    if sweep is not None:
        if kw and not shape and not arg:
            raise UsageError(
                "--kw is part of an example call: also give --shape, or use --sweep dim=0,1 alone"
            )
        examples = [called(op, shape, arg, kw)[1:]] if shape or arg else []
        policy = _policy(op, ranks, generators, narrowing=narrowing)
        sweep_op(op, examples, sweep, policy, yaml, emit_strategy, emit_tests, html, json)
        return
    if yaml or emit_strategy or emit_tests:
        raise UsageError(
            "--yaml, --emit-strategy and --emit-tests need --sweep, which finds a rule from many calls"
        )
    from ..experiments import discover_isolated
    from ..report import prose_page

    function, args, kwargs = called(op, shape, arg, kw)
    partials = ("sum", "avg", "max", "min", "product") if product else ("sum", "avg", "max", "min")
    with Bars(quiet=json) as progress:
        progress("running experiments")
        policy = _policy(op, ranks, generators, partials=partials, narrowing=narrowing, strided=strided)
        found = discover_isolated(policy, function, *args, **kwargs)
    if html is not None:
        write_text(html, prose_page(found.blocks()))
    if json:
        print_json(found.to_json())
        return
    console = Console()
    console.print(f"[bold]{found.op}[/bold]{found.arguments}")
    if found.overloads:
        console.print(f"dispatches to {', '.join(found.overloads)}")
    for name, error in found.idle.items():
        console.print(f"the generator {name} made values of no shape: {error}")
    if not found.rows:
        console.print(f"{found.verdict}" + (f": {found.reason}" if found.reason else ""))
        return
    table = Table("row", "shards", "local form", "experiments passed")
    for row, evidence in found.evidence.items():
        table.add_row(str(row), row.shards, row.local or "", str(evidence.total()))
    console.print(table)
    console.print(
        f"{len(found.rows)} rows, not counting the fully replicated one; "
        f"{found.combinations} claims tested in {found.experiments} experiments, {found.seconds:.2f} CPU seconds"
    )


@app.command("check")
def check_command(
    op: Op,
    row: Annotated[str, typer.Argument(help='The row, as "P(sum) -> P(sum)".')],
    shape: Shapes = None,
    arg: Args = None,
    kw: Keywords = None,
    narrowing: Narrow = False,
    ranks: Ranks = None,
    generators: Generators = None,
    json: Json = False,
) -> None:
    """Test one row by experiment. Exit status 1 if it is refuted.

    Example: shardwise check torch.abs "P(sum) -> P(sum)" --shape 4,6
    """
    from ..experiments import Crash, run_isolated

    function, args, kwargs = called(op, shape, arg, kw)
    policy = _policy(op, ranks, generators, narrowing=narrowing)

    def answer() -> dict[str, Any]:
        verdict = policy.check(function, row, *args, **kwargs)
        example = verdict.counterexample
        return {**verdict.to_json(), "op": op, "shown": None if example is None else example.shown()}

    with Bars(quiet=json) as progress:
        progress("running experiments")
        result = run_isolated(answer)
    if isinstance(result, Crash):
        raise UsageError(f"{op} crashed the process with {result}: this row cannot be tested on this machine")
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
