"""Import times of the package, of the command's help and of the first use of a room, compared with `import torch`.

    python benchmarks/imports.py [--runs 5]

Each line is a separate program in a fresh process: CPU time, best of several interleaved runs, minus that of an empty
program. Fails if importing shardwise and torch takes more than 1.4 times as long as `import torch`, or
`shardwise --help` more than 1.5 times. Rows and layouts consist of DTensor's placements, so anything that uses them
loads `torch.distributed.tensor`.
"""

import argparse
import resource
import subprocess
import sys

from record import Record, takes_json

EMPTY, TORCH = "", "import torch"
PROGRAMS = {
    TORCH: TORCH,
    "import torch, shardwise": "import torch, shardwise",
    "shardwise --help": "import sys; sys.argv = ['shardwise', '--help']; from shardwise.cli import main; main()",
    "import torch.distributed.tensor": "import torch.distributed.tensor",
    "sw.rule(torch.mm)": "import torch, shardwise as sw; sw.rule(torch.mm)",
    "sw.Plan": "import shardwise as sw; sw.Plan",
    "every room": "import torch, shardwise as sw; [getattr(sw, room) for room in dir(sw)]",
}
MOST = {"import torch, shardwise": 1.4, "shardwise --help": 1.4 * 1.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    takes_json(parser)
    options = parser.parse_args()
    best = dict.fromkeys([EMPTY, *PROGRAMS.values()], float("inf"))
    for _ in range(options.runs):
        for program in best:
            best[program] = min(best[program], seconds(program))
    record = Record(__doc__, options.json)
    columns = {"program": "`{}`", "CPU s": "{:.2f}", "of import torch's": "{:.2f}x", "at most": "{:.1f}x"}
    table = record.sheet("", columns, 32)
    slow = []
    for name, program in PROGRAMS.items():
        taken = best[program] - best[EMPTY]
        ratio = taken / (best[TORCH] - best[EMPTY])
        table.add(name, taken, ratio, MOST.get(name))
        slow += [name] if ratio > MOST.get(name, ratio) else []
    record.say(f"The best of {options.runs} runs each.")
    if slow:
        sys.exit(f"too slow: {', '.join(slow)}")


def seconds(program: str) -> float:
    """CPU seconds of a program."""
    before = cpu_of_children()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    return cpu_of_children() - before


def cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
