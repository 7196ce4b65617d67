"""What backward computes again because the user says so: the blocks whose calls are not kept, as in activation
checkpointing.

Between its forward and its backward such a block keeps what is used outside of it, random numbers, and with `selective`
the results of attention and of every second product. With `auto` that is what a plan may compute again: it decides call
by call.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import compress
from typing import Literal, get_args

from ..errors import UsageError, require
from ._again import run_again
from ._blocks import block_of
from ._graph import Graph, Node

Policy = Literal["none", "selective", "full", "auto"]
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


def recompute_blocks(graph: Graph) -> Graph:
    """The graph in which backward computes again what the graph's policies say of the blocks that they match."""
    members = _members(graph)
    blocks = [block for block in members if block]
    by_name = [pattern for pattern, policy in graph.recompute if policy != "auto" or pattern != "*"]
    if by_name and not blocks:
        raise UsageError(
            f"{graph.name} has no blocks to recompute: blocks are numbered modules, such as those of an nn.ModuleList"
        )
    for pattern in by_name:
        if not any(fnmatchcase(block, pattern) for block in blocks):
            some = ", ".join(blocks[:3])
            raise UsageError(
                f"recompute names {pattern!r}, which is no block of {graph.name}: its blocks are {some}"
            )
    chosen: set[str] = set()
    for block in blocks:
        policy = policy_of(graph, block)
        if policy in ("full", "selective"):
            kept = set(_costly(members[block])) if policy == "selective" else set()
            chosen |= {node.name for node in _repeatable(graph, members[block])} - kept
    return run_again(graph, chosen)


def may_run_again(graph: Graph) -> frozenset[str]:
    """The calls of forward of which a plan may decide that backward runs them again: those of blocks for which the
    policy is `auto`, and of all that is outside of blocks if it is for everything."""
    found: set[str] = set()
    for block, nodes in _members(graph).items():
        if policy_of(graph, block) == "auto":
            found |= {node.name for node in _repeatable(graph, nodes)}
    return frozenset(found)


def policy_of(graph: Graph, block: str) -> Policy:
    """What is recomputed of a block; of what is outside of blocks ("") only a policy for everything speaks."""
    if not block:
        return next((p for pattern, p in graph.recompute if pattern == "*" and p == "auto"), "none")
    return next((policy for pattern, policy in graph.recompute if fnmatchcase(block, pattern)), "none")


def _members(graph: Graph) -> dict[str, list[Node]]:
    members: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.phase == "forward":
            members[block_of(node.module)].append(node)
    return members


def _repeatable(graph: Graph, nodes: list[Node]) -> list[Node]:
    """The calls of a block that draw no random numbers, and whose results, or views of them, forward does not use
    outside of it."""
    inside, escaping = {node.name for node in nodes}, set[str]()
    for node in reversed(nodes):
        for user in (user for ref in node.results for user in graph.users.get(ref, ())):
            outside = user.name not in inside and user.phase == "forward"
            if outside or (user.name in escaping and user.facts.view):
                escaping.add(node.name)
    return [node for node in nodes if node.name not in escaping and not node.facts.random]


def _costly(nodes: list[Node]) -> Iterator[str]:
    return compress((node.name for node in nodes), kept_by_selective(node.facts.kernel for node in nodes))


def kept_by_selective(kernels: Iterable[str | None]) -> Iterator[bool]:
    """Of the calls of a block, by the kind of their kernels: attention, and the first, third, fifth product."""
    products = 0
    for kind in kernels:
        products += kind == "matmul"
        yield kind == "attention" or (kind == "matmul" and products % 2 == 1)
