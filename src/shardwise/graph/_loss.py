"""A model whose loss is computed outside of it: model and loss function as one module, under the model's names."""

import copy
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any

from torch import nn

from ..calls import parameters
from ..errors import UsageError, require
from ._callable import as_module, name_of


def with_loss(model: Callable[..., Any], loss_fn: Callable[..., Any] | None) -> Callable[..., Any]:
    """The model followed by a function of its result: `loss_fn(model(*args), target=...)`.

    It has the model's parameters, buffers and submodules, not copies of them. It is called like the model; keyword
    arguments that `loss_fn` has parameters for, after the first, go to `loss_fn` alone.
    """
    if loss_fn is None:
        return model
    require(loss_fn, Callable, "loss_fn", "a function of the model's result, or an nn.Module")
    module, loss = as_module(model), as_module(loss_fn)
    if module._forward_hooks or module._forward_pre_hooks:
        raise UsageError(
            f"{name_of(model)} has hooks on its own call, which cannot be combined with loss_fn: compute the loss in a "
            "module around it"
        )
    wanted = _after_first(loss)
    run = module.forward
    joined = copy.copy(module)
    if getattr(run, "__self__", None) is module:
        run = run.__func__.__get__(joined)

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in wanted if name in kwargs}
        return loss(run(*args, **kwargs), **given)

    forward.__signature__ = _joined(signature(run), wanted)  # type: ignore[attr-defined]
    joined.__dict__["forward"] = forward
    joined.__dict__["_modules"] = {**module._modules, _free_name(module): loss}
    return joined


def _after_first(loss: nn.Module) -> list[str]:
    """The parameters of a loss function, without the one that gets the model's result."""
    takes = parameters(loss.forward)
    return [name for name in takes.names[1:] if name != takes.more]


def _joined(takes: Signature, wanted: list[str]) -> Signature:
    own = [each for each in takes.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    rest = [each for each in takes.parameters.values() if each.kind is Parameter.VAR_KEYWORD]
    more = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None)
        for name in wanted
        if name not in takes.parameters
    ]
    return takes.replace(parameters=[*own, *more, *rest])


def _free_name(module: nn.Module) -> str:
    name = "loss_fn"
    while hasattr(module, name):
        name += "_"
    return name
