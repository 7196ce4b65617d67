"""The command `python -m tests.combinations`: try choices of every overload's calls and print what was found."""

import argparse
import sys
import time
from collections import defaultdict

from .sweep import Result, every_name, sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.combinations", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--each", type=int, default=3, help="calls of an overload from one OpInfo")
    parser.add_argument("--part", default="1/1", help="of all OpInfos, such as 2/3: the second third")
    parser.add_argument("--only", nargs="*", help="names of OpInfos, or attention")
    parser.add_argument("--lost", action="store_true", help="show the choices that hold and are not allowed")
    given = parser.parse_args()
    started = time.monotonic()

    part, parts = map(int, given.part.split("/"))
    names = (given.only or every_name())[part - 1 :: parts]
    shown = 0

    def progress(result: Result) -> None:
        nonlocal shown
        for call, choice, reason in result.refuted[shown : shown + 3]:
            print(f"refuted: {call}\n    {choice}\n    {reason}", file=sys.stderr, flush=True)
        shown = len(result.refuted)
        if sys.stderr.isatty():
            print(f"\r{result.choices:9,} choices, {len(result.refuted)} refuted", end="", file=sys.stderr)

    result = sweep(given.seed, given.jobs, given.each, names, progress)
    print(
        f"seed {given.seed}: {result.choices:,} choices ({result.with_forms:,} with local forms) of {result.calls:,} "
        f"calls on a mesh, {len(result.overloads)} overloads, {time.monotonic() - started:.0f} s; "
        f"{len(result.refuted)} refuted, {sum(result.undecided.values())} undecided, "
        f"{len(result.crashed)} crashed; of {result.excluded:,} not allowed {len(result.lost)} hold"
    )
    by_op = defaultdict(list)
    for call, choice, reason in result.refuted:
        by_op[call.partition("(")[0]].append((call, choice, reason))
    for op, found in sorted(by_op.items()):
        print(f"\nrefuted: {op} ({len(found)} choices)")
        for call, choice, reason in found[:3]:
            print(f"  {call}\n    {choice}\n    {reason}")
    for died in result.crashed:
        print(f"\ncrashed: {died.cause}\n  {died.running}")
    for failed in result.failed:
        print(f"\nthe sweep failed: {failed.running}\n{failed.traceback}")
    if given.lost:
        for call, choice in result.lost:
            print(f"lost: {call}\n    {choice}")
    return 1 if result.refuted or result.failed else 0


if __name__ == "__main__":
    sys.exit(main())
