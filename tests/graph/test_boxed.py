"""A program frees its inputs after their last use."""

import weakref

import torch
from torch import fx

from shardwise.graph import boxed


def test_inputs_are_freed_as_they_are_used():
    alive = []

    def note(x):
        alive.append(watched() is not None)
        return x

    graph = fx.Graph()
    one, two = graph.placeholder("one"), graph.placeholder("two")
    doubled = graph.call_function(torch.mul, (one, 2))
    noted = graph.call_function(note, (doubled,))
    graph.output(graph.call_function(torch.add, (noted, two)))
    given = [torch.ones(3), torch.ones(3)]
    watched = weakref.ref(given[0])
    assert torch.equal(boxed(fx.GraphModule({}, graph))(given), torch.full((3,), 3.0))
    assert given == [] and alive == [False]
