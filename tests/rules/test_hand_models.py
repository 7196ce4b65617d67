"""Hand-written rules hold for the calls that models make, with the values that models give them."""

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shardwise.calls import overload
from shardwise.graph import capture, inputs_of
from shardwise.rules import hand_written

MODELS = ["bert", "cnn", "gpt2", "llama", "lstm", "mixtral", "mlp", "recommender", "t5", "unet", "vit"]


def is_float(leaf):
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


class Recording(torch.fx.Interpreter):
    """Keeps the calls of a graph that it runs, one of each kind."""

    def __init__(self, module):
        super().__init__(module)
        self.calls = {}

    def call_function(self, target, args, kwargs):
        args, kwargs = plain(args), plain(kwargs)
        if str(target) in RULED:
            kind = pytree.tree_map(
                lambda leaf: leaf.shape if isinstance(leaf, Tensor) else leaf, (args, kwargs)
            )
            self.calls[str(target), repr(kind)] = (args, kwargs)
        return super().call_function(target, tuple(args), kwargs)


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.detach() if isinstance(value, Tensor) else value


RULED = {op for op in hand_written() if torch.Tag.nondeterministic_seeded not in overload(op).tags}


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_rows_hold_for_the_calls_of_models(models, assert_rows_hold, name):
    torch.manual_seed(0)
    model, args, kwargs = pytree.tree_map(
        lambda leaf: leaf.double() if is_float(leaf) else leaf, models.ZOO[name]()
    )
    model.double()
    graph = capture(model, args, kwargs)
    recording = Recording(graph.live.module)
    values = inputs_of(graph, model, args, kwargs)
    names = [node.name for node in graph.live.module.graph.find_nodes(op="placeholder")]
    with torch.no_grad():
        recording.run(*(values[n] for n in names), enable_io_processing=False)
    rows = 0
    for (op, _), (call_args, call_kwargs) in recording.calls.items():
        for ranks in (2, 4):
            with torch.no_grad():
                rows += assert_rows_hold(op, call_args, call_kwargs, ranks, "uneven")
    assert rows > 10
