"""The command `python -m tests.independent`: check the book and print what was found."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from .checking import Finding
from .lookup import use_book
from .replay import finding_document, is_claimed, replayed
from .running import Result, check_book


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.independent", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--changes", type=int, default=60, help="changed calls of every overload")
    parser.add_argument("--only", nargs="*", help="names of OpInfos, such as addmm or nn_functional_conv2d")
    parser.add_argument("--ops", nargs="*", help="patterns of overloads, such as 'aten.max_pool*'; no others")
    parser.add_argument("--book", type=Path, help="a book other than the shipped one; it may be half built")
    parser.add_argument("--json", help="write what was found, with counterexamples that --replay reads")
    parser.add_argument("--replay", help="run the counterexamples of such a file again, and nothing else")
    given = parser.parse_args()
    if given.book:
        use_book(given.book)
    if given.replay:
        return 1 if replay(given.replay) else 0
    started, last = time.monotonic(), [""]

    def progress(op: str, result: Result) -> None:
        if op != last[0] and sys.stderr.isatty():
            last[0] = op
            print(
                f"\r\x1b[K{result.checks:9,} checks, {len(result.refuted)} refuted  {op}",
                end="",
                file=sys.stderr,
            )

    result = check_book(given.seed, given.jobs, given.changes, given.only, progress, given.ops)
    print(summary(result, time.monotonic() - started))
    if given.json:
        with open(given.json, "w") as file:
            json.dump(document(result), file, indent=1)
    return 1 if result.refuted or result.crashed or result.failed else 0


def summary(result: Result, seconds: float) -> str:
    lines = [
        f"seed {result.seed}: {result.checks:,} checks of rows ({result.by_shape:,} by shape alone), "
        f"{result.calls:,} calls, {len(result.names)} OpInfos, {len(result.overloads)} overloads, {seconds:.0f} s",
        f"refuted {len(result.refuted)}, crashed {len(result.crashed)} "
        f"(and {len(result.crashed_whole)} changed calls unsharded), rounding {len(result.rounding)}",
    ]
    for (op, clause), findings in sorted(result.refuted.items()):
        lines += [f"\nrefuted: {op}  {clause}  ({len(findings)} checks)", *shown(smallest(findings))]
    for op, died in result.crashed:
        lines += [f"\ncrashed: {op} ({died.cause})", *(f"  {line}" for line in died.running.splitlines())]
    for op, failed in result.failed:
        lines += [f"\nthe checker failed: {op}", f"  {failed.running}", failed.traceback]
    for (op, clause), findings in sorted(result.rounding.items()):
        lines += [f"\nrounding: {op}  {clause}  ({len(findings)} checks)", *shown(smallest(findings))]
    lines += ["", *(f"{count:,} calls skipped: {why}" for why, count in result.skipped.most_common())]
    return "\n".join(lines)


def shown(finding: Finding) -> list[str]:
    return [
        f"  {finding.row} on {finding.ranks} ranks, seed '{finding.seed}'",
        f"  {finding.call}",
        f"  {finding.text}",
    ]


def smallest(findings: list[Finding]) -> Finding:
    return min(findings, key=lambda f: (sum(t.numel() for t in f.call.tensors), f.ranks))


def document(result: Result) -> dict[str, Any]:
    def listed(kept: dict[tuple[str, str], list[Finding]]) -> list[dict[str, Any]]:
        return [
            {"op": op, "clause": clause, "count": len(findings)} | finding_document(smallest(findings))
            for (op, clause), findings in sorted(kept.items())
        ]

    return {
        "seed": result.seed,
        "checks": result.checks,
        "by shape": result.by_shape,
        "calls": result.calls,
        "names": sorted(result.names),
        "overloads": dict(sorted(result.overloads.items())),
        "refuted": listed(result.refuted),
        "rounding": listed(result.rounding),
        "crashed": [{"op": op, "running": died.running, "cause": died.cause} for op, died in result.crashed],
        "crashed unsharded": [
            {"op": op, "running": died.running, "cause": died.cause} for op, died in result.crashed_whole
        ],
        "skipped": dict(result.skipped),
        "unchecked": {op: why for op, why in sorted(result.unchecked.items()) if op not in result.overloads},
    }


def replay(path: str) -> int:
    """Run the counterexamples of a file again; how many refute rows that the book gives."""
    with open(path) as file:
        refuted = json.load(file)["refuted"]
    left = 0
    for document in refuted:
        try:
            claimed, wrong = is_claimed(document), bool(replayed(document).refuted)
        except ValueError as error:
            print(f"no call of the operator ({error}): {document['op']}  {document['called']}")
            continue
        left += claimed and wrong
        state = (
            "still refuted" if claimed and wrong else "refuted, and no longer claimed" if wrong else "holds"
        )
        print(f"{state}: {document['op']}  {document['row']}\n  {document['called']}")
    return left


if __name__ == "__main__":
    sys.exit(main())
