"""The timeline of a plan in the format of Chrome's traces, which chrome://tracing and Perfetto show."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..calls import short_name
from ..files import write_text
from ._schedule import Compute, Move
from ._summary import describe_move
from ._timeline import CALLS, Span

if TYPE_CHECKING:
    from ._plan import Plan


def trace(plan: "Plan") -> dict[str, Any]:
    """Every span as a complete event, in microseconds; each stream is a thread."""
    streams = [CALLS, *dict.fromkeys(span.stream for span in plan.timeline.spans if span.stream != CALLS)]
    threads = {stream: number for number, stream in enumerate(streams)}
    names: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": stream}}
        for stream, number in threads.items()
    ]
    return {
        "traceEvents": [*names, *(_event(plan, span, threads[span.stream]) for span in plan.timeline.spans)]
    }


def save_trace(plan: "Plan", path: Path) -> None:
    write_text(path, json.dumps(trace(plan)) + "\n")


def _event(plan: "Plan", span: Span, thread: int) -> dict[str, Any]:
    entry = plan.schedule.entries[span.entry]
    event: dict[str, Any] = {
        "ph": "X",
        "pid": 0,
        "tid": thread,
        "ts": span.start * 1e6,
        "dur": span.seconds * 1e6,
    }
    if isinstance(entry, Compute):
        args = {"module": entry.node.module, "phase": entry.node.phase, "rows": str(entry.choice)}
        return event | {"name": short_name(entry.node.op), "cat": "call", "args": args}
    assert isinstance(entry, Move)
    kind = entry.change.collectives[-1].kind
    args = {"what": describe_move(plan, entry)}
    if span.link:
        return event | {"name": f"wait for {span.link}", "cat": "exposed", "cname": "terrible", "args": args}
    return event | {"name": kind, "cat": "collective", "args": args}
