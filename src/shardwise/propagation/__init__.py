"""Propagation of shardings through the factors of operations, to a fixed point."""

from ..factors import Factor, FactorRule, Kind, Template, TensorFactors, factors_of_call, rule_for
from ._annotations import Annotations
from ._captured import CapturedProgram, GraphPropagation, captured_program
from ._case import level_of, mismatches, program_of, read_cases
from ._levels import LEVELS, STAGES, Level
from ._program import (
    DIRECTIONS,
    OP_KINDS,
    Direction,
    Operation,
    OpKind,
    Program,
    ProgramValue,
    Result,
    kind_of,
)
from ._propagate import propagate, propagate_graph
from ._run import Propagation
from ._spmd import LocalRun, Reshard, infer_output_sharding, local_run, reshard_inputs
from ._trace import Trace

__all__ = [
    "DIRECTIONS",
    "LEVELS",
    "OP_KINDS",
    "STAGES",
    "Annotations",
    "CapturedProgram",
    "Direction",
    "Factor",
    "FactorRule",
    "GraphPropagation",
    "Kind",
    "Level",
    "LocalRun",
    "OpKind",
    "Operation",
    "Program",
    "ProgramValue",
    "Propagation",
    "Reshard",
    "Result",
    "Template",
    "TensorFactors",
    "Trace",
    "captured_program",
    "factors_of_call",
    "infer_output_sharding",
    "kind_of",
    "level_of",
    "local_run",
    "mismatches",
    "program_of",
    "propagate",
    "propagate_graph",
    "read_cases",
    "reshard_inputs",
    "rule_for",
]
