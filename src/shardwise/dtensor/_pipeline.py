"""torch's pipeline schedules as data: what each rank of a pipeline computes, in order.

The schedules are those of `torch.distributed.pipelining`, read from its classes, so what is simulated is what runs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from ..errors import UsageError, first_line

SCHEDULES = (
    "1F1B",
    "GPipe",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)

_SINGLE = ("1F1B", "GPipe")  # one stage per rank
_V_SHAPED = ("ZBVZeroBubble", "DualPipeV")  # two: the first rank has the first and the last stage

ActionKind = Literal["forward", "backward", "input", "weight"]

# As torch writes them.
_KINDS: dict[str, ActionKind] = {"F": "forward", "B": "backward", "I": "input", "W": "weight"}


@dataclass(frozen=True)
class Action:
    """What a rank computes at a time: forward or backward of a stage for one micro-batch, or the part of backward that
    makes the gradients of what came `input`, or those of `weight`s."""

    stage: int
    kind: ActionKind
    micro_batch: int


def stage_ranks(schedule: str, ranks: int, stages: int) -> tuple[int, ...]:
    """The rank of each stage.

    >>> stage_ranks("Interleaved1F1B", 2, 4), stage_ranks("ZBVZeroBubble", 2, 4)
    ((0, 1, 0, 1), (0, 1, 1, 0))
    """
    _check(schedule, ranks, stages)
    if schedule in _V_SHAPED:
        return tuple(min(stage, stages - 1 - stage) for stage in range(stages))
    return tuple(stage % ranks for stage in range(stages))


@cache
def pipeline_actions(
    schedule: str, ranks: int, stages: int, micro_batches: int
) -> tuple[tuple[Action, ...], ...]:
    """What each rank of a pipeline computes, in order.

    >>> [f"{a.kind} {a.micro_batch}" for a in pipeline_actions("1F1B", 2, 2, 2)[0]]
    ['forward 0', 'forward 1', 'backward 0', 'backward 1']
    """
    owners = stage_ranks(schedule, ranks, stages)
    if micro_batches < 1:
        raise UsageError(f"a pipeline has {micro_batches} micro-batches: it must have at least 1")
    from torch.distributed.pipelining.schedules import get_schedule_class  # loads torch's compiler

    made = get_schedule_class(schedule)
    local = [_Stage(stage, stages, 0, ranks) for stage in range(stages) if owners[stage] == 0]
    try:
        order = made(local[0] if schedule in _SINGLE else local, micro_batches).pipeline_order
    except (ValueError, AssertionError) as error:
        raise UsageError(
            f"torch cannot run {schedule} of {stages} stages on {ranks} ranks with {micro_batches} micro-batches: "
            f"{' '.join(first_line(error).split())}"
        ) from None
    found = [_numbered(_computed(order[rank]), micro_batches) for rank in range(ranks)]
    _check_complete(schedule, found, owners, micro_batches)
    return tuple(found)


@dataclass
class _Stage:
    """What schedules ask of a stage before they run it."""

    stage_index: int
    num_stages: int
    group_rank: int
    group_size: int
    submod: None = None
    stage_index_to_group_rank: dict[int, int] = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        return self.stage_index == self.num_stages - 1


def _check(schedule: str, ranks: int, stages: int) -> None:
    if schedule not in SCHEDULES:
        raise UsageError(f"unknown schedule {schedule!r}: use one of {', '.join(SCHEDULES)}")
    if ranks < 1:
        raise UsageError(f"a pipeline has {ranks} ranks: it must have at least 1")
    each, rest = divmod(stages, ranks)
    if schedule in _SINGLE and stages != ranks:
        raise UsageError(f"{schedule} has one stage per rank: give {ranks} stages instead of {stages}")
    if schedule in _V_SHAPED and stages != 2 * ranks:
        raise UsageError(f"{schedule} has two stages per rank: give {2 * ranks} stages instead of {stages}")
    if rest or not each:
        raise UsageError(f"{stages} stages cannot be divided among {ranks} ranks: give a multiple of {ranks}")


def _computed(actions: Sequence[Any]) -> Iterator[Action]:
    """Actions that compute; those that overlap one after another."""
    for action in actions:
        for each in (action and action.sub_actions) or (action,):
            if each is not None and each.computation_type.value in _KINDS:
                yield Action(each.stage_index, _KINDS[each.computation_type.value], each.microbatch_index)


def _numbered(actions: Iterable[Action], micro_batches: int) -> tuple[Action, ...]:
    """The actions with the right micro-batches: `Schedule1F1B` begins with 1 on its last rank (torch 2.11 to 2.15), so
    where numbers are not those of all micro-batches, actions of a kind are numbered as they occur."""
    listed = list(actions)
    wrong = {
        key
        for key, same in groupby(sorted(listed, key=_key), key=_key)
        if any(action.micro_batch >= micro_batches for action in same)
    }
    seen: Counter[tuple[int, str]] = Counter()
    found = []
    for action in listed:
        number = seen[_key(action)] if _key(action) in wrong else action.micro_batch
        found.append(replace(action, micro_batch=number))
        seen[_key(action)] += 1
    return tuple(found)


def _key(action: Action) -> tuple[int, str]:
    return action.stage, action.kind


def _check_complete(
    schedule: str, actions: Sequence[Sequence[Action]], owners: Sequence[int], micro_batches: int
) -> None:
    """Every micro-batch goes through every stage once, on the stage's rank, forward and back."""
    found = Counter((rank, each) for rank, listed in enumerate(actions) for each in listed)
    wanted: Counter[tuple[int, Action]] = Counter()
    for stage, rank in enumerate(owners):
        for number in range(micro_batches):
            split = (rank, Action(stage, "input", number)) in found
            kinds: tuple[ActionKind, ...] = ("input", "weight") if split else ("backward",)
            wanted.update((rank, Action(stage, kind, number)) for kind in ("forward", *kinds))
    if found != wanted:
        raise AssertionError(f"torch's {schedule} does not compute every micro-batch of every stage once")


def torch_schedule(
    schedule: str,
    stages: Mapping[int, tuple[nn.Module, tuple[Tensor, ...], tuple[Tensor, ...]]],
    number: int,
    micro_batches: int,
    *,
    group: ProcessGroup,
    device: str,
    deferred: Mapping[int, Callable[[], Callable[[], None]]] | None = None,
) -> Any:
    """A schedule of torch's over this rank's stages: modules by number, with examples of what they take and give.

    The last stage gives its loss, as a vector of one. Gradients are added up. `deferred` gives the second part of the
    backward that a stage ran last, where the schedule runs it later.
    """
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    own = [
        PipelineStage(
            *(module, at, number, torch.device(device)),
            input_args=takes,
            output_args=gives,
            group=group,
            dw_builder=None if deferred is None else deferred[at],
        )
        for at, (module, takes, gives) in sorted(stages.items())
    ]
    given = own[0] if schedule in _SINGLE else own
    return get_schedule_class(schedule)(given, micro_batches, loss_fn=_given_loss, scale_grads=False)


def _given_loss(output: Tensor, target: Tensor) -> Tensor:
    return output.sum()


def run_schedule(schedule: Any, micro_batches: int) -> None:
    """Forward and backward of a step, on every stage; modules get the number of the micro-batch."""
    numbers = torch.arange(micro_batches)
    schedule.step(micro_batch=numbers, target=numbers)
