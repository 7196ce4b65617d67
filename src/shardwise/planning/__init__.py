"""From a graph to the cheapest plan: choices per node, prices, the problem, and its solution explained."""

from ._amounts import memory_of
from ._best import best_plan, require_stages
from ._call_prices import CallPrice, collectives_inside, form_price
from ._candidates import Candidate
from ._confirm import Confirmation, RefutedChoice
from ._cuts import Cuts, best_cuts
from ._discovered import Discovered
from ._doctor import Diagnosis, Replicated, diagnosis, doctor
from ._elsewhere import Elsewhere, place_of
from ._evaluate import Cost, peak_of_values
from ._explain import Considered, Explainer
from ._front import Front, Setup, Tried, chosen, front, graphs, meshes_of
from ._homes import OnceMove
from ._most_sharded import most_sharded_plan
from ._named import NamedLayout
from ._offers import Offers
from ._pass import Pass
from ._pins import Pin, exactly
from ._pipeline import AXIS, Pipeline, inner_mesh, joined
from ._pipeline_json import load_plan
from ._pipeline_price import Part, PipelinePrice, parts_of, pipelined
from ._pipelining import plan_pipeline
from ._plan import BaselineCost, Copy, Plan, require_plan
from ._plan_model import plan, plan_graph
from ._planner import GAP, Planner
from ._price import (
    Held,
    Price,
    StepMemory,
    StepTime,
    pipeline_held,
    pipeline_time,
    price,
    price_graph,
    price_plan,
    reserved_bytes,
    tensor_parallel_plan,
    tensor_parallel_plans,
)
from ._proposal import Proposal
from ._random import random_plan
from ._schedule import Compute, Entry, Move, Schedule, Value, Wait, after_arguments, backward_entries
from ._search import DoesNotFit
from ._stage_times import ActionSpan, PipelineTime, Send, StageTime, in_flight, simulated
from ._summary import bytes_text, departures_text, time_text
from ._timeline import CALLS, Span, Timeline
from ._ways import ways

__all__ = [
    "AXIS",
    "CALLS",
    "GAP",
    "ActionSpan",
    "BaselineCost",
    "CallPrice",
    "Candidate",
    "Compute",
    "Confirmation",
    "Considered",
    "Copy",
    "Cost",
    "Cuts",
    "Diagnosis",
    "Discovered",
    "DoesNotFit",
    "Elsewhere",
    "Entry",
    "Explainer",
    "Front",
    "Held",
    "Move",
    "NamedLayout",
    "Offers",
    "OnceMove",
    "Part",
    "Pass",
    "Pin",
    "Pipeline",
    "PipelinePrice",
    "PipelineTime",
    "Plan",
    "Planner",
    "Price",
    "Proposal",
    "RefutedChoice",
    "Replicated",
    "Schedule",
    "Send",
    "Setup",
    "Span",
    "StageTime",
    "StepMemory",
    "StepTime",
    "Timeline",
    "Tried",
    "Value",
    "Wait",
    "after_arguments",
    "backward_entries",
    "best_cuts",
    "best_plan",
    "bytes_text",
    "chosen",
    "collectives_inside",
    "departures_text",
    "diagnosis",
    "doctor",
    "exactly",
    "form_price",
    "front",
    "graphs",
    "in_flight",
    "inner_mesh",
    "joined",
    "load_plan",
    "memory_of",
    "meshes_of",
    "most_sharded_plan",
    "parts_of",
    "peak_of_values",
    "pipeline_held",
    "pipeline_time",
    "pipelined",
    "place_of",
    "plan",
    "plan_graph",
    "plan_pipeline",
    "price",
    "price_graph",
    "price_plan",
    "random_plan",
    "require_plan",
    "require_stages",
    "reserved_bytes",
    "simulated",
    "tensor_parallel_plan",
    "tensor_parallel_plans",
    "time_text",
    "ways",
]
