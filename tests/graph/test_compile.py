import pytest
import torch
from torch import fx

from shardwise.errors import UsageError
from shardwise.graph import Compiled, backend_of, first_results


class Function(torch.nn.Module):
    def forward(self, x, y):
        z = x * y
        return z, (x + y).sum(), z.exp()


@pytest.fixture
def program():
    return fx.symbolic_trace(Function())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_results_are_those_of_the_program(program, backend):
    given = [torch.randn(3), torch.randn(3)]
    run = Compiled(program, backend_of(backend))
    for _ in range(2):
        torch.testing.assert_close(run([*given]), Function()(*given))


def test_gradients_are_those_of_the_program(program):
    given = [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)]
    compiled = Compiled(program, backend_of("aot_eager"))
    both = []
    for call in (lambda given: Function()(*given), compiled):
        first, second, third = call([*given])
        both.append(torch.autograd.grad((first * third).sum() * second, given))
    torch.testing.assert_close(*both)
    with torch.no_grad():
        assert not compiled([*given])[0].requires_grad


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_inputs_are_freed_while_it_runs(program, backend):
    given = [torch.randn(3), torch.randn(3)]
    Compiled(program, backend_of(backend))(given)
    assert not given


def test_what_other_results_need_alone_is_left_out(program):
    given = [torch.randn(3), torch.randn(3)]
    shorter = first_results(program, 2)
    torch.testing.assert_close(shorter(*given), Function()(*given)[:2])
    assert not [node for node in shorter.graph.nodes if "exp" in str(node.target)]
    assert [node for node in program.graph.nodes if "exp" in str(node.target)]


def test_an_unknown_backend_is_named_with_those_that_there_are():
    with pytest.raises(
        UsageError, match=r"compile is 'fastest': use True, or the name of a backend.*inductor"
    ):
        backend_of("fastest")
