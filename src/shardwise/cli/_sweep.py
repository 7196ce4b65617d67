"""`shardwise discover --sweep`: the rule of an operator from many calls, its report, and emitted code."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..display import Heading, below
from ..errors import UsageError
from ..files import write_text
from ..progress import Progress
from ._app import print_json
from ._call import operator_of, value_of
from ._progress import Bars

if TYPE_CHECKING:
    from ..experiments import ExperimentPolicy

Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        help="Vary numbers of dims, shapes and arguments and find the rule. --sweep dim=0,1,-1 tries only these "
        "values of dim and those of the examples.",
    ),
]


def sweep_op(
    op: str,
    examples: list[Any],
    sweep: list[str],
    policy: "ExperimentPolicy",
    yaml: Path | None,
    strategy: Path | None,
    tests: Path | None,
    html: Path | None,
    json: bool,
) -> None:
    """Sweep, synthesize, report and emit, in a child process, since kernels may crash."""
    import torch

    from ..emission import report, yaml_report
    from ..experiments import Crash, run_isolated
    from ..synthesis import studies

    torch.set_num_threads(1)
    function = operator_of(op)
    values = dict(_swept(text) for text in sweep if text)
    if tests is not None and strategy is None:
        raise UsageError("--emit-tests needs --emit-strategy: the tests import the strategy")

    def answer(progress: Progress) -> dict[str, Any]:
        progress("collecting calls")
        studying = partial(progress, "studying calls")
        found = studies(function, examples, values=values, policy=policy, progress=studying)
        progress("writing")
        rules = [s.rule for s in found if s.rule is not None]
        texts = {
            "yaml": yaml_report(found),
            "reports": [report(s) for s in found],
            "blocks": [block for s in found for block in below(s.blocks())],
        }
        if strategy is not None and rules:
            from ..emission import emit_strategy, emit_tests

            calls = [o.call for s in found if s.rule for o in s.observations]
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
            f"{op} crashed the process with {texts} during the sweep: give other examples with --shape"
        )
    paths = {"yaml": yaml, "strategy": strategy, "tests": tests}
    for key, path in paths.items():
        if path is not None and key in texts:
            write_text(path, texts[key])
    if html is not None:
        from ..report import prose_page

        write_text(html, prose_page([Heading(1, f"How {op} may be sharded"), *texts["blocks"]]))
    if json:
        print_json(texts["reports"])
    else:
        _show_reports(texts, paths)
    if strategy is not None and "strategy" not in texts:
        why = texts.get("refused") or f"no short list of clauses yields the rows of {op}"
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
    console.print(_evidence(document))


def _clauses(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Each clause of a report with its reason; none where no rule was found."""
    if "clauses" not in document:
        return []
    rules = [*document["unconditional_rules"][1:], *document["conditional_rules"]]
    reasons = {
        (tuple(r["inputs"]), tuple(r["output"]), r.get("condition")): r["justification"] for r in rules
    }
    return [(clause, _reason(clause, reasons)) for clause in document["clauses"]]


def _evidence(document: dict[str, Any]) -> str:
    evidence = document["evidence"]
    return (
        f"Derived from {evidence['calls_built_from']} calls, validated on {evidence['calls_held_out']} held-out calls "
        f"and on {evidence['calls_made_to_refute']} designed to refute it; "
        f"{evidence['experiments']} experiments, {evidence['cpu_seconds']} CPU seconds."
    )


def _without_rule(document: dict[str, Any]) -> str:
    evidence = document["evidence"]
    held = evidence["calls_held_out"] + evidence["calls_made_to_refute"]
    wrong = evidence["calls_that_disagree"]
    why = f": {wrong} of {held} further calls disagree" if held else f" of {len(document['rows'])} calls"
    return f"No short list of clauses yields the rows{why}; --json and --yaml have the rows of each call."


def _reason(text: str, reasons: dict[Any, str]) -> str:
    from ..rules import Clause

    clause = next(Clause.parse(text).split())
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
    return name, [value_of(value) for value in values.split(",")]
