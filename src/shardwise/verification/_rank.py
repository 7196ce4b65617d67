"""One rank, as `_spawn` starts it: python -m shardwise.verification._rank JOB RANKS RANK"""

import sys
from pathlib import Path

from ._spawn import serve

if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
