"""Renders the records under results/ as docs/results.md.

    python benchmarks/tables.py

A record is the output of a benchmark with `--json FILE`; missing records are skipped.
"""

import json
from pathlib import Path
from typing import Any

from record import is_number, written

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"

OPENING = """\
# Results

Every table is the output of the command above it: `benchmarks/*.py --json FILE` writes the numbers to
`benchmarks/results`, and `make results` renders them as this page. Times are CPU seconds summed over all threads,
unless a column says otherwise; all sides of a comparison were measured in the same run.
"""

# A heading, its records, and the page that explains the measurement.
SECTIONS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Discovery", ("discovery",), "discovery.md"),
    ("Synthesis of rules", ("synthesis", "synthesis_hard", "synthesis_pipeline"), "discovery.md"),
    ("Coverage of DTensor", ("coverage", "coverage_2.15"), "book.md"),
    ("Installing the book", ("install",), "book.md"),
    ("Search on a mesh", ("search",), "redistribution.md"),
    ("Propagation", ("propagation",), "propagation.md"),
    ("Plans from three annotations", ("annotations",), "planning.md"),
    ("Solver", ("solver", "solver_interrupt", "solver_lateness"), "solver.md"),
    ("Capture", ("capture",), "capture.md"),
    ("Models that work unmodified", ("breadth",), "capture.md"),
    ("Planning", ("planning_8b", "planning_8b_cube", "planning_70b"), "planning.md"),
    ("Recompute", ("recompute", "recompute_passes", "recompute_on_gpu"), "planning.md"),
    ("Recompute, micro-batches and sharded states", ("memory_choices",), "planning.md"),
    ("Prices on a GPU", ("block_on_gpu", "execution_on_gpu", "rank_on_gpu"), "calibration.md"),
    ("Published measurements", ("truth", "truth_held_out"), "calibration.md"),
    ("Published runs", ("truth_runs", "truth_fsdp", "truth_grid"), "pricing.md"),
    ("Long context", ("long_context", "long_context_longest"), "communicating.md"),
    ("A large vocabulary", ("vocabulary",), "communicating.md"),
    ("Mixtures of experts", ("experts", "experts_on_gpu"), "communicating.md"),
    ("Images sharded by rows", ("spatial",), "communicating.md"),
    ("Running", ("runtime",), "running.md"),
    (
        "Overlap",
        (
            "overlap",
            "overlap_8b",
            "overlap_8b_cube",
            "overlap_70b",
            "buckets",
            "overlap_passes",
            "overlap_passes_tp",
            "truth_hidden",
        ),
        "overlap.md",
    ),
    ("Pipelines", ("pipelines", "stages", "stages_given"), "pipelines.md"),
    ("Loading a checkpoint", ("checkpoint",), "running.md"),
    ("Importing", ("imports",), "architecture.md"),
)


def page() -> str:
    return "\n".join([OPENING, *filter(None, (section(*s) for s in SECTIONS))])


def section(heading: str, names: tuple[str, ...], guide: str) -> str:
    records = [json.loads(p.read_text()) for name in names if (p := RESULTS / f"{name}.json").exists()]
    if not records:
        return ""
    return f"## {heading}\n\nExplained in [{guide.removesuffix('.md')}]({guide}).\n\n" + "\n".join(
        map(drawn, records)
    )


def drawn(record: dict[str, Any]) -> str:
    cores = f"{record['cores']} cores"
    parts = [
        record["about"],
        f"    {record['command']}",
        f"Run on {record['date']} with torch {record['torch'].split('+')[0]} on a machine of {cores}.",
    ]
    for sheet in filter(lambda sheet: sheet["rows"], record["sheets"]):
        parts += [f"**{sheet['title']}**"] if sheet["title"] else []
        parts.append(table(sheet))
    if record["lines"]:
        parts.append("\n".join(f"- {line}" for line in record["lines"]))
    return "\n\n".join(parts) + "\n"


def table(sheet: dict[str, Any]) -> str:
    forms = sheet["columns"]
    lines = [list(forms), ["---:" if is_number(form) else "---" for form in forms.values()]]
    lines += [[written(*pair) for pair in zip(row, forms.values(), strict=True)] for row in sheet["rows"]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"written to {PAGE.relative_to(ROOT)}")
