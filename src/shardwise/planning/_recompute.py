"""What backward computes again, block by block, as activation checkpointing does.

Between its forward and its backward, a block keeps only what other blocks use and what the policy keeps; before its
backward, the calls that lead to the rest are run again. `full` keeps nothing more; `selective` keeps attention and
every second product, as torchtitan does; `alternate` leaves every second block as it is.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress

from ..graph import kept_by_selective
from ._named import Recompute
from ._pass import Pass
from ._schedule import Compute, Value


@dataclass(frozen=True)
class Recomputed:
    """Of one block: the entries that are run again, their seconds, and the bytes that are not kept meanwhile, less
    those that are kept only to run fewer again.

    It is kept up to entry `end` of forward and again from entry `begin` of backward.
    """

    entries: tuple[int, ...]
    seconds: float
    bytes: int
    end: int
    begin: int


def recomputed(of: Pass, policy: Recompute) -> dict[str, Recomputed]:
    """What is recomputed in each block."""
    if policy == "none":
        return {}
    members: dict[str, list[int]] = defaultdict(list)
    for place, block in enumerate(of.blocks):
        if block:
            members[block].append(place)
    users = _users(of)
    found = {}
    for number, (block, places) in enumerate(members.items()):
        forward = [place for place in places if place < of.turn]
        backward = [place for place in places if place >= of.turn]
        if forward and backward and not (policy == "alternate" and number % 2):
            found[block] = _of_block(of, policy, forward, backward[0], users)
    return found


def _users(of: Pass) -> Mapping[Value, list[int]]:
    """The entries that use each piece of memory."""
    users: dict[Value, list[int]] = defaultdict(list)
    for place, entry in enumerate(of.entries):
        for value in entry.used:
            users[of.owners[value]].append(place)
    return users


def _of_block(
    of: Pass, policy: Recompute, forward: list[int], begin: int, users: Mapping[Value, list[int]]
) -> Recomputed:
    inside = set(forward)
    made = {
        of.owners[value]: place
        for place in forward
        for value in of.entries[place].made
        if of.owners[value] == value
    }
    shared = {
        value
        for value in made
        if any(place < of.turn and place not in inside for place in users.get(value, ()))
    }
    cached = _cached(of, forward) - shared if policy == "selective" else set()
    kept = shared | cached
    needed = [value for value in made if any(place >= of.turn for place in users.get(value, ()))]
    saved = [value for value in needed if value not in kept]
    again: set[int] = set()
    waiting = list(saved)
    while waiting:
        place = made[waiting.pop()]
        if place not in again:
            again.add(place)
            used = (of.owners[value] for value in of.entries[place].used)
            waiting += [value for value in used if value in made and value not in kept]
    return Recomputed(
        tuple(sorted(again)),
        sum(of.seconds[place] for place in again),
        sum(map(of.bytes_of, saved)) - sum(map(of.bytes_of, cached.difference(needed))),
        forward[-1],
        begin,
    )


def _cached(of: Pass, forward: list[int]) -> set[Value]:
    """The results that `selective` keeps."""
    calls = [entry for entry in map(of.entries.__getitem__, forward) if isinstance(entry, Compute)]
    chosen = kept_by_selective(entry.node.facts.kernel for entry in calls)
    return {value for entry in compress(calls, chosen) for value in entry.made}
