"""The command `python -m tests.random_plans`: verify random plans and print those that are wrong."""

import argparse
import sys
import time

from .models import MODELS
from .verifying import MESHES, verified


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_plans", description=__doc__)
    parser.add_argument("--plans", type=int, default=20, help="of each model on each mesh")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--meshes", nargs="*", default=list(MESHES))
    parser.add_argument("--ahead", type=int, help="bytes of collectives under way beside calls")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.plans)
    plans = wrong = sharded = calls = collectives = 0
    for model in given.models:
        started = time.process_time()
        for found in verified(model, given.meshes, seeds, given.ahead):
            report = found.report
            plans, wrong = plans + 1, wrong + (not report.ok)
            sharded, calls = sharded + report.sharded, calls + report.calls
            collectives += len(report.collectives)
            if not report.ok:
                print(f"\nwrong: {model} on {found.mesh}, seed {found.seed}\n{report}", flush=True)
        print(
            f"{model}: {plans} plans so far, {wrong} wrong, {time.process_time() - started:.0f} CPU s",
            flush=True,
        )
    print(
        f"{plans} plans, {wrong} wrong; {sharded:,} of {calls:,} calls sharded, {collectives:,} collectives"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
