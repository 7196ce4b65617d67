"""`Step`: the program of one plan on this rank, run with the state of a module.

Forward and backward are the two parts of the rank's program, joined by one `autograd.Function`; everything around
them (optimizers, clipping, state dicts, checkpoints) sees ordinary DTensor parameters with DTensor gradients.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils import _pytree as pytree

from ..dtensor import layout_of, local_of, redistribute, run_chain
from ..errors import UsageError
from ..forms import operator_by
from ..graph import (
    Compiled,
    Graph,
    Input,
    Named,
    Ref,
    arguments,
    autocast_to,
    backend_of,
    below_autograd,
    boxed,
    constants,
    first_results,
)
from ..layout import Layout
from ..placements import is_partial
from ..planning import Compute, Plan, Value, place_of
from ..redistribution import Prices
from ._agree import explained
from ._emit import RankProgram
from ._held import Held
from ._pieces import as_dtensor, piece_of

# Where a parameter or buffer is kept: the dict that has it, and its name there.
Place = tuple[dict[str, Any], str]


class Step:
    """One plan's forward and backward on this rank. `place` says where the module keeps a parameter or buffer."""

    def __init__(
        self,
        program: RankProgram,
        device_mesh: DeviceMesh,
        place: Callable[[str], Place],
        *,
        local_outputs: bool = False,
        compile: bool | str = False,
    ) -> None:
        self.plan, self.program, self.device_mesh = program.plan, program, device_mesh
        self.local_outputs = local_outputs
        self.held = Held(self.plan, device_mesh, program.rank)
        self._parts = program.parts
        self.deferred: list[Callable[[], None]] = []  # second parts of backward that have not run
        self._note: Callable[[str], None] | None = None
        self._compile = bool(compile)
        prepared = boxed
        if compile:
            require_compilable(self.plan)
            prepared = partial(Compiled, backend=backend_of("inductor" if compile is True else compile))
        self._forward, *self._backward = map(prepared, (program.forward, *program.backward))
        self._results = prepared(first_results(program.forward, len(self._parts.results)))
        self._constants = {
            name: piece_of(tensor, self.plan.inputs[name], program.rank).to(device_mesh.device_type)
            for name, tensor in constants(self._graph).items()
        }
        outputs = zip(self._graph.outputs, self.plan.schedule.outputs, strict=True)
        values = {(o.role, o.target): value for o, value in outputs if value is not None}
        # The output that each tangent belongs to, and the gradient of each input.
        self._starts = {
            tangent: values["user_output", entry.target]
            for tangent, entry in zip(self._parts.tangents, self._graph.with_role("tangent"), strict=True)
            if ("user_output", entry.target) in values
        }
        self._gradients = {
            Value(Ref(entry.name)): values["gradient", entry.target]
            for entry in self._graph.inputs
            if entry.role != "tangent" and ("gradient", entry.target) in values
        }
        self._wanted = _wanted_elsewhere(self.plan)
        self._named = {entry.name: entry for entry in self._graph.inputs}
        known = [node.facts for node in self._graph.nodes]
        self._draws_by_generator = any(fact.random and fact.draws is None for fact in known)
        # Looked up in every step, because users may replace the tensor.
        state = [entry for entry in self._graph.inputs if entry.role in ("parameter", "buffer")]
        self._where = {entry.name: place(entry.target) for entry in state}
        self._state = {entry.target: self._where[entry.name] for entry in state}
        for target, layout in _mutated(self.plan).items():
            require_same_layout(self.plan, target, layout)

    @property
    def _graph(self) -> Graph:
        return self.plan.graph

    def inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """This rank's pieces of the program's inputs, for a call with these arguments, and then a slot for the gradient
        of each parameter that has a home."""
        return self.pieces(arguments(self._graph, args, kwargs))

    def pieces(self, given: Mapping[str, Any]) -> list[Tensor]:
        """The same for arguments by their names in the graph."""
        places = {name: self._where[name] for name in self.held.names}
        parameters = {name: tensors[last] for name, (tensors, last) in places.items()}
        held = self.held.locals(parameters, torch.is_grad_enabled())
        names = [value.ref.name for value in self._parts.inputs]
        pieces = [held[name] if name in held else self._input(name, given) for name in names]
        # Where gradients of parameters are computed later, autograd has no part in them.
        slots = self.held.slots(parameters) if len(self._backward) < 2 else self.held.empty()
        return [*pieces, *slots]

    def run(self, call: str, inputs: Sequence[Tensor], seed: int) -> Any:
        """The results of a call, as the model returns them."""
        assert self._graph.live is not None
        return pytree.tree_unflatten([*self.results(call, inputs, seed).values()], self._graph.live.out_spec)

    def results(
        self, call: str, inputs: Sequence[Tensor], seed: int, note: Callable[[str], None] | None = None
    ) -> dict[str, Any]:
        """The results of a call by name; `note` is told of its `backward`, or of both parts: `input` and `weight`."""
        self._note = note
        number = torch.tensor(seed, device=self.device_mesh.device_type)
        # Casts are part of the program.
        with explained(call), self._generator(seed + 1), autocast_to(None):
            results = self._run(call, *inputs, number)
        values = dict(zip(self._parts.results, results, strict=True))
        found: dict[str, Any] = {}
        for output, value in zip(self._graph.outputs, self.plan.schedule.outputs, strict=True):
            if output.role == "user_output":
                made = output.constant if value is None else self._output(value, values[value])
                found[output.target] = self._sent(output.target, made)
            elif output.role == "mutation" and value is not None:
                self._write(output.target, values[value].detach())
        return found

    def _run(self, call: str, *given: Tensor) -> Sequence[Tensor]:
        """The results of forward, from its inputs, the slots and the seed."""
        if torch.is_grad_enabled() and self._backward:
            return _Run.apply(self, call, *given)
        with self._quietly():
            return self._results(self._taken(given))

    def forward_part(self, *given: Tensor) -> Sequence[Tensor]:
        """The results of forward and what backward needs."""
        with self._quietly():
            return self._forward(self._taken(given))

    def _taken(self, given: Sequence[Tensor]) -> list[Tensor]:
        return [*given[: len(self._parts.inputs)], given[-1]]

    def _quietly(self) -> AbstractContextManager[None]:
        """Where autograd keeps no record of single calls, and no compiler traces them."""
        keeps = torch.is_grad_enabled() or self._compile
        return nullcontext() if keeps else below_autograd()

    def _input(self, name: str, given: Mapping[str, Any]) -> Tensor:
        if name in self._where:
            tensors, last = self._where[name]
            return local_of(tensors[last])
        if name in self._constants:
            return self._constants[name]
        return self._argument(self._named[name], given[name])

    def _argument(self, entry: Input, tensor: Any) -> Tensor:
        layout, info = self.plan.inputs[entry.name], entry.tensor
        if not isinstance(tensor, Tensor) or tensor.dtype != info.dtype:
            raise UsageError(f"argument {entry.target!r} is {_shown(tensor)}, but was planned as {info}")
        if isinstance(tensor, DTensor):
            if tuple(tensor.shape) != info.shape:
                raise UsageError(f"argument {entry.target!r} is {_shown(tensor)}, but was planned as {info}")
            if tensor.device_mesh != self.device_mesh:
                from ._transfer import transfer

                return transfer(tensor, self.device_mesh, layout).to_local()
            if layout_of(tensor) == layout:
                return tensor.to_local()
            if tensor.requires_grad:
                return tensor.redistribute(placements=layout.to_placements()).to_local()
            return redistribute(tensor, layout, cluster=self.plan.cluster).to_local()
        local = layout.local_shape(info.shape, self.program.rank)
        if tuple(tensor.shape) == info.shape:
            if tensor.requires_grad and local != info.shape:
                whole = DTensor.from_local(tensor, self.device_mesh, [Replicate()] * self.device_mesh.ndim)
                return whole.redistribute(placements=layout.to_placements()).to_local()
            return piece_of(tensor, layout, self.program.rank)
        if tuple(tensor.shape) == local:
            return tensor
        raise UsageError(
            f"argument {entry.target!r} is {_shown(tensor)}, but was planned as {info}, "
            f"of which rank {self.program.rank} holds {list(local)}; `shapes` of parallelize allows others"
        )

    def _output(self, value: Value, local: Tensor) -> Tensor:
        if self.local_outputs:
            return local
        shape = self._graph.tensor(value.ref).shape
        return as_dtensor(local, self.plan.schedule.layouts[value], self.device_mesh, shape)

    def _sent(self, target: str, result: Any) -> Any:
        """A result on the mesh where it is wanted."""
        if target not in self._wanted or self.local_outputs:
            return result
        from ._transfer import transfer

        return transfer(result, *self._wanted[target])

    def _write(self, target: str, local: Tensor) -> None:
        if target in self._state:
            tensors, last = self._state[target]
            with torch.no_grad():
                tensors[last].to_local().copy_(local)

    def _generator(self, seed: int) -> AbstractContextManager[Any]:
        """The same random numbers on every rank, for operators whose random numbers are not generated by position."""
        return _seeded(seed) if self._draws_by_generator else nullcontext()

    def starts_backward(self, value: Value) -> bool:
        return value in self._starts.values()

    def gradients(
        self, call: str, values: list[Tensor], note: Callable[[str], None] | None
    ) -> dict[Value, Tensor]:
        """What the first part of backward makes, from what it takes; if there is a second one, it is deferred."""
        parts, seed = self._parts, values[-1]
        if note is not None:
            note("backward" if len(self._backward) == 1 else "input")
        with explained(call), torch.no_grad(), autocast_to(None), self._quietly():
            made = list(self._backward[0](values))
        if len(self._backward) == 1:
            return dict(zip(parts.gradients, made, strict=True))
        handed = [*made[len(parts.of_arguments) :], seed]
        self.deferred.append(partial(self._finish, call, handed, note))
        return dict(zip(parts.of_arguments, made, strict=False))

    def _finish(self, call: str, handed: list[Tensor], note: Callable[[str], None] | None) -> None:
        """The second part of backward: parameters get their gradients, or add them to those that they have."""
        if note is not None:
            note("weight")
        with explained(call), torch.no_grad(), autocast_to(None):
            with self._quietly():
                gradients = self._backward[1](handed)
            made = dict(zip(self._parts.of_parameters, gradients, strict=True))
            of = {name: self._gradients.get(Value(Ref(name))) for name in self._where}
            found = {name: None if value is None else made[value] for name, value in of.items()}
            homed = self.held.gradients([found[name] for name in self.held.names])
            given = dict(zip(self.held.names, homed, strict=True))
            for name, local in found.items():
                tensors, last = self._where[name]
                parameter, gradient = tensors[last], given.get(name)
                if name not in given and local is not None:
                    layout, shape = self.plan.inputs[name], self._named[name].tensor.shape
                    gradient = as_dtensor(local, layout, self.device_mesh, shape)
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def tangent(self, value: Value, grads: Mapping[Value, Tensor]) -> Tensor:
        """The incoming gradient of an output, in the layout that was planned for it."""
        entry, wanted = self._named[value.ref.name], self.plan.inputs[value.ref.name]
        if value not in self._starts:  # a value that is written back, which the caller does not see
            local = wanted.local_shape(entry.tensor.shape, self.program.rank)
            return torch.zeros(local, dtype=entry.tensor.dtype, device=self.device_mesh.device_type)
        output = self._starts[value]
        placed = self.plan.schedule.layouts[output]
        replicate = Replicate()
        placements = tuple(replicate if is_partial(p) else p for p in placed.placements)
        layout = Layout(self.plan.mesh, placements, placed.order)
        shape, itemsize = entry.tensor.shape, entry.tensor.dtype.itemsize
        change = Prices(self.plan.cluster).chain(layout, wanted, shape, itemsize)
        return run_chain(grads[output], change, self.device_mesh, shape)


class _Run(torch.autograd.Function):
    """The program's two parts as one differentiable call."""

    @staticmethod
    def forward(ctx: Any, step: Step, call: str, *given: Tensor) -> tuple[Tensor, ...]:
        parts = step._parts
        made = step.forward_part(*given)
        results, saved = made[: len(parts.results)], made[len(parts.results) :]
        ctx.step, ctx.call, ctx.note = step, call, step._note
        ctx.save_for_backward(*saved, given[-1])
        ctx.mark_non_differentiable(
            *(
                result
                for value, result in zip(parts.results, results, strict=True)
                if not step.starts_backward(value)
            )
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        step: Step = ctx.step
        parts = step._parts
        *saved, seed = ctx.saved_tensors
        given = dict(zip(parts.results, grads, strict=True))
        tangents = [step.tangent(value, given) for value in parts.tangents]
        values = [*saved, *tangents, seed]
        del saved, tangents, given, grads
        ctx.maybe_clear_saved_tensors()  # unless backward is to run again, the list alone holds them
        made = step.gradients(ctx.call, values, ctx.note)

        def gradient(value: Value) -> Tensor | None:
            found = step._gradients.get(value)
            return None if found is None else made.get(found)

        homed = [Value(Ref(name)) for name in step.held.names]
        inputs = (None if value in homed else gradient(value) for value in parts.inputs)
        return None, None, *inputs, *map(gradient, homed), None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def require_compilable(plan: Plan) -> None:
    """What ranks send each other by values is not known where a program is compiled."""
    for entry in plan.schedule.entries:
        if not isinstance(entry, Compute) or (form := entry.choice.local) is None:
            continue
        if operator_by(form, plan.graph.call(entry.node)).by_values:
            raise UsageError(
                f"the plan cannot be compiled: what ranks exchange in {entry.node.name} ({form}) depends on values; "
                "leave out compile, or plan with other rows of it"
            )


def _wanted_elsewhere(plan: Plan) -> dict[str, tuple[DeviceMesh, Layout]]:
    """The meshes and layouts of results that go elsewhere; all processes must make the meshes."""
    wanted = {}
    for output in plan.graph.outputs:
        place = place_of(plan.elsewhere, Named("output", output.target))
        if output.role == "user_output" and place is not None:
            ranks = torch.tensor(place.ranks).reshape(place.on.shape)
            mesh = DeviceMesh(place.device, ranks, mesh_dim_names=place.on.names)
            wanted[output.target] = mesh, place.layout
    return wanted


def _mutated(plan: Plan) -> dict[str, Layout]:
    """The layouts of the new values of parameters and buffers."""
    held = {entry.target for entry in plan.graph.inputs if entry.role in ("parameter", "buffer")}
    pairs = zip(plan.graph.outputs, plan.outputs, strict=True)
    return {o.target: layout for o, layout in pairs if o.role == "mutation" and layout and o.target in held}


def _shown(value: Any) -> str:
    return f"{str(value.dtype)[6:]}{list(value.shape)}" if isinstance(value, Tensor) else repr(value)


def require_same_layout(plan: Plan, target: str, layout: Layout) -> None:
    name = next(e.name for e in plan.graph.inputs if e.target == target and e.role != "tangent")
    if plan.inputs[name] != layout:
        raise UsageError(
            f"{target!r} is planned as {plan.inputs[name]} but its new value as {layout}: the layouts must be equal"
        )
