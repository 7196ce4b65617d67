import pytest
import torch

from shardwise.errors import UsageError
from shardwise.graph import backend_of, compiled


def test_gradients_are_those_of_the_function():
    def function(x, y):
        return x * y, (x + y).sum()

    given = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    both = [
        torch.autograd.grad([first.sum() * second for first, second in [call(*given)]], given)
        for call in (function, compiled(function, 2, given, backend_of("aot_eager")))
    ]
    torch.testing.assert_close(*both)


def test_an_unknown_backend_is_named_with_those_that_there_are():
    with pytest.raises(
        UsageError, match=r"compile is 'fastest': use True, or the name of a backend.*inductor"
    ):
        backend_of("fastest")
