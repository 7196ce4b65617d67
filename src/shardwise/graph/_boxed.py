"""A program that takes a list of its inputs and empties it, so that each is freed after its last use."""

from collections.abc import Callable
from typing import Any

from torch import fx
from torch.fx.graph import CodeGen


def boxed(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The same program as a function of a list, which is empty afterwards."""
    copied = copy_of(module.graph)
    copied.set_codegen(_Boxed())
    return fx.GraphModule(module, copied)


def copy_of(graph: fx.Graph) -> fx.Graph:
    """The same graph again, its output and the names of its nodes included."""
    copied, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        copies[node] = copied.node_copy(node, copies.__getitem__)
    return copied


class _Boxed(CodeGen):
    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        names = [variable.split(":")[0].split("=")[0].strip() for variable in free_vars if variable != "self"]
        taken = f"\n    {', '.join(names)}, = given\n    given.clear()" if names else ""
        return f"def forward(self, given){maybe_return_annotation}:{taken}"
