"""Calls that were decomposed for the sake of their rules, as they were before.

The parts of an operator can be sharded where it cannot. But a rank that runs all parts of a call on the pieces that it
holds, with no collective between them, may as well run the operator on these pieces, which reads memory once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import getitem
from typing import Any

from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils import _pytree as pytree

_PART = "shardwise_part"


@dataclass(frozen=True)
class Whole:
    """A call of `op` that was decomposed. `leaves` are its arguments, with `TENSOR` for tensors.

    `takes` says where its parts use its tensors: the leaf, by the name of a node and the place among that node's
    inputs. `gives` are the places of its results, by the name and the output of the node that computes each.
    """

    op: str
    leaves: tuple[Any, ...]
    form: pytree.TreeSpec
    takes: dict[tuple[str, int], int]
    gives: dict[tuple[str, int], int]


TENSOR = object()


@dataclass(frozen=True)
class _Part:
    """What a node of the trace is for: a call, the leaves of that among its inputs, by place, and the place of the
    call's result that it is."""

    of: "_Origin"
    takes: Mapping[int, int]
    gives: int | None


@dataclass(frozen=True, eq=False)
class _Origin:
    name: str
    op: str
    leaves: tuple[Any, ...]
    form: pytree.TreeSpec


def noted(op: str, parts: Callable[..., Any], numbers: Iterator[int]) -> Callable[..., Any]:
    """The decomposition of an operator, whose calls note what they are part of."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        tracer = get_proxy_mode().tracer
        nodes = tracer.graph.nodes
        leaves, form = pytree.tree_flatten((args, kwargs))
        given = [_node_of(leaf, tracer) for leaf in leaves]
        rest = tuple(TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        origin = _Origin(f"{op}#{next(numbers)}", op, rest, form)
        before = len(nodes)
        made = parts(*args, **kwargs)
        if made is NotImplemented:  # the call stays whole
            return made
        results = [_node_of(leaf, tracer) for leaf in pytree.tree_leaves(made)]
        for node in islice(reversed(nodes), len(nodes) - before):
            takes = {place: given.index(each) for place, each in enumerate(_inputs(node)) if each in given}
            node.meta[_PART] = _Part(origin, takes, results.index(node) if node in results else None)
        return made

    return decomposed


def _node_of(leaf: Any, tracer: Any) -> fx.Node | None:
    return (
        get_proxy_slot(leaf, tracer, None, lambda slot: slot.proxy.node) if isinstance(leaf, Tensor) else None
    )


def _inputs(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def part_of(node: fx.Node) -> str:
    """The call that was decomposed into this one and others, by a name of its own, or ""."""
    part = node.meta.get(_PART)
    return part.of.name if part else ""


def wholes(graph: fx.Graph) -> dict[str, Whole]:
    """The calls that were decomposed, by the names that `part_of` gives."""
    found: dict[str, Whole] = {}
    for node in graph.nodes:
        part = node.meta.get(_PART)
        if part is None:
            continue
        origin = part.of
        whole = found.setdefault(origin.name, Whole(origin.op, origin.leaves, origin.form, {}, {}))
        whole.takes.update({(node.name, place): leaf for place, leaf in part.takes.items()})
        if part.gives is not None:
            source, output = (node.args[0], node.args[1]) if node.target is getitem else (node, 0)
            whole.gives[source.name, output] = part.gives
    return found
