"""Pins: layouts that the user wants for inputs, outputs, parameters and values in between.

A pin names what it holds by a pattern (`layers.*.weight`, the name of an input or an output, the name of a node) and
says a layout, for every axis (`"S(0), R"`) or for some (`{"dp": "S(0)"}`). `input:x` and `output:x` tell an
argument from a result of the same name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch.distributed.tensor.placement_types import Placement

from ..errors import UsageError, require
from ..graph import Graph, Named, matched
from ..layout import Layout, Sharding
from ..mesh import Mesh
from ..placements import is_partial, is_shard, parse_placement, placement_text
from ._choices import Layouts

Pin = str | Layout | Sharding | Mapping[str, str | Placement] | Sequence[Placement]


@dataclass
class Pins:
    mesh: Mesh
    pins: Mapping[str, Pin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.pins, Mapping, "pin", "a dict such as {'weight': 'S(0), R'}")
        self._wanted = {pattern: self._read(pattern, pin) for pattern, pin in self.pins.items()}

    @property
    def texts(self) -> dict[str, str | dict[str, str]]:
        """The pins as plain text, which says the same when read again."""
        return {pattern: self._text(pin) for pattern, pin in self.pins.items()}

    def _text(self, pin: Pin) -> str | dict[str, str]:
        if isinstance(pin, Mapping):
            return {axis: p if isinstance(p, str) else placement_text(p) for axis, p in pin.items()}
        return pin if isinstance(pin, str) else str(Layout.of(pin, self.mesh))

    def _read(self, pattern: str, pin: Pin) -> dict[int, Placement]:
        """The wanted placement on each axis that the pin speaks of."""
        require(pattern, str, "a name in pin", "a name or a pattern such as '*.weight'")
        require(
            pin,
            (str, Layout, Sharding, Mapping, Sequence),
            f"pin {pattern!r}",
            "a layout such as 'S(0), R' or '[{dp}, {}]', or placements by axis",
        )
        try:
            if isinstance(pin, Mapping):
                wanted = {
                    self.mesh.index(axis): parse_placement(p if isinstance(p, str) else placement_text(p))
                    for axis, p in pin.items()
                }
            else:
                placed = Layout.of(pin, self.mesh)
                if placed.mesh != self.mesh:
                    raise UsageError(f"it is a layout on mesh {placed.mesh}, and the plan is for {self.mesh}")
                wanted = dict(enumerate(placed.to_placements()))
        except UsageError as error:
            raise UsageError(f"pin {pattern!r}: {error}") from None
        # On an axis of one rank all placements are the same.
        return {axis: placement for axis, placement in wanted.items() if self.mesh.shape[axis] > 1}

    def require_all_used(self, graph: Graph) -> None:
        """Refuse pins that hold nothing, and those that cannot be."""
        for pattern, wanted in self._wanted.items():
            for named, shape in matched(graph, pattern, f"pin {pattern!r}"):
                for placement in wanted.values():
                    if is_partial(placement) and named.kind == "state":
                        raise UsageError(
                            f"pin {pattern!r} makes {named.name} {placement_text(placement)}, but every rank would "
                            "train its own term of it: pin it R or S(0)"
                        )
                    if is_shard(placement) and placement.dim >= len(shape):
                        raise UsageError(
                            f"pin {pattern!r} shards dim {placement.dim} of {named.name}, "
                            f"which has shape {shape}"
                        )

    def placements(self, named: Named) -> dict[int, Placement]:
        """The placements by axis that the pins say of what is called so."""
        found: dict[int, Placement] = {}
        for pattern, wanted in self._wanted.items():
            if named.matches(pattern):
                found |= wanted
        return found

    def allowed(self, named: Named, options: np.ndarray, layouts: Layouts) -> np.ndarray | None:
        """Which of these layouts the pins allow for what is called so; None if no pin speaks of it."""
        mask: np.ndarray | None = None
        for pattern, wanted in self._wanted.items():
            if named.matches(pattern):
                fits = np.array(
                    [
                        all(layouts.all[number].to_placements()[axis] == p for axis, p in wanted.items())
                        for number in options.tolist()
                    ]
                )
                mask = fits if mask is None else mask & fits
        return mask


def exactly(name: str) -> str:
    """A pattern that this name alone matches."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
