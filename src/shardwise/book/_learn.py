"""Learning about one operator, in a process of its own and with a limit on its CPU time.

A kernel that crashes or hangs costs that process, and is studied again more carefully: with fewer calls, without those
that are made to refute its rule, then without the sweep, whose strange shapes crash some kernels, and one process for
each call.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch._ops import OpOverload

from ..calls import Call
from ..experiments import Crash, ExperimentPolicy, Found, limited
from ..rules import Entry, book_rows, is_by_hand
from ..synthesis import Budget, Sweep, study_calls
from ._by_hand import by_hand_as_given
from ._entry import entry_of, found_for, studied, studied_with_sums
from ._variant import confirmed, confirmed_as_given

# CPU seconds of a study and of a single call.
STUDY, _CALL = 30, 6

# Calls studied one by one.
_CAREFUL = 4


def learn(name: str, calls: Sequence[Call]) -> Entry:
    """The entry of an operator from calls of it, or of the operator of which it is a variant."""
    result = limited(partial(studied, name, calls), STUDY)
    if not is_by_hand(name):
        if _takes_long(result):
            result = limited(partial(studied, name, calls, effort="small"), STUDY)
        if isinstance(result, Crash):
            result = limited(partial(studied, name, calls, effort="unrefuted"), STUDY)
    if not isinstance(result, Crash):
        return _with_fewer_partials(result, calls) if _explained(result) < 0.5 else result
    if is_by_hand(name):
        given = limited(partial(by_hand_as_given, name, calls, book_rows, _ended(result, STUDY)), STUDY)
        return Entry(name, "crashed", _ended(given, STUDY)) if isinstance(given, Crash) else given
    if any(str(call.op) != name for call in calls):
        return Entry(name, "crashed", _ended(result, STUDY))
    founds: list[Found] = []
    few = list(calls[:_CAREFUL])
    for call in few:
        found: Any = Crash()
        for policy in (ExperimentPolicy(), ExperimentPolicy(empty=False)):
            found = limited(partial(_bare, policy, call.op, *call.args, **call.kwargs), _CALL)
            if not isinstance(found, Crash):
                break
        founds.append(
            Found(name, (), "crashed", f"{_ended(found, _CALL)}: pieces of {call}")
            if isinstance(found, Crash)
            else found
        )
    again = limited(partial(_studied_again, name, few, founds), STUDY)
    if isinstance(again, Crash):
        return Entry(name, "crashed", _ended(again, STUDY))
    return again


def _with_fewer_partials(entry: Entry, calls: Sequence[Call]) -> Entry:
    """A rule without partials other than sums, where that explains more calls than one with all."""
    less = limited(partial(studied_with_sums, entry.op, calls), STUDY)
    better = isinstance(less, Entry) and less.rule is not None and _explained(less) > _explained(entry)
    return less if better else entry


def _explained(entry: Entry) -> float:
    """The share of the studied calls whose rows a rule yields; of an operator without a rule, none or nothing to do."""
    if entry.rule is None:
        return 0.0 if entry.verdict == "rows only" else 1.0
    evidence = entry.evidence
    return 1 - evidence.get("unexplained", 0) / max(evidence["calls"] + evidence["held_out"], 1)


def _ended(crash: Crash, seconds: int) -> str:
    """What became of a process that ended before it gave an answer."""
    if _takes_long(crash):
        return f"experiments on it take more than {seconds} seconds"
    ended = crash.startswith("SIG") or crash.startswith("exit status")
    return f"a native kernel ended the process with {crash}" if ended else f"studying it failed: {crash}"


def _takes_long(result: Any) -> bool:
    return isinstance(result, Crash) and result in ("SIGXCPU", "timeout")


def learn_variant(name: str, original: Entry, calls: Sequence[Call]) -> Entry:
    """The entry of an in-place or out variant: its original's rule where experiments confirm that, else its own.
    `calls` are the variant's or the original's."""
    result = limited(partial(confirmed, name, original, calls), _CALL)
    if isinstance(result, Crash) and original.by_hand:
        result = limited(partial(confirmed_as_given, name, original, calls, _ended(result, _CALL)), _CALL)
    return result if isinstance(result, Entry) else learn(name, calls)


def _studied_again(name: str, calls: Sequence[Call], founds: Sequence[Found]) -> Entry:
    known = {str(call): found for call, found in zip(calls, founds, strict=True)}
    swept = Sweep({name: list(calls)})
    find = partial(_known, known)
    study = study_calls(name, name, swept, budget=Budget(least=1, triples=0, random=0), find=find)
    return entry_of(study, calls, find)


def _known(known: dict[str, Found], op: OpOverload, *args: Any, **kwargs: Any) -> Found:
    return known[str(Call(op, args, kwargs))]


def _bare(policy: ExperimentPolicy, op: OpOverload, /, *args: Any, **kwargs: Any) -> Found:
    """What was found, without the experiments, which do not travel between processes."""
    return replace(found_for(policy, op, *args, **kwargs), candidates={}, dispatched=None)
