"""Running a plan: simulated ranks, real ranks, and the proof that both equal the unsharded model."""

from ._emit import Program, emit
from ._module import Sharded
from ._parallelize import parallelize
from ._report import Report
from ._shard_map import ShardMapped, shard_map
from ._simulate import Pieces, Simulated, Simulation, simulate
from ._spawn import on_ranks
from ._transfer import transfer, transfer_parcels
from ._verify import priced_collectives, verify

__all__ = [
    "Pieces",
    "Program",
    "Report",
    "ShardMapped",
    "Sharded",
    "Simulated",
    "Simulation",
    "emit",
    "on_ranks",
    "parallelize",
    "priced_collectives",
    "shard_map",
    "simulate",
    "transfer",
    "transfer_parcels",
    "verify",
]
