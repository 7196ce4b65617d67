"""Damage to documents: one or two places changed at random, as files are changed by hand, by disks and by mistake."""

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Document = Any


@dataclass(frozen=True)
class Damaged:
    """The bytes of a damaged file, and the places that were damaged; none where the file itself was."""

    data: bytes
    places: tuple[str, ...]


def damaged(document: Document, seed: int, dump: Callable[[Document], str], others: list[str]) -> Damaged:
    """The document with one or two damages; `others` are the texts of documents of other kinds."""
    rng = random.Random(seed)
    text = dump(document)
    if rng.random() < 0.08:
        return Damaged(rng.choice(_FILES)(rng, text, others), ())
    changed, places = copy.deepcopy(document), []
    for _ in range(rng.choice([1, 1, 2])):
        spots = list(_spots(changed))
        if not spots:  # the first damage left nothing
            break
        holder, key, place = rng.choice(_near_the_top(rng, spots))
        rng.choice(_CHANGES)(rng, holder, key, spots)
        places.append(place)
    return Damaged(dump(changed).encode(), tuple(places))


def _spots(value: Document, place: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every field and item, as its holder, key and place; numbers of items are left out of places."""
    if isinstance(value, dict):
        for key, inside in value.items():
            yield value, key, f"{place}.{key}".strip(".")
            yield from _spots(inside, f"{place}.{key}".strip("."))
    elif isinstance(value, list):
        for number, inside in enumerate(value):
            yield value, number, f"{place}[]"
            yield from _spots(inside, f"{place}[]")


def _near_the_top(rng: random.Random, spots: list[Any]) -> list[Any]:
    """All spots, or now and then those at the top, which are few."""
    top = [spot for spot in spots if len(re.findall(r"[.\[]", spot[2])) < 2]
    return top if top and rng.random() < 0.3 else spots


def _drop(rng: random.Random, holder: Any, key: Any, spots: list[Any]) -> None:
    del holder[key]


def _rename(rng: random.Random, holder: Any, key: Any, spots: list[Any]) -> None:
    value = holder.pop(key)
    if isinstance(holder, dict):
        holder[f"{key}x"] = value


def _add(rng: random.Random, holder: Any, key: Any, spots: list[Any]) -> None:
    if isinstance(holder, dict):
        holder["extra"] = rng.choice([1, "text", []])
    else:
        holder.insert(key, copy.deepcopy(holder[key]))


def _other_type(rng: random.Random, holder: Any, key: Any, spots: list[Any]) -> None:
    value = holder[key]
    options = [None, True, 3, 1.5, "text", "", [], {}, [value], {"a": value}, str(value)]
    holder[key] = rng.choice([option for option in options if option != value])


def _other_value(rng: random.Random, holder: Any, key: Any, spots: list[Any]) -> None:
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        options = [-1, 0, 1, 2, value + 1, -value, value * 2, 10**30, 1e400, float("nan"), 0.5]
        holder[key] = rng.choice(options)
    elif isinstance(value, str) and value:
        digits = [match.start() for match in re.finditer(r"\d", value)]
        place = rng.choice(digits) if digits and rng.random() < 0.6 else rng.randrange(len(value))
        other = str(rng.randrange(10)) if value[place].isdigit() else rng.choice("RSxd(), ")
        holder[key] = value[:place] + other + value[place + 1 :]
    else:
        _other_type(rng, holder, key, spots)


def _swap(rng: random.Random, holder: Any, key: Any, spots: list[Any]) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _from_elsewhere(rng: random.Random, holder: Any, key: Any, spots: list[Any]) -> None:
    """A value of another place: a name that is another's, a reference to what comes later or to itself."""
    kind = type(holder[key])
    alike = [copy.deepcopy(h[k]) for h, k, _ in spots if type(h[k]) is kind]
    holder[key] = rng.choice(alike)


_CHANGES = (
    _drop,
    _rename,
    _add,
    _other_type,
    _other_type,
    _other_value,
    _other_value,
    _swap,
    _from_elsewhere,
)

_FILES: tuple[Callable[[random.Random, str, list[str]], bytes], ...] = (
    lambda rng, text, others: text[: rng.randrange(len(text))].encode(),
    lambda rng, text, others: b"",
    lambda rng, text, others: text.encode()[: len(text) // 2] + b"\xff\xfe" + text.encode()[len(text) // 2 :],
    lambda rng, text, others: rng.choice(others).encode(),
    lambda rng, text, others: json.dumps(rng.choice([None, 3, [], {}, "text"])).encode(),
)
