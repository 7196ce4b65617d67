"""Blocks: the numbered modules that most of a model consists of."""

import re

from torch import fx

_BLOCK = re.compile(r"(?:[^.]+\.)*?\d+(?=\.|$)")


def block_of(path: str) -> str:
    """The outermost numbered module of a path; nothing if there is none.

    >>> block_of("model.layers.3.mlp.up"), block_of("0.weight"), block_of("model.norm")
    ('model.layers.3', '0', '')
    """
    found = _BLOCK.match(path)
    return found[0] if found else ""


def pattern(path: str) -> str:
    """A module's path without its numbers: the layers of a stack are equal.

    >>> pattern("model.layers.3.mlp.experts.0")
    'model.layers.*.mlp.experts.*'
    """
    return re.sub(r"\d+", "*", path)


def module_path(node: fx.Node) -> str:
    """The module that a node was traced in, or that of which it is the backward; nothing if torch has recorded none."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return list(stack.values())[-1][0] if stack else ""


def in_block(node: fx.Node) -> bool:
    return bool(block_of(module_path(node)))
