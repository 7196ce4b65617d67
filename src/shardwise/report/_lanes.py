"""The timeline of a plan as lanes of a picture: calls with what they wait for, and the collectives of each link."""

from collections.abc import Iterable
from typing import Any

from ..planning import CALLS, Move, Plan, Span

_WIDTH = 1500  # places that a lane has: what begins in the place where the same kind ended is drawn with it


def lanes(plan: Plan) -> dict[str, Any] | None:
    """By stream the spans of one kind, as (start, end, kind); None if collectives never run beside calls."""
    if plan.ahead is None:
        return None
    line = plan.timeline
    streams = dict.fromkeys([CALLS, *(span.stream for span in line.spans)])
    found = {stream: [span for span in line.spans if span.stream == stream] for stream in streams}
    width = line.seconds / _WIDTH
    return {
        "seconds": line.seconds,
        "lanes": [{"name": name, "spans": _joined(plan, spans, width)} for name, spans in found.items()],
        "hidden": {
            link: max(0.0, 1 - line.exposed.get(link, 0.0) / seconds)
            for link, seconds in line.busy.items()
            if seconds
        },
    }


def _joined(plan: Plan, spans: Iterable[Span], width: float) -> list[list[Any]]:
    made: list[list[Any]] = []
    for span in spans:
        kind = _kind(plan, span)
        if span.seconds and made and made[-1][2] == kind and span.start - made[-1][1] < width:
            made[-1][1] = span.end
        elif span.seconds:
            made.append([span.start, span.end, kind])
    return made


def _kind(plan: Plan, span: Span) -> str:
    if span.link:
        return "waiting"
    entry = plan.schedule.entries[span.entry]
    return entry.change.collectives[-1].kind if isinstance(entry, Move) else "compute"
