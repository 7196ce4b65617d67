"""What backward computes again because the user says so: the blocks whose calls are not kept, as in activation
checkpointing.

Between its forward and its backward such a block keeps what is used outside of it, random numbers, and with `selective`
the results of attention and of every second product. The calls that lead to the rest are in the graph twice, so they
are planned, priced, run and verified like any others.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import compress
from operator import getitem
from typing import Literal, get_args

from torch import fx

from ..calls import facts
from ..errors import UsageError, require
from ._blocks import block_of, module_path
from ._recompute import is_backward, is_random, run_again_in_backward
from ._whole import mark_again

Policy = Literal["none", "selective", "full"]
Policies = tuple[tuple[str, Policy], ...]


def policies_of(recompute: "str | Mapping[str, str]") -> Policies:
    """From one policy for all blocks, or policies by pattern of blocks, of which the first that matches counts."""
    require(recompute, (str, Mapping), "recompute", "a policy, or policies by pattern of blocks")
    given = {"*": recompute} if isinstance(recompute, str) else recompute
    for pattern, policy in given.items():
        if policy not in get_args(Policy):
            raise UsageError(
                f"recompute has {policy!r} for {pattern!r}: use one of {', '.join(get_args(Policy))}"
            )
    asked = any(policy != "none" for policy in given.values())
    return tuple(given.items()) if asked else ()  # type: ignore[arg-type]


def recompute_blocks(name: str, joint: fx.GraphModule, policies: Policies) -> None:
    """Let backward compute again what policies say of the blocks that they match."""
    members: dict[str, list[fx.Node]] = defaultdict(list)
    for node in joint.graph.nodes:
        if node.op == "call_function" and not is_backward(node) and (block := block_of(module_path(node))):
            members[block].append(node)
    if not members:
        raise UsageError(
            f"{name} has no blocks to recompute: blocks are numbered modules, such as those of an nn.ModuleList"
        )
    for pattern, _ in policies:
        if not any(fnmatchcase(block, pattern) for block in members):
            some = ", ".join(list(members)[:3])
            raise UsageError(
                f"recompute names {pattern!r}, which is no block of {name}: its blocks are {some}"
            )
    chosen: set[fx.Node] = set()
    for block, nodes in members.items():
        policy = next((policy for pattern, policy in policies if fnmatchcase(block, pattern)), "none")
        if policy != "none":
            kept = _escaping(nodes) | set(filter(is_random, nodes))
            kept |= set(_costly(nodes)) if policy == "selective" else set()
            chosen |= {
                node for node in nodes if (node.args[0] if node.target is getitem else node) not in kept
            }
    mark_again(run_again_in_backward(joint.graph, chosen.__contains__))
    joint.recompile()


def _escaping(nodes: list[fx.Node]) -> set[fx.Node]:
    """The calls of a block whose results, or views of them, forward uses outside of it."""
    inside, found = set(nodes), set[fx.Node]()
    for node in reversed(nodes):
        for user in node.users:
            outside = user not in inside and not is_backward(user)
            if outside or (user in found and (user.target is getitem or facts(user.target).view)):
                found.add(node)
    return found


def _costly(nodes: list[fx.Node]) -> Iterator[fx.Node]:
    kinds = [None if node.target is getitem else facts(node.target).kernel for node in nodes]
    return compress(nodes, kept_by_selective(kinds))


def kept_by_selective(kernels: Iterable[str | None]) -> Iterator[bool]:
    """Of the calls of a block, by the kind of their kernels: attention, and the first, third, fifth product."""
    products = 0
    for kind in kernels:
        products += kind == "matmul"
        yield kind == "attention" or (kind == "matmul" and products % 2 == 1)
