"""Baselines: what people do by hand, as restrictions on the same problem, priced in the same way.

A baseline gives every mesh axis a mode. On a `data` axis the inputs are sharded by their first dim and parameters
are replicated; on an `fsdp` axis parameters are stored sharded and gathered before use; on a `tensor` axis the
inputs are replicated and parameters are used as they are stored. What that leaves open is solved for, so a baseline
is the best of its kind.

On three further modes of an axis parameters never move, as in Megatron-LM, and inputs are replicated. On a `products`
axis, other tensors are sharded only by products with parameters: partial sums are reduced to whole tensors. On a
`scattered` axis they are scattered instead, and gathered where they are needed: only vectors, and tensors whose last
dim has size one, are reduced to whole ones. Not every model can be run so; on a `stationary` axis other tensors may
move as they like. With `cut`, all parameters of products and lookups are sharded on such axes.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch.distributed.tensor.placement_types import Placement

from ..graph import Graph, Input, Node, Ref
from ..layout import Layout
from ..mesh import Mesh
from ..placements import is_partial, is_replicate, is_shard
from ._choices import Choices, Layouts

Mode = Literal["data", "fsdp", "tensor", "products", "scattered", "stationary"]
_STATIONARY = ("products", "scattered", "stationary")


@dataclass(frozen=True)
class Baseline:
    """A mode for every axis of a mesh."""

    name: str
    modes: tuple[Mode, ...]
    cut: bool = False


def baselines(mesh: Mesh) -> list[Baseline]:
    """The ways that are tried by hand: tensor parallelism runs along the last axis, whose links are the closest."""
    rest = mesh.ndim - 1
    data: list[Mode] = ["data"] * rest
    fsdp: list[Mode] = ["fsdp"] * rest
    found = [
        Baseline("data parallel", (*data, "data")),
        Baseline("FSDP", (*fsdp, "fsdp")),
        Baseline("tensor parallel", (*data, "tensor")),
    ]
    if rest:
        found.append(Baseline("FSDP x TP", (*fsdp, "tensor")))
    return found


class BaselineRestriction:
    """Which choices a baseline leaves."""

    def __init__(self, baseline: Baseline, graph: Graph, layouts: Layouts) -> None:
        self.baseline, self.graph, self.layouts = baseline, graph, layouts
        self.weights = _weights(graph)
        self.cut = _multiplied(graph, self.weights) if baseline.cut else set()

    def of_input(self, entry: Input, options: np.ndarray) -> np.ndarray | None:
        if entry.role == "tangent" or not entry.tensor.shape:
            return None
        masks = [self._of_axis(entry, options, axis, mode) for axis, mode in enumerate(self.baseline.modes)]
        mask = np.logical_and.reduce(masks)
        # Sizes may leave no layout of this kind: then the tensor is replicated.
        return mask if mask.any() else options == self.layouts.replicated

    def _of_axis(self, entry: Input, options: np.ndarray, axis: int, mode: Mode) -> np.ndarray:
        if self.layouts.mesh.shape[axis] == 1:
            return np.ones(len(options), bool)
        placed = [self.layouts.all[number].placements[axis] for number in options.tolist()]
        replicated = np.array([is_replicate(p) for p in placed])
        sharded = np.array([is_shard(p) for p in placed])
        first = np.array([is_shard(p) and p.dim == 0 for p in placed])
        if entry.role == "user_input":
            wanted = replicated if mode in ("tensor", *_STATIONARY) else first
        elif mode == "data" or entry.role != "parameter":
            wanted = replicated
        elif mode == "fsdp" or entry.name in self.cut:
            wanted = sharded
        else:
            wanted = np.ones(len(options), bool)
        return wanted if wanted.any() else replicated

    def of_output(self, position: int, options: np.ndarray) -> np.ndarray | None:
        return None

    def of_call(self, node: Node, choices: Choices) -> np.ndarray | None:
        """On axes where parameters are gathered before use, calls see them whole."""
        mask: np.ndarray | None = None
        whole = [axis for axis, mode in enumerate(self.baseline.modes) if mode == "fsdp"]
        for ref, column in zip(node.inputs, choices.inputs, strict=True):
            if ref in self.weights and whole:
                fits = np.array(
                    [
                        all(is_replicate(self.layouts.all[n].placements[a]) for a in whole)
                        for n in column.tolist()
                    ]
                )
                mask = fits if mask is None else mask & fits
        return mask if mask is None or mask.any() else None

    def of_move(self, ref: Ref) -> "Moves | None":
        """Which redistributions of a tensor are allowed; None if all are."""
        modes = tuple(mode if mode in _STATIONARY else None for mode in self.baseline.modes)
        return Moves(modes, ref in self.weights) if any(modes) else None


@dataclass(frozen=True)
class Moves:
    """The redistributions that the modes of axes allow: of a parameter, or of another tensor; of one with `sums`, those
    that leave sums over ranks as they are."""

    modes: tuple[str | None, ...]
    weight: bool
    sums: bool = False

    def allowed(self, source: Layout, target: Layout, shape: tuple[int, ...]) -> bool:
        pairs = list(zip(self.modes, source.placements, target.placements, strict=True))
        if self.sums and any(is_partial(a) and a != b for _, a, b in pairs):
            return False
        small = len(shape) < 2 or shape[-1] == 1
        return all(mode is None or self._on_axis(mode, a, b, small) for mode, a, b in pairs)

    def _on_axis(self, mode: str, source: Placement, target: Placement, small: bool) -> bool:
        if source == target or (is_replicate(source) and is_partial(target)):
            return True
        if self.weight:
            return False
        if mode == "products":
            return is_replicate(target)
        if mode == "scattered" and is_partial(source) and is_replicate(target):
            return small
        return mode == "stationary" or not (is_shard(source) and is_shard(target))


def _weights(graph: Graph) -> dict[Ref, str]:
    """Parameters, and what is nothing but a view or a cast of one, with the name of the parameter."""
    found = {Ref(entry.name): entry.name for entry in graph.with_role("parameter")}
    for node in graph.nodes:
        passes = node.facts.view or node.facts.cast
        if passes and node.inputs and all(ref in found for ref in node.inputs):
            found |= {Ref(node.name, o): found[node.inputs[0]] for o in range(len(node.outputs))}
    return found


def _multiplied(graph: Graph, weights: dict[Ref, str]) -> set[str]:
    """The parameters that are matrices of products, or tables of lookups."""
    users = (node for node in graph.nodes if node.facts.kernel == "matmul" or node.facts.lookup)
    refs = (ref for node in users for ref in node.inputs if len(graph.tensor(ref).shape) > 1)
    return {weights[ref] for ref in refs if ref in weights}
