"""Running a plan: simulated ranks, real ranks, and the proof that both equal the unsharded model."""

from ._checkpoint import Checkpoint, loaded_state, save_checkpoint
from ._emit import RankProgram, emit
from ._live import with_live_graph
from ._lower import Lowering, wide_dtype, widened
from ._module import Sharded
from ._optimizers import MakeOptimizer, chosen_optimizer
from ._parallelize import parallelize
from ._parallelize_stages import with_live_stages
from ._pieces import piece_of
from ._pipelined import Pipelined
from ._shard_map import ShardMapped, shard_map
from ._simulate import (
    Pieces,
    Simulated,
    Simulation,
    difference,
    moved,
    plan_pieces,
    require_planned,
    simulate,
)
from ._step import require_same_layout
from ._transfer import transfer, transfer_parcels

__all__ = [
    "Checkpoint",
    "Lowering",
    "MakeOptimizer",
    "Pieces",
    "Pipelined",
    "RankProgram",
    "ShardMapped",
    "Sharded",
    "Simulated",
    "Simulation",
    "chosen_optimizer",
    "difference",
    "emit",
    "loaded_state",
    "moved",
    "parallelize",
    "piece_of",
    "plan_pieces",
    "require_planned",
    "require_same_layout",
    "save_checkpoint",
    "shard_map",
    "simulate",
    "transfer",
    "transfer_parcels",
    "wide_dtype",
    "widened",
    "with_live_graph",
    "with_live_stages",
]
