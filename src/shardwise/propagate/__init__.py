"""Propagation of shardings through the factors of operations, to a fixed point."""

from ._case import level_of, mismatches, program_of, read_cases
from ._levels import LEVELS, STAGES, Level
from ._program import DIRECTIONS, OP_KINDS, Direction, Node, OpKind, Program, Result, Value, kind_of
from ._run import Propagation, propagate
from ._spmd import LocalRun, Reshard, infer_output_sharding, local_run, reshard_inputs
from ._trace import Trace

__all__ = [
    "DIRECTIONS",
    "LEVELS",
    "OP_KINDS",
    "STAGES",
    "Direction",
    "Level",
    "LocalRun",
    "Node",
    "OpKind",
    "Program",
    "Propagation",
    "Reshard",
    "Result",
    "Trace",
    "Value",
    "infer_output_sharding",
    "kind_of",
    "level_of",
    "local_run",
    "mismatches",
    "program_of",
    "propagate",
    "read_cases",
    "reshard_inputs",
]
