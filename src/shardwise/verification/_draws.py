"""The user's model, run with the random numbers of a plan.

A plan generates random numbers by position: each random call of the graph has a stream, indexed by element.
Here every random call of the model itself, in forward or in backward, gets the stream of the graph's corresponding call
for the whole tensor. So a model with dropout can be compared elementwise with the unmodified model.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..calls import Call, facts
from ..forms import draw
from ..graph import Graph, Node, Ref, kept


class UnmatchedDraws(Exception):
    """The model's random calls are not those of its graph: the two cannot be compared."""


class PlansDraws(TorchDispatchMode):
    """Within, random calls get the random numbers of a plan of the graph in the step with this seed.

    A recomputation in backward that restores the generator state, as checkpointing does, gets the same numbers again.
    """

    def __init__(self, graph: Graph, seed: int) -> None:
        super().__init__()
        assert graph.live is not None
        self.graph, self.seed = graph, seed
        self.waiting = list(graph.live.draws)
        self.total = len(self.waiting)
        self.made: dict[bytes, str | None] = {}

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call = Call(op, args, kwargs or {})
        name = self._next(call) if _draws(call) else None
        if name is None:
            return op(*args, **(kwargs or {}))
        node = self.graph[name]
        assert isinstance(node, Node)
        return self._drawn(node, call)

    def require_all_made(self) -> None:
        if self.waiting:
            raise UnmatchedDraws(
                f"the graph makes {self.total} random calls and the model {self.total - len(self.waiting)}"
            )

    def _next(self, call: Call) -> str | None:
        """The graph's call that corresponds to this one; None where nothing in the graph depends on it.

        It is found by the state of torch's generator.
        """
        state = torch.get_rng_state().numpy().tobytes()
        if state not in self.made:
            if not self.waiting:
                raise UnmatchedDraws(
                    f"the model calls {call.name} after the {self.total} random calls that its graph makes"
                )
            self.made[state] = self.waiting.pop(0)
        torch.rand(())  # the next call finds another state
        return self.made[state]

    def _drawn(self, node: Node, call: Call) -> Any:
        if _family(call.op) == _family(node.overload):
            self._require_same_shape(node, call)
            made = self._draw(node, _as_node_takes_it(node, call))
        elif facts(call.op).draws == "bernoulli" and "p" in call:
            made = self._kept(node, call).to(call["self"].dtype)
        else:
            raise UnmatchedDraws(f"the model calls {call.name} where its graph calls {node.op}")
        return _written(call, tuple(made) if isinstance(made, tuple | list) else (made,))

    def _kept(self, node: Node, call: Call) -> Tensor:
        """The mask of dropout. The model generates it before it multiplies, the graph in one call with the product."""
        shape, share = call.shape("self"), call["p"]
        attention = self._attention(node)
        if attention is not None:
            rate = _rate(self.graph, attention)
            query, key = (self.graph.tensor(ref).shape for ref in attention.inputs[:2])
            found = kept((*query[:3], key[2]), self._draw(node, self.graph.call(node)), rate)
        elif node.facts.draws == "dropout":
            self._require_same_shape(node, call)
            rate = self.graph.call(node)["p"]
            _, found = self._draw(node, Call(node.overload, (torch.ones(shape), rate, True)))
        else:
            raise UnmatchedDraws(f"the model calls {call.name} where its graph calls {node.op}")
        if abs(1 - rate - share) > 1e-6 or found.numel() != prod(shape):
            raise UnmatchedDraws(
                f"the model keeps {share:g} of {list(shape)} by {call.name} where its graph keeps {1 - rate:g} of "
                f"{list(found.shape)}"
            )
        return found.reshape(shape)

    def _attention(self, node: Node) -> Node | None:
        """The attention for whose dropout the node generates the seed."""
        users = self.graph.users.get(Ref(node.name), ())
        return next((user for user in users if draws_inside(self.graph, user)), None)

    def _require_same_shape(self, node: Node, call: Call) -> None:
        info, shape = node.outputs[0], _shape(call)
        assert info is not None
        if shape is not None and node.facts.draws is not None and tuple(shape) != info.shape:
            raise UnmatchedDraws(
                f"the model calls {call.name} for {list(shape)} where its graph makes {info}"
            )

    def _draw(self, node: Node, call: Call) -> Any:
        info = node.outputs[0]
        assert info is not None
        runs = [[(0, size)] if size else [] for size in info.shape]
        return draw(call, torch.tensor(self.seed), node.stream, info.shape, runs)


def draws_inside(graph: Graph, node: Node) -> bool:
    """True for a call that takes its random seed as an argument, as attention with dropout does."""
    return node.facts.seeded and _rate(graph, node) != 0


def _rate(graph: Graph, node: Node) -> float:
    name = node.facts.dropout
    return 0.0 if name is None else graph.call(node)[name]


def _draws(call: Call) -> bool:
    """False for a call that uses no random numbers, because it is not random or its dropout rate is 0."""
    known = facts(call.op)
    if not known.random or (known.dropout is not None and call[known.dropout] == 0):
        return False
    if any(name in call and call[name] is False for name in ("train", "training")):
        return False
    return not (known.draws == "dropout" and call["p"] == 0)


def _family(op: Any) -> str:
    """The operator without its in-place and functional variants: `normal_`, `normal_functional` and `normal` are
    one."""
    return op._schema.name.partition("::")[2].removesuffix("_").removesuffix("_functional")


def _as_node_takes_it(node: Node, call: Call) -> Call:
    """The call of the node's operator, which may be the functional form of the model's; without a generator."""
    names = {argument.name for argument in node.overload._schema.arguments} - {"generator"}
    return Call.named(node.overload, {n: value for n, value in call.arguments.items() if n in names})


def _shape(call: Call) -> Sequence[int] | None:
    if "size" in call:
        return call["size"]
    return next((call.shape(name) for name in ("self", "input") if call.has(name)), None)


def _written(call: Call, made: tuple[Any, ...]) -> Any:
    """The result of the model's call, given the results of its functional form: an in-place call writes them back."""
    written = [call[argument.name] for argument in call.schema.arguments if argument.is_write]
    returned = call.schema.returns
    if written and returned[0].alias_info is not None:
        return written[0].copy_(made[0])
    for place, value in zip(written, made[len(returned) :], strict=True):
        place.copy_(value)
    made = made[: len(returned)]
    return made[0] if len(made) == 1 else made
