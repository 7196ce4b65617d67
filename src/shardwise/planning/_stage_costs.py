"""What a stage of a pipeline costs: seconds of its forward and backward for a micro-batch, and bytes that it holds."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..dtensor import Action
from ..graph import TensorInfo
from ._evaluate import Evaluation
from ._plan import Plan
from ._schedule import after_arguments, backward_entries
from ._stage_times import StageTime


def sent(plan: Plan) -> list[TensorInfo]:
    """What one device sends to the next stage for a micro-batch."""
    pairs = zip(plan.graph.outputs, plan.outputs, strict=True)
    layouts = {output.value: layout for output, layout in pairs if output.role == "user_output"}
    return [
        TensorInfo(tuple(layout.local_shape(info.shape)), info.dtype)
        for ref, layout in layouts.items()
        if ref is not None and layout is not None and (info := plan.graph.tensor(ref))
    ]


def returned(plan: Plan) -> list[TensorInfo]:
    """What one device gets back from the next stage: gradients of what it sent."""
    return [
        TensorInfo(tuple(plan.inputs[entry.name].local_shape(entry.tensor.shape)), entry.tensor.dtype)
        for entry in plan.graph.with_role("tangent")
    ]


def stage_time(plan: Plan, *, last: bool, send: Callable[[int], float]) -> StageTime:
    """The seconds of a stage; `send` are those of so many bytes to a device of another stage."""
    cost, schedule = plan.cost, plan.schedule
    given = list(zip(plan.graph.outputs, schedule.outputs, strict=True))
    backward = backward_entries(schedule, [v for o, v in given if v is not None and o.role != "gradient"])
    arguments = {entry.target for entry in plan.graph.with_role("user_input")}
    wanted = [v for o, v in given if v is not None and o.role == "gradient" and o.target in arguments]
    entries = list(zip(schedule.entries, cost.entries, backward, strict=True))
    forward = sum(seconds for _, seconds, back in entries if not back)
    later = after_arguments([entry for entry, _, back in entries if back], wanted)
    seconds = [seconds for _, seconds, back in entries if back]
    weight = sum(taken for taken, second in zip(seconds, later, strict=True) if second)
    # The host, and collectives beside calls, are known of the step alone.
    passes = cost.compute + sum(cost.communication.values()) + cost.waiting - cost.hidden
    passes -= sum(move.change.price for move in plan.once.moves)
    stretch = passes / (plan.micro_batches * sum(cost.entries) or 1.0)
    return StageTime(
        forward=stretch * forward,
        input=stretch * (sum(seconds) - weight),
        weight=stretch * weight,
        sends=0.0 if last else sum(send(tensor.bytes) for tensor in sent(plan)),
        returns=0.0 if last else sum(send(tensor.bytes) for tensor in returned(plan)),
        step=max(cost.seconds - passes, 0.0),
    )


@dataclass(frozen=True)
class StageMemory:
    """Bytes of a stage: held throughout, kept for a micro-batch between its forward and its backward, and besides, the
    most while forward and while backward run."""

    lasting: int
    kept: int
    forward: int
    backward: int

    @classmethod
    def of(cls, plan: Plan) -> "StageMemory":
        alone = replace(plan, in_flight=1) if plan.in_flight > 1 else plan
        cost, evaluation = alone.cost, Evaluation(alone, alone.schedule)
        turn = evaluation.turn()
        return cls(
            cost.lasting,
            evaluation.kept(),
            max(cost.held[:turn], default=cost.lasting) - cost.lasting,
            max(*cost.held[turn:], cost.reducing, cost.lasting) - cost.lasting,
        )


def together(parts: Sequence[StageMemory]) -> StageMemory:
    """About the bytes of a stage of these parts: what they need for moments they need one after the other."""
    kept = sum(part.kept for part in parts)
    return StageMemory(
        sum(part.lasting for part in parts),
        kept,
        kept + max(part.forward - part.kept for part in parts),
        kept + max(part.backward - part.kept for part in parts),
    )


def held_bytes(actions: Iterable[Action], stages: Mapping[int, StageMemory]) -> int:
    """The most bytes that a device holds that runs actions of these stages in order."""
    lasting = most = sum(stage.lasting for stage in stages.values())
    in_flight: Counter[int] = Counter()
    for action in actions:
        stage = stages[action.stage]
        others = sum(number * stages[at].kept for at, number in in_flight.items())
        if action.kind == "forward":
            most = max(most, lasting + others + stage.forward)
            in_flight[action.stage] += 1
        else:
            most = max(most, lasting + others - stage.kept + stage.backward)
            in_flight[action.stage] -= action.kind != "input"
    return most


def most_in_flight(actions: Iterable[Action]) -> Counter[int]:
    """By stage the most micro-batches whose forward has run and whose backward has not ended."""
    now: Counter[int] = Counter()
    most: Counter[int] = Counter()
    for action in actions:
        if action.kind == "forward":
            now[action.stage] += 1
        elif action.kind != "input":
            now[action.stage] -= 1
        most[action.stage] = max(most[action.stage], now[action.stage])
    return most
