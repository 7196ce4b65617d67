"""Capture of models and functions as one graph, forward alone or with its backward, without their memory."""

from ._again import chosen_again, chosen_copies, copy_name, run_again
from ._attention import attention, attention_backward, kept
from ._below_autograd import below_autograd
from ._blocks import block_of, pattern
from ._boxed import boxed
from ._branches import branches_as_taken
from ._callable import as_module, call_arguments
from ._capture import capture
from ._compile import Compiled, backend_of, first_results
from ._cross_entropy import linear_cross_entropy
from ._device import active_autocast, autocast_on_cpu, autocast_to
from ._experts import experts, experts_backward
from ._fake import without_memory
from ._flops import cost
from ._graph import Execution, Graph, Input, Live, Node, Output, Ref, TensorInfo
from ._json import is_graph, read_graph
from ._kernels import Border, Kernels
from ._linear import has_layers, linear, linear_weight
from ._loss import with_loss
from ._named import Named, matched, named_tensors
from ._norms import rms_norm, rms_norm_backward
from ._recompute_blocks import kept_by_selective, may_run_again
from ._reduced import reduced_dtype, with_reduced_gradients
from ._results import opened
from ._run import Ran, arguments, constants, inputs_of, run
from ._segments import Crossing, Segments
from ._unchanged import unchanged
from ._whole import TENSOR, Whole

__all__ = [
    "TENSOR",
    "Border",
    "Compiled",
    "Crossing",
    "Execution",
    "Graph",
    "Input",
    "Kernels",
    "Live",
    "Named",
    "Node",
    "Output",
    "Ran",
    "Ref",
    "Segments",
    "TensorInfo",
    "Whole",
    "active_autocast",
    "arguments",
    "as_module",
    "attention",
    "attention_backward",
    "autocast_on_cpu",
    "autocast_to",
    "backend_of",
    "below_autograd",
    "block_of",
    "boxed",
    "branches_as_taken",
    "call_arguments",
    "capture",
    "chosen_again",
    "chosen_copies",
    "constants",
    "copy_name",
    "cost",
    "experts",
    "experts_backward",
    "first_results",
    "has_layers",
    "inputs_of",
    "is_graph",
    "kept",
    "kept_by_selective",
    "linear",
    "linear_cross_entropy",
    "linear_weight",
    "matched",
    "may_run_again",
    "named_tensors",
    "opened",
    "pattern",
    "read_graph",
    "reduced_dtype",
    "rms_norm",
    "rms_norm_backward",
    "run",
    "run_again",
    "unchanged",
    "with_loss",
    "with_reduced_gradients",
    "without_memory",
]
