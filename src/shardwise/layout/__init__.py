"""Layouts of a tensor on a whole mesh: one placement per axis, and the order of nested shards."""

from ._layout import Layout, mixes_partials

__all__ = ["Layout", "mixes_partials"]
