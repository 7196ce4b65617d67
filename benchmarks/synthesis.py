"""Rules synthesized from sweeps: the number of clauses of each, and of held-out calls that it was validated on.

    python benchmarks/synthesis.py              the operators of the list
    python benchmarks/synthesis.py --hard       operators for which DTensor has no strategy
    python benchmarks/synthesis.py torch.kron   any others
    python benchmarks/synthesis.py --hard --pipeline

With --pipeline the whole command `shardwise discover OP --sweep --yaml F --emit-strategy F --emit-tests F` is run for
each operator, and its CPU seconds (user and system, start of Python and torch included) are printed.

One line per overload that an operator dispatches to: the number of clauses, the calls the rule was derived from, the
held-out calls it was validated on, the calls made to refute it, the CPU seconds of the study, and the first clause.
A design covers what an operator can be called with in few calls: what is left to hold out may be a dozen. Exit status 1
if a rule is missing or survived fewer calls than required that it was not derived from.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from record import Record, Sheet, takes_json

from shardwise.calls import resolve_op
from shardwise.errors import UsageError
from shardwise.synthesis import Study, studies

LISTED = (
    "torch.linalg.cross",
    "torch.softmax",
    "torch.log_softmax",
    "torch.sum",
    "torch.mean",
    "torch.amax",
    "torch.logsumexp",
    "torch.var",
    "torch.cumsum",
    "torch.sort",
    "torch.topk",
    "torch.argmax",
    "torch.gather",
    "torch.index_select",
    "torch.flip",
    "torch.roll",
    "torch.tril",
    "torch.diagonal",
    "torch.cat",
    "torch.stack",
    "torch.unsqueeze",
    "torch.squeeze",
    "torch.transpose",
    "torch.permute",
    "torch.select",
    "torch.narrow",
    "torch.unbind",
    "torch.Tensor.expand",
    "torch.repeat_interleave",
    "torch.nn.functional.layer_norm",
    "torch.add",
    "torch.where",
    "torch.addmm",
    "torch.bmm",
    "torch.nn.functional.conv2d",
    "torch.nn.functional.scaled_dot_product_attention",
    "torch.searchsorted",
    "torch.nn.functional.embedding",
)

HARD = (
    "torch.searchsorted",
    "torch.cdist",
    "torch.addbmm",
    "torch.renorm",
    "torch.Tensor.unfold",
    "torch.block_diag",
    "torch.masked_scatter",
    "torch.scatter_reduce",
    "torch.nn.functional.bilinear",
    "torch.nn.functional.unfold",
)

COLUMNS = {"operator": "`{}`", "overload": "`{}`", "clauses": "{:d}", "derived from": "{:d}"}
COLUMNS |= {"validated on": "{:d}", "made to refute": "{:d}", "CPU s": "{:.1f}", "first clause": "`{}`"}


def add(table: Sheet, study: Study, held: int) -> bool:
    """Adds one line; True if the rule survived at least `held` calls that it was not derived from."""
    rule = study.rule
    clauses = len(rule.clauses) if rule is not None else "no rule"
    first = str(rule.clauses[0]) if rule is not None and rule.clauses else None
    calls = (study.built_from, study.validated_on, study.refutations_tried)
    table.add(study.op, study.overload, clauses, *calls, study.seconds, first)
    return rule is not None and study.validated_on + study.refutations_tried >= held


def pipeline(op: str) -> float:
    """CPU seconds of the whole command in a separate process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        files = ["--yaml", "r.yaml", "--emit-strategy", "s.py", "--emit-tests", "test_s.py"]
        command = [sys.executable, "-c", "from shardwise.cli import main; main()", "discover", op, "--sweep"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
        subprocess.run([*command, *files], cwd=folder, env=environment, check=True, capture_output=True)
        if not (Path(folder) / "test_s.py").exists():
            return float("nan")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ops", nargs="*", help="operators such as torch.kron")
    parser.add_argument("--hard", action="store_true", help="operators for which DTensor has no strategy")
    parser.add_argument("--held", type=int, default=30, help="held-out calls that a rule must survive")
    parser.add_argument("--clauses", action="store_true", help="print every clause")
    parser.add_argument("--pipeline", action="store_true", help="time the whole command instead")
    takes_json(parser)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    names = options.ops or (HARD if options.hard else LISTED)
    record = Record(__doc__, options.json)
    if options.pipeline:
        table = record.sheet("The whole command", {"operator": "`{}`", "CPU s": "{:.1f}"}, wide=44)
        for name in names:
            table.add(name, pipeline(name))
        return 0
    table = record.sheet("", COLUMNS, wide=44)
    found = total = 0
    for name in names:
        started = time.process_time()
        try:
            results = studies(resolve_op(name))
        except UsageError as error:
            table.add(name, str(error), *[None] * 5)
            total += 1
            continue
        # The overload of most calls is the operator's; the others are variants with few samples.
        for i, study in enumerate(results):
            good = add(table, study, options.held)
            if i == 0:
                total, found = total + 1, found + good
            if options.clauses and study.rule is not None:
                print("\n".join(f"    {clause}" for clause in study.rule.clauses))
        if len(results) > 1:
            print(f"{name:<44}  all of its overloads: {time.process_time() - started:.1f} CPU s")
    record.say(
        f"{found} of {total} operators have a rule that survived {options.held} calls or more that it was not "
        "derived from."
    )
    return 0 if found == total else 1


if __name__ == "__main__":
    sys.exit(main())
