"""One rank, as `_spawn` starts it: python -m shardwise.verification._rank JOB RANKS RANK"""

import sys
from pathlib import Path

from ._spawn import run_rank

if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
