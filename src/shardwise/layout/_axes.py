"""`AxisRef`: a mesh axis, or the part of one that a tensor dim uses.

An axis of size n can be split into a grid [pre, size, post] with pre * size * post = n; the sub-axis is the
middle one, written `a:(pre)size`. A whole axis is the case pre = 1, size = n. So each part of an axis is the
interval from pre to pre * size, and the functions below are an algebra of intervals.
"""

import re
from typing import NamedTuple

from ..errors import UsageError
from ..mesh import Mesh

_TEXT = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::\s*\(\s*(\d+)\s*\)\s*(\d+)\s*)?")


class AxisRef(NamedTuple):
    """Axis `name`, or its sub-axis of `size`, with `pre` the size of the more significant part."""

    name: str
    pre: int
    size: int

    @classmethod
    def parse(cls, text: str, mesh: Mesh) -> "AxisRef":
        match = _TEXT.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not an axis: write it as 'a' or, for a sub-axis, as 'a:(2)4'")
        name, pre, size = match.groups()
        whole = mesh[name]
        if pre is None:
            return cls(name, 1, whole)
        ref = cls(name, int(pre), int(size))
        if ref == (name, 1, whole):
            raise UsageError(f"{text.strip()} is the whole axis: write it as '{name}'")
        ref.require_on(mesh)
        return ref

    def require_on(self, mesh: Mesh) -> None:
        """Raise unless the mesh has the axis and the sub-axis divides it."""
        whole = mesh[self.name]
        if self == (self.name, 1, whole):
            return
        if self.pre < 1 or self.size < 2 or whole % self.end:
            raise UsageError(
                f"{self.name}:({self.pre}){self.size} is not a sub-axis of {self.name}={whole}: pre-size times size "
                f"must divide {whole}, and the size must be at least 2"
            )

    def text(self, mesh: Mesh) -> str:
        return self.name if self.size == mesh[self.name] else f"{self.name}:({self.pre}){self.size}"

    @property
    def end(self) -> int:
        """The `pre` of the next sub-axis."""
        return self.pre * self.size

    def overlaps(self, other: "AxisRef") -> bool:
        if self.name != other.name:
            return False
        return self == other or (self.pre < other.end and other.pre < self.end)

    def contains(self, other: "AxisRef") -> bool:
        return self.name == other.name and self.pre <= other.pre and self.end >= other.end

    def is_prefix_of(self, other: "AxisRef") -> bool:
        return self.pre == other.pre and other.contains(self)

    def fits_with(self, other: "AxisRef") -> bool:
        """True if one split of the axis contains both: false for `a:(1)2` and `a:(1)3` of 6."""
        if self.name != other.name:
            return True
        low, high = sorted((self.pre, other.pre))
        low_end, high_end = sorted((self.end, other.end))
        if low_end > high:
            return low_end % high == 0 and high % low == 0 and high_end % low_end == 0
        return high % low_end == 0

    def before(self, other: "AxisRef") -> "AxisRef | None":
        """The longest prefix that does not overlap `other`; None if there is none."""
        if self.name != other.name:
            return self
        if not self.fits_with(other):
            return None
        if not self.overlaps(other):
            return self
        if self.pre >= other.pre:
            return None
        return AxisRef(self.name, self.pre, other.pre // self.pre)


def append_axis(axes: list[AxisRef], axis: AxisRef) -> None:
    """Append `axis` at the minor end, merged with the last one if it continues that one."""
    if axes and axes[-1].name == axis.name and axes[-1].end == axis.pre and axis.pre > 1:
        axes[-1] = AxisRef(axis.name, axes[-1].pre, axes[-1].size * axis.size)
    else:
        axes.append(axis)


def is_strict_prefix(axes: tuple[AxisRef, ...], longer: tuple[AxisRef, ...]) -> bool:
    """True if `longer` extends `axes`, by more axes or by more of the last one."""
    return axes != longer and is_prefix(axes, longer)


def is_prefix(axes: tuple[AxisRef, ...], longer: tuple[AxisRef, ...]) -> bool:
    if not axes:
        return True
    last = len(axes) - 1
    return last < len(longer) and axes[:last] == longer[:last] and axes[last].is_prefix_of(longer[last])
