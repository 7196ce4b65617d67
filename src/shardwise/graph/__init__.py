"""Capture of models and functions as one graph, forward alone or with its backward, without their memory."""

from ._attention import attention, attention_backward
from ._capture import capture
from ._flops import cost, is_view
from ._graph import Graph, Input, Live, Node, Output, Ref, TensorInfo
from ._run import Ran, run

__all__ = [
    "Graph",
    "Input",
    "Live",
    "Node",
    "Output",
    "Ran",
    "Ref",
    "TensorInfo",
    "attention",
    "attention_backward",
    "capture",
    "cost",
    "is_view",
    "run",
]
