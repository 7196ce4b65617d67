"""What backward of a compiled program computes again."""

import torch
from torch import nn

from shardwise.graph import capture, run


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        gated = torch.sigmoid(self.gate(x)).exp() * self.up(x)
        return self.down(nn.functional.dropout(gated, 0.1, self.training)).square().mean()


def kept(graph) -> set[str]:
    """The operators whose results backward uses though forward made them."""
    forward = {node.name: node for node in graph.nodes if node.phase == "forward"}
    used = {graph.base(ref).name for node in graph.nodes if node.phase == "backward" for ref in node.inputs}
    return {forward[name].op.split(".")[1] for name in used if name in forward}


def test_compiled_programs_keep_products_and_compute_cheap_values_again():
    eager, compiled = (capture(Gated(), (torch.empty(4, 8),), execution=how) for how in ("eager", "compiled"))
    assert "exp" in kept(eager)
    assert "addmm" in kept(compiled) and "exp" not in kept(compiled) and "mul" not in kept(compiled)
    assert len(compiled.nodes) > len(eager.nodes)
    assert len(compiled.live.draws) == len(eager.live.draws) == 1  # random numbers are drawn once


def test_the_results_are_those_of_the_eager_program():
    torch.manual_seed(0)
    model, x = Gated().eval(), torch.rand(4, 8)
    results = [run(capture(model, (x,), execution=how), model, (x,)) for how in ("eager", "compiled")]
    for name, gradient in results[0].gradients.items():
        assert torch.equal(gradient, results[1].gradients[name])
