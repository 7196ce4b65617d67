"""What a plan costs, worked out from its schedule entry by entry: the authority on time and memory.

Every value counts from when it is made to its last use, views share the memory of their base, and redistributed tensors
count while they are live. Values inside of kernels are never in memory. The solver's problem counts no more than this
(`_memory`).
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..graph import Named, Ref, TensorInfo
from ..layout import Layout
from ..redistribution import Chain
from ._call_prices import CallPrice, CallPrices
from ._choices import Layouts
from ._elsewhere import place_of
from ._prices import OptimizerCost, accumulation_seconds, cast_seconds, host_seconds, workspace_bytes
from ._schedule import Compute, Entry, Move, Schedule, Value, backward_entries
from ._timeline import timeline

if TYPE_CHECKING:
    from ._plan import Plan


@dataclass(frozen=True)
class Cost:
    """Seconds of a step and bytes held on the device that holds most.

    `entries` are the seconds of each entry of the schedule, `held` the bytes while each runs; a step of several
    micro-batches runs the schedule for each, and all other seconds and bytes are those of the whole step. Parameters,
    buffers, the optimizer's state and gradients that are accumulated are held throughout (`lasting`); arguments are
    there when the step begins (`given`). `update` is the optimizer's update, with what moves between device and host
    for it, and the accumulation of gradients. `waiting` is how long the device has nothing to do, since the host needs
    longer to start the step than the device to run it.
    `hidden` is what collectives beside calls save: their seconds, less those by which calls beside them are slower.
    `reducing` are the most bytes that are held while gradients of several passes are reduced, after the last.
    """

    entries: tuple[float, ...]
    held: tuple[int, ...]
    compute: float
    update: float
    communication: dict[str, float]
    bytes_per_axis: dict[str, int]
    lasting: int
    given: int
    waiting: float = 0.0
    hidden: float = 0.0
    reducing: int = 0

    @property
    def seconds(self) -> float:
        return self.compute + self.update + sum(self.communication.values()) + self.waiting - self.hidden

    @cached_property
    def peak(self) -> int:
        return max(self.lasting + self.given, *self.held, self.reducing)


def evaluate(plan: "Plan") -> Cost:
    """The cost of a plan, from its schedule."""
    return Evaluation(plan, plan.schedule).cost()


def peak_of_values(plan: "Plan") -> int:
    """Peak bytes of the values of a program that runs every call by itself: without those inside of kernels, as in the
    plan's cost, and without what kernels hold for themselves and what the optimizer keeps."""
    evaluation = Evaluation(plan, plan.schedule)
    lasting = evaluation.state() + evaluation.accumulated()
    held, reducing = evaluation.held(lasting, whole_kernels=False)
    return max(lasting + evaluation.given(), *held, reducing)


class Evaluation:
    """A plan's graph run by a schedule, its own or another one."""

    def __init__(self, plan: "Plan", schedule: Schedule) -> None:
        self.plan = plan
        self.layouts = Layouts(plan.mesh)
        self.schedule = schedule
        self.optimizer = OptimizerCost.of(plan.optimizer)
        self.numbers = {value: self.layouts.of(layout) for value, layout in self.schedule.layouts.items()}
        self._pricing = CallPrices(plan.mesh, plan.cluster)
        self._prices: dict[object, CallPrice] = {}

    def cost(self) -> Cost:
        entries: list[float] = []
        communication: Counter[str] = Counter()
        sent: Counter[str] = Counter()
        compute = 0.0
        for entry in self.schedule.entries:
            if isinstance(entry, Compute):
                price = self._price(entry)
                seconds = price.seconds
                compute += price.compute
                for kind, taken in price.exposed.items():
                    communication[kind] += taken  # type: ignore[assignment]
                for axis in entry.choice.group_axes:
                    sent[self.plan.mesh.names[axis]] += price.sent
            elif isinstance(entry, Move):
                seconds = entry.change.price
                self._add_collectives(entry.change, communication, sent)
            else:
                seconds = 0.0
            entries.append(seconds)
        if seconds := self._transfers():
            communication["transfer"] += seconds  # type: ignore[assignment]
        lasting, update = self.lasting()
        hidden = 0.0
        if self.plan.ahead is not None:
            overlapped = timeline(self.schedule, entries, self.plan.mesh, self.plan.cluster)
            hidden = max(0.0, sum(entries) - overlapped.seconds)  # never less but for rounding
        passes = self.plan.micro_batches
        communication = Counter({kind: passes * seconds for kind, seconds in communication.items()})
        sent = Counter({axis: passes * size for axis, size in sent.items()})
        for move in self.plan.once.moves:
            self._add_collectives(move.change, communication, sent)
        busy = update + passes * (compute - hidden) + sum(communication.values())
        host = passes * host_seconds(self.plan.graph, self.plan.cluster.device)
        held, reducing = self.held(lasting)
        return Cost(
            tuple(entries),
            tuple(held),
            passes * compute,
            update,
            dict(communication),
            dict(sent),
            lasting,
            self.given(),
            max(0.0, host - busy),
            passes * hidden,
            reducing,
        )

    def _add_collectives(self, change: Chain, seconds: Counter[str], sent: Counter[str]) -> None:
        for step in change.collectives:
            seconds[step.kind] += step.seconds  # type: ignore[assignment]
            for axis in step.axes:
                sent[self.plan.mesh.names[axis]] += step.size

    def _transfers(self) -> float:
        """The seconds in which arguments come from other meshes, and results go to them."""
        plan, graph = self.plan, self.plan.graph
        total = 0.0
        for entry in graph.with_role("user_input"):
            if (place := place_of(plan.elsewhere, Named.input(entry))) is not None:
                total += place.seconds(entry.tensor, plan.inputs[entry.name], plan.cluster, arrives=True)
        for output, layout in zip(graph.outputs, plan.outputs, strict=True):
            place = place_of(plan.elsewhere, Named("output", output.target))
            if output.role == "user_output" and output.value is not None and layout is not None and place:
                total += place.seconds(graph.tensor(output.value), layout, plan.cluster, arrives=False)
        return total

    def given(self) -> int:
        return sum(self.local(value).bytes for value in self._arguments())

    def local(self, value: Value) -> TensorInfo:
        return self.layouts.local(self.numbers[value], self.plan.graph.tensor(value.ref))

    def _price(self, entry: Compute) -> CallPrice:
        graph, node = self.plan.graph, entry.node
        call, border = graph.call(node), graph.kernels.borders.get(node.name)
        key = call.signature, entry.choice.rows, border
        if key not in self._prices:
            inputs = [self.local(value) for value in entry.inputs]
            made = [None if value is None else self.local(value) for value in entry.outputs]
            self._prices[key] = self._pricing.of(node, call, entry.choice.rows, inputs, made, border)
        return self._prices[key]

    def lasting(self) -> tuple[int, float]:
        """Bytes that are held throughout, and the seconds of the optimizer's update and of accumulating gradients."""
        held, seconds = self.state() + self.accumulated(), 0.0
        device, passes = self.plan.cluster.device, self.plan.micro_batches
        for entry in self.plan.graph.with_role("parameter"):
            if entry.trainable and self.plan.graph.training:
                local = self._laid(self.plan.home(entry.name), entry.tensor)
                if entry.name in self.plan.on_host:
                    seconds += self.optimizer.host_seconds(local, device)
                else:
                    held += self.optimizer.state_bytes(local)
                    seconds += self.optimizer.seconds(local, device)
        for gradient in self._gradients().values():
            seconds += accumulation_seconds(gradient, passes, device)
        for move in self.plan.once.reductions:
            seconds += cast_seconds(self._laid(move.change.target, move.tensor), move.dtype, device)
        return held, seconds

    def accumulated(self) -> int:
        """Bytes of the gradients of passes before, of a step of several micro-batches."""
        if self.plan.micro_batches == 1:
            return 0
        return sum(gradient.bytes for gradient in self._gradients().values())

    def _gradients(self) -> dict[str, TensorInfo]:
        """What a rank has of the gradient of each parameter, as passes are added up."""
        graph, layouts = self.plan.graph, self.plan.once.accumulated
        named = {entry.target: entry.name for entry in graph.with_role("parameter")}
        values = {named[target]: value for target, value in graph.gradients.items() if target in named}
        return {
            name: self._laid(layout, graph.tensor(value))
            for name, layout in layouts.items()
            if (value := values[name]) is not None
        }

    def _laid(self, layout: Layout, tensor: TensorInfo) -> TensorInfo:
        return self.layouts.local(self.layouts.of(layout), tensor)

    def state(self) -> int:
        """Bytes of what the model has, and of copies of parameters that are held through the step."""
        kept = (e for e in self.plan.graph.inputs if e.role in ("parameter", "buffer", "constant"))
        own = (entry for entry in kept if entry.name not in self.plan.on_host)
        homes = sum(self._laid(self.plan.home(entry.name), entry.tensor).bytes for entry in own)
        return homes + sum(self._laid(m.change.target, m.tensor).bytes for m in self.plan.once.gathers)

    def _arguments(self) -> set[Value]:
        """What the step is given and need not keep."""
        inputs = self.plan.graph.inputs
        return {Value(Ref(entry.name)) for entry in inputs if entry.role in ("user_input", "tangent")}

    def _scratch(self, entry: Entry) -> int:
        return self._price(entry).scratch if isinstance(entry, Compute) else 0

    def held(self, lasting: int, whole_kernels: bool = True) -> tuple[list[int], int]:
        """Bytes held while each entry runs, and the most that are while gradients are reduced after the last pass;
        unless of `whole_kernels`, without what they hold for themselves or write over what they read last."""
        held, reducing, kept = self._held(lasting, whole_kernels)
        others = (self.plan.in_flight - 1) * kept
        return [bytes_ + others for bytes_ in held], reducing

    def kept(self) -> int:
        """Bytes that a pass holds between its forward and its backward."""
        return self._held(0, True)[2]

    def _held(self, lasting: int, whole_kernels: bool) -> tuple[list[int], int, int]:
        owner: dict[Value, Value] = {}  # whose memory a value is in
        users: Counter[Value] = Counter()  # live values in each piece of memory
        size: dict[Value, int] = {}
        now = lasting
        workspace = workspace_bytes(self.plan.graph, self.plan.cluster.device)
        arguments = self._arguments()
        inner = {Value(ref) for ref in self.plan.graph.kernels.inner}
        ending = self._ending() if whole_kernels else {}
        for entry in self.plan.graph.inputs:
            value = Value(Ref(entry.name))
            owner[value] = value
            users[value] = 1
            size[value] = 0
            if value in arguments:
                size[value] = self.local(value).bytes
                now += size[value]
            if value not in arguments or (whole_kernels and entry.role == "tangent"):
                users[value] += 1  # it never ends: the model has it, or whoever calls backward
        held = []
        turn, kept = self.turn(), 0
        tangents = sum(self.local(Value(Ref(e.name))).bytes for e in self.plan.graph.with_role("tangent"))
        for number, item in enumerate(self.schedule.entries):
            if number == turn:
                kept = now - lasting - tangents
            for value in item.made:
                source = shares_memory_of(item)
                bytes_ = 0 if value in inner else self.local(value).bytes
                if source is None and bytes_ and isinstance(item, Compute):
                    last = (owner.get(value) for value in ending.get(item.node.name, ()))
                    free = Counter(v for v in last if v is not None and v not in arguments)
                    source = next((v for v, n in free.items() if n == users[v] and size[v] == bytes_), None)
                if source is not None:
                    owner[value] = owner[source]
                else:
                    owner[value] = value
                    size[value] = bytes_
                    now += size[value]
                users[owner[value]] += 1
            held.append(now + (self._scratch(item) + workspace if whole_kernels else 0))
            for value in item.dead:
                root = owner[value]
                users[root] -= 1
                if users[root] == 0:
                    now -= size[root]
        return held, self._reducing(now), kept

    def turn(self) -> int:
        """The number of the entry that follows the last of forward; that of all if there is no backward."""
        given = zip(self.plan.graph.outputs, self.schedule.outputs, strict=True)
        results = (value for output, value in given if value is not None and output.role != "gradient")
        backward = backward_entries(self.schedule, results)
        return len(backward) - next((at for at, back in enumerate(reversed(backward)) if not back), 0)

    def _reducing(self, now: int) -> int:
        """The most bytes that are held while gradients are reduced, cast and moved to the host, one after another, from
        `now` at the end of a pass."""
        most = 0
        for move in self.plan.once.reductions:
            summed, reduced = (
                self._laid(end, move.tensor) for end in (move.change.source, move.change.target)
            )
            if move.change.steps:
                now += reduced.bytes
                most = max(most, now)
                now -= summed.bytes
            if move.dtype != move.tensor.dtype:
                now += reduced.numel * move.dtype.itemsize
                most = max(most, now)
                now -= reduced.bytes
            if move.name in self.plan.on_host:
                now -= reduced.numel * move.dtype.itemsize
        return most

    def _ending(self) -> dict[str, list[Value]]:
        """By call of a compiled kernel what that is the last to read: one of its results may be written over it."""
        graph, found = self.plan.graph, dict[int, list[Value]]()
        compiled = {node.name for node in graph.nodes if graph.region(node) is not None}
        kernels = {name: number for name, number in graph.kernels.number.items() if name in compiled}
        for entry in self.schedule.entries:
            if isinstance(entry, Compute) and (number := kernels.get(entry.node.name)) is not None:
                own = (value for value in entry.dead if kernels.get(value.ref.name) != number)
                found.setdefault(number, []).extend(own)
        return {name: found[number] for name, number in kernels.items() if number in found}


def shares_memory_of(entry: Entry) -> Value | None:
    """The value in whose memory an entry's result lies, if it makes none of its own."""
    if isinstance(entry, Compute):
        return entry.inputs[0] if entry.inputs and entry.node.facts.view else None
    # A slice is copied, so that it does not keep the whole; the first rank's part of a partial is the whole value.
    return (
        entry.source
        if isinstance(entry, Move) and all(step.kind == "to_partial" for step in entry.change.steps)
        else None
    )
