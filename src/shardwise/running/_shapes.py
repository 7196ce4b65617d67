"""Plans by the shapes of arguments: one model, its parameters where the first plan has them, and a program per shape.

A last batch is smaller, evaluation has another length. `shapes` says which shapes there may be besides those of the
example arguments; each is planned when it is first met, by the first rank, with every parameter and buffer pinned to
the layout that it has.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import UsageError, require
from ..graph import Graph, arguments, as_module, autocast_to, capture, has_layers
from ..planning import Plan, exactly, plan_graph
from ._agree import agreed, from_first, require_same_on_all_ranks
from ._emit import RankProgram, emit
from ._live import with_live_graph
from ._step import Step

# Shapes of arguments by name; a size of None is any.
Pattern = Mapping[str, Sequence[int | None]]

_Key = tuple[tuple[str, tuple[int, ...]], ...]


class Shapes:
    """The steps of a sharded model, by the shapes of its arguments."""

    def __init__(
        self, allowed: Sequence[Pattern], model: Callable[..., Any], search: Mapping[str, Any]
    ) -> None:
        self.allowed = [_read(pattern) for pattern in allowed]
        self.model, self.search = model, search
        self._modes = {part: part.training for part in as_module(model).modules()}
        self._steps: dict[_Key, Step] = {}

    def begin(self, first: Step, make: Callable[[RankProgram], Step]) -> None:
        """`first` is the step of the example arguments; `make` makes those of other programs."""
        self.first, self.make = first, make
        if first.plan.elsewhere:
            raise UsageError("`shapes` cannot be combined with a plan whose arguments come from other meshes")
        if first.plan.once.names:
            option = "offload" if first.plan.on_host else "zero" if first.plan.homes else "reduce"
            raise UsageError(
                f"`shapes` cannot be combined with {option}: other shapes have passes of their own"
            )
        inputs = {entry.target: entry.tensor for entry in self._graph.with_role("user_input")}
        for pattern in self.allowed:
            for name, shape in pattern.items():
                if name not in inputs:
                    raise UsageError(
                        f"shapes has {name!r}, which is no argument: those are {', '.join(inputs)}"
                    )
                if len(shape) != len(inputs[name].shape):
                    raise UsageError(f"shapes has {name!r} as {list(shape)}, but it is {inputs[name]}")
        self._steps[self._key_of_first()] = first

    @property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(step.plan for step in self._steps.values())

    @property
    def _graph(self) -> Graph:
        return self.first.plan.graph

    def _key_of_first(self) -> _Key:
        return tuple((entry.target, entry.tensor.shape) for entry in self._graph.with_role("user_input"))

    def step(self, call: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
        """The step of a call with these arguments, planned if such shapes were not met before."""
        key = self._key(args, kwargs)
        if key not in self._steps and not any(self._fits(key, pattern) for pattern in self.allowed):
            raise UsageError(
                f"{self._graph.name} is called with {_text(key)}, for which there is no plan: there are plans for "
                f"{'; '.join(map(_text, self._steps))}, and `shapes` of parallelize allows "
                f"{'; '.join(_text(pattern.items()) for pattern in self.allowed)}"
            )
        require_same_on_all_ranks(call, _text(key))
        if key not in self._steps:
            self._steps[key] = self._planned(args, kwargs)
        return self._steps[key]

    def _key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Key:
        given = arguments(self._graph, args, kwargs)
        found = []
        for entry in self._graph.with_role("user_input"):
            tensor = given[entry.name]
            if not isinstance(tensor, Tensor):
                raise UsageError(
                    f"argument {entry.target!r} is {tensor!r}, but was planned as {entry.tensor}"
                )
            found.append((entry.target, tuple(tensor.shape)))
        return tuple(found)

    def _fits(self, key: _Key, pattern: Mapping[str, tuple[int | None, ...]]) -> bool:
        usual = dict(self._key_of_first())
        return all(
            len(shape) == len(wanted)
            and all(w in (None, size) for size, w in zip(shape, wanted, strict=True))
            for name, shape in key
            for wanted in [pattern.get(name, usual[name])]
        )

    def _planned(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
        """The step of shapes that were not met before. All ranks take part."""
        plan, mesh = self.first.plan, self.first.device_mesh
        examples, named = pytree.tree_map_only(Tensor, _example, (tuple(args), dict(kwargs)))
        graph = agreed("capturing the model", lambda: self._captured(examples, named))

        def planned() -> dict[str, Any]:
            return _as_the_first(plan, graph, self.search).to_json() if dist.get_rank() == 0 else {}

        shared = Plan.from_json(from_first(agreed("planning", planned)))
        own = agreed(
            "comparing the graphs", lambda: with_live_graph(shared, self.model, examples, named, graph)
        )
        rank = self.first.program.rank
        return self.make(agreed("lowering", lambda: emit(own, rank, mesh, mesh.device_type)))

    def _captured(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
        first = self._graph
        losses = [entry.target for entry in first.with_role("tangent")]
        with self._as_planned(), autocast_to(first.autocast):
            graph = capture(
                *(self.model, args, kwargs),
                training=first.training,
                loss=losses or None,
                execution=first.execution,
                recompute=dict(first.recompute) or "none",
                split_products=has_layers(first),
            )
        known = {entry.target: entry for entry in first.inputs if entry.role in ("parameter", "buffer")}
        for entry in graph.inputs:
            if entry.role in ("parameter", "buffer"):
                held = known.get(entry.target)
                if held is None or (held.tensor, held.trainable) != (entry.tensor, entry.trainable):
                    raise UsageError(
                        f"with these shapes {first.name} uses {entry.role} {entry.target!r} as {entry.tensor}, "
                        "which the first plan does not have so: the model must not change after parallelize"
                    )
        return graph

    @contextmanager
    def _as_planned(self) -> Iterator[None]:
        """The modes of all parts (`train()`, `eval()`) as they were when the first plan was made."""
        now = {part: part.training for part in self._modes}
        try:
            for part, mode in self._modes.items():
                part.training = mode
            yield
        finally:
            for part, mode in now.items():
                part.training = mode


def _as_the_first(plan: Plan, graph: Graph, search: Mapping[str, Any]) -> Plan:
    """A plan of another graph of the same model, for what the first was planned for, with its state where it is."""
    layouts = {entry.target: plan.inputs[entry.name] for entry in plan.graph.inputs}
    state = [entry.target for entry in graph.inputs if entry.role in ("parameter", "buffer")]
    return plan_graph(
        graph,
        mesh=plan.mesh,
        cluster=plan.cluster,
        memory=plan.memory,
        optimizer=plan.optimizer,
        pin={**plan.pins, **{exactly(name): layouts[name] for name in state}},
        shardings=plan.shardings or None,
        share_layers=plan.share_layers,
        overlap=plan.ahead is not None,
        compare=False,
        **search,
    )


def _example(tensor: Tensor) -> Tensor:
    """A tensor of this shape without values."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)


def _read(pattern: Pattern) -> dict[str, tuple[int | None, ...]]:
    right = "shapes by argument, such as {'x': (None, 16)}"
    require(pattern, Mapping, "an entry of shapes", right)
    for name, shape in pattern.items():
        require(name, str, "a name in shapes", "the name of an argument")
        require(shape, (tuple, list, torch.Size), f"shapes[{name!r}]", "sizes, with None for any")
        for size in shape:
            require(
                size, (int, type(None)), f"a size of {name!r} in shapes", "a whole number, or None for any"
            )
    return {name: tuple(shape) for name, shape in pattern.items()}


def _text(shapes: Any) -> str:
    return ", ".join(
        f"{name} [{', '.join('any' if size is None else str(size) for size in shape)}]"
        for name, shape in shapes
    )
