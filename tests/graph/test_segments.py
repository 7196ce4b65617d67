"""A graph with boundaries: every stretch of it is a graph, and together they compute what the whole does."""

from functools import cache
from itertools import combinations, pairwise

import pytest
import torch

import shardwise as sw
from shardwise.graph import Graph, Ref, Segments, inputs_of
from tests.staged import MODELS, Frozen, Tied


@cache
def captured(name: str) -> tuple[Segments, dict[Ref, torch.Tensor]]:
    model, args = MODELS[name]()
    segments = Segments(sw.capture(model.eval(), args, boundaries=True))
    return segments, {Ref(n): tensor for n, tensor in inputs_of(segments.whole, model, args).items()}


def values(graph: Graph, given: dict[Ref, torch.Tensor]) -> dict[Ref, torch.Tensor]:
    found = dict(given)
    with torch.no_grad():
        for node in graph.nodes:
            made = graph.call(node).with_tensors([found[ref] for ref in node.inputs])()
            for place, value in enumerate(made if isinstance(made, tuple | list) else (made,)):
                found[Ref(node.name, place)] = value
    return found


def results(graph: Graph, found: dict[Ref, torch.Tensor]) -> dict[tuple[str, str], torch.Tensor]:
    return {(o.role, o.target): found[o.value] for o in graph.outputs if o.value is not None}


def in_stages(segments: Segments, cuts: tuple[int, ...], given: dict[Ref, torch.Tensor]):
    """What all stages give together: forward with no gradients at first, then backward from the last."""
    stages = [segments.stage(begin, end) for begin, end in pairwise(cuts)]
    crossed: dict[str, torch.Tensor] = {}
    taken = []
    for stage in stages:
        own = {Ref(e.name): given[Ref(e.name)] for e in stage.inputs if Ref(e.name) in given}
        for entry in stage.inputs:
            empty = torch.zeros(entry.tensor.shape, dtype=entry.tensor.dtype)
            own.setdefault(Ref(entry.name), crossed.get(entry.target, empty))
        taken.append(own)
        if stage is not stages[-1]:
            found = results(stage, values(stage, own))
            crossed |= {name: value for (role, name), value in found.items() if role == "user_output"}
    together: dict[tuple[str, str], torch.Tensor] = {}
    returned: dict[str, torch.Tensor] = {}
    for stage, own in zip(reversed(stages), reversed(taken), strict=True):
        for entry in stage.inputs:
            if entry.role == "tangent" and entry.target in returned:
                own[Ref(entry.name)] = returned[entry.target]
        for (role, name), value in results(stage, values(stage, own)).items():
            if role == "gradient" and name in crossed:
                returned[name] = value
            elif name not in crossed:
                together[role, name] = together[role, name] + value if (role, name) in together else value
    return together


@pytest.mark.parametrize("name", MODELS)
def test_stages_together_compute_what_the_whole_does(name):
    segments, given = captured(name)
    whole = results(segments.whole, values(segments.whole, given))
    inner = range(1, len(segments))
    for number in (1, 2, len(inner)):
        for chosen in list(combinations(inner, number))[:4]:
            together = in_stages(segments, (0, *chosen, len(segments)), given)
            assert together.keys() == whole.keys(), chosen
            for key, value in whole.items():
                torch.testing.assert_close(together[key], value, msg=f"{key} of {chosen}")


def test_the_whole_is_what_is_captured_without_boundaries():
    model, args = MODELS["tied"]()
    with_them = Segments(sw.capture(model, args, boundaries=True)).whole
    without = sw.capture(model, args)
    assert [node.op for node in with_them.nodes] == [node.op for node in without.nodes]
    assert with_them.gradients.keys() == without.gradients.keys()


def test_a_value_used_far_behind_crosses_every_boundary_in_between():
    segments, _ = captured("skips")
    shape = (4, 4, 8, 8)  # of what the first layers make
    crossing = [{c.tensor.shape for c in found} for found in segments.crossings.values()]
    assert all(shape in shapes for shapes in crossing[2:-1])


def test_what_follows_from_arguments_alone_is_computed_by_every_stage():
    segments, _ = captured("skips")
    mask = next(node for node in segments.graph.nodes if node.op.startswith("aten.gt"))
    users = {segments.of[user.name] for user in segments.graph.nodes if segments.of[user.name] is not None}
    stages = [segments.stage(part, part + 1) for part in sorted(users)]
    assert sum(mask.name in stage.makers for stage in stages) == 2
    assert not any(c.mark.inputs[0].name == mask.name for found in segments.crossings.values() for c in found)


def test_no_gradient_crosses_to_layers_that_have_none():
    segments, _ = captured("frozen")
    assert [any(c.gradient for c in found) for found in segments.crossings.values()] == [False, True, True]
    assert not segments.stage(0, 1).gradients or not any(segments.stage(0, 1).gradients.values())


def test_numbers_cross_without_gradients():
    segments, _ = captured("frozen")
    kinds = {c.tensor.dtype: c.gradient is not None for c in segments.crossings[3]}
    assert kinds == {torch.int64: False, torch.float32: True}


def test_a_tied_parameter_is_in_each_stage_with_its_own_gradient():
    segments, _ = captured("tied")
    ends = [segments.stage(0, 1), segments.stage(len(segments) - 1, len(segments))]
    for stage in ends:
        assert "embedding.weight" in {entry.target for entry in stage.with_role("parameter")}
        assert stage.gradients["embedding.weight"] is not None


def test_stages_have_the_strides_of_what_they_are_given():
    """A value crosses as it is stored, its gradient as that is: a graph that is read again checks them."""

    class Permuted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(size, size) for size in (4, 3, 3))

        def forward(self, x):
            first = self.blocks[0](x).permute(2, 0, 1)
            second = self.blocks[1](x.reshape(4, 2, 3)).softmax(-1) + first
            return (self.blocks[2](second.contiguous()).softmax(-1) + first).contiguous().square().mean()

    segments = Segments(sw.capture(Permuted(), (torch.rand(2, 3, 4),), boundaries=True))
    for part in range(len(segments)):
        stage = segments.stage(part, part + 1)
        assert Graph.from_json(stage.to_json()) == stage


def test_a_model_without_parts_is_one_segment():
    segments = Segments(sw.capture(torch.nn.Linear(4, 4), (torch.rand(2, 4),), boundaries=True))
    assert len(segments) == 1 and segments.crossings == {}


def test_parts_of_a_wrapped_model_are_those_of_the_model():
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Frozen()

        def forward(self, x):
            return self.inner(x)

    x = torch.randn(6, 6)
    assert len(Segments(sw.capture(Wrapped(), (x,), boundaries=True))) == 4
    assert len(Segments(sw.capture(Tied(5), MODELS["tied"]()[1], boundaries=True))) == 7
