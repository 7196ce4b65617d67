"""How a program customises autograd, which `torch.export` does not record: kept where a graph can express it, else
refused.

Export records what is computed, not how it is differentiated. Custom `autograd.Function`s, hooks on tensors and
gradients that the program takes itself are therefore recorded here as calls that stand in the exported graph and run
again when AOTAutograd differentiates it. `inference_mode` and `.data` are recorded by their meaning. The rest
(hooks on parameters and modules, `requires_grad` switched on a parameter, `backward` inside) cannot be in a graph.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._functorch import eager_transforms
from torch._ops import _get_dispatch_mode_pre_dispatch
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.export.custom_ops import _call_custom_autograd_function_in_pre_dispatch as _STAND_IN
from torch.fx.experimental.proxy_tensor import get_proxy_slot, track_tensor_tree
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from ..errors import UsageError
from ._rows import rows_of


class NotKept(Exception):
    """The program does something that its graph would not do; the message continues "it cannot be captured: "."""


class Undecided(NotKept):
    """The program reads a value that follows from its data, or from chance."""


def refuse_hooks(name: str, module: nn.Module) -> None:
    """Raise if a gradient of the model is changed or watched by hooks, which no graph would call."""
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            owner = f"its module {path!r}" if path else "it"
            raise UsageError(f"{name} cannot be captured: {owner} has a backward hook; remove it first")
        for own, parameter in part.named_parameters(recurse=False):
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                parameter_name = f"{path}.{own}" if path else own
                raise UsageError(
                    f"{name} cannot be captured: its parameter {parameter_name!r} has a hook on its gradient; "
                    "remove it first"
                )
    if modules._global_backward_hooks or modules._global_backward_pre_hooks:
        raise UsageError(
            f"{name} cannot be captured: a backward hook is registered for all modules; remove it first"
        )


class Kept:
    """The calls of one program that run again where its graph is differentiated; and notes of what does not."""

    def __init__(self, notes: list[str]) -> None:
        self.calls: list[nn.Module] = []
        self.notes = notes
        self.recording = False

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Within, calls that export does not record leave a placeholder call in the graph being traced."""
        with ExitStack() as stack:
            stack.enter_context(
                _replaced(Function, "apply", classmethod(self._apply(vars(Function)["apply"])))
            )
            stack.enter_context(_replaced(torch.inference_mode, "__enter__", _without_gradients))
            stack.enter_context(_replaced(torch.inference_mode, "__exit__", _gradients_again))
            stack.enter_context(_replaced(saved_tensors_hooks, "__enter__", self._hooks_on_saved_tensors()))
            stack.enter_context(_replaced(eager_transforms, "grad_increment_nesting", _refuse_torch_func))
            stack.enter_context(_Watch(self))
            yield

    def put_back(self, module: fx.GraphModule) -> None:
        """Replace the placeholder calls of an exported graph by the calls themselves."""
        for inner in list(module.modules()):
            if not isinstance(inner, fx.GraphModule):
                continue
            for node in inner.graph.find_nodes(op="call_function", target=_STAND_IN):
                place, *tensors = node.args
                target = f"_kept_{place}"
                inner.add_module(target, self.calls[int(place)])
                node.op, node.target, node.args = "call_module", target, tuple(tensors)
            inner.recompile()

    def stand_in(self, call: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Put a call into the graph being traced; `result` is its result."""
        tracer = _tracer()
        leaves, form = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        proxies = [get_proxy_slot(tensor, tracer, tensor, lambda slot: slot.proxy) for tensor in tensors]
        self.calls.append(_Again(call, leaves, form))
        proxy = tracer.create_proxy("call_function", _STAND_IN, (str(len(self.calls) - 1), *proxies), {})
        track_tensor_tree(result, proxy, constant=None, tracer=tracer)

    def _apply(self, original: Any) -> Callable[..., Any]:
        """`Function.apply` that leaves a placeholder call, where there is anything to differentiate; `original` is the
        class method as its class has it."""

        def plain(function: type[Function], *args: Any, **kwargs: Any) -> Any:
            return original.__get__(None, function)(*args, **kwargs)

        def apply(function: type[Function], *args: Any, **kwargs: Any) -> Any:
            if function is CheckpointFunction:  # recomputation does not change the result
                self._note_checkpointing()
                run, _preserve, *rest = args
                return run(*rest)
            if self.recording or _tracer() is None or not _is_differentiated((args, kwargs)):
                return plain(function, *args, **kwargs)
            if not getattr(function, "takes_rows", False) and any(
                map(rows_of, pytree.tree_leaves((args, kwargs)))
            ):
                raise NotKept(f"{_name_of(function)} gets rows that a mask selects; give it the full tensor")
            self.recording = True
            try:
                with _untraced(), _Foreign(function, (args, kwargs)):
                    result = plain(function, *args, **kwargs)
            finally:
                self.recording = False
            self.stand_in(function.apply, args, kwargs, result)
            return result

        return apply

    def _hooks_on_saved_tensors(self) -> Callable[[saved_tensors_hooks], None]:
        """Torch's own hooks move or recompute saved tensors, and do not change their values."""

        def enter(hooks: saved_tensors_hooks) -> None:
            kind = type(hooks)
            if kind is saved_tensors_hooks or not kind.__module__.startswith("torch."):
                raise NotKept("it changes what is saved for backward by saved_tensors_hooks")
            if kind.__module__ == checkpoint.__module__:
                self._note_checkpointing()
            torch._C._autograd._push_saved_tensors_default_hooks(hooks.pack_hook, hooks.unpack_hook)

        return enter

    def _note_checkpointing(self) -> None:
        note = "its own activation checkpointing is left out: `recompute` says what backward computes again"
        if note not in self.notes:
            self.notes.append(note)


class _Again(nn.Module):
    """A recorded call, run with other tensors."""

    _is_impure = True  # a hook is called for its side effect

    def __init__(self, call: Callable[..., Any], leaves: list[Any], form: pytree.TreeSpec) -> None:
        super().__init__()
        self.call, self.form = call, form
        self.leaves = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        self.places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))

    def forward(self, *tensors: Tensor) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.form)
        return self.call(*args, **kwargs)


def _tracer() -> Any:
    """The tracer of the export that is under way, if one is."""
    mode = _get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
    return None if mode is None else mode.tracer


def _is_differentiated(given: Any) -> bool:
    tensors = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


@contextmanager
def _untraced() -> Iterator[None]:
    """Within, calls are not recorded in the graph being traced."""
    key = torch._C.DispatchKey.PreDispatch
    include = torch._C._dispatch_tls_local_include_set().remove(key)
    exclude = torch._C._dispatch_tls_local_exclude_set() | torch._C.DispatchKeySet(key)
    with torch._C._ForceDispatchKeyGuard(include, exclude), torch._C.DisableTorchFunction():
        yield


def _name_of(function: type[Function]) -> str:
    return function.__qualname__.replace("<locals>.", "")


class _Foreign(TorchDispatchMode):
    """Refuses a function that uses tensors of the program that are not its arguments: they would not be
    differentiated."""

    def __init__(self, function: type[Function], given: Any) -> None:
        super().__init__()
        self.name = _name_of(function)
        self.tracked = _tracer().tensor_tracker
        self.given = {id(leaf) for leaf in pytree.tree_leaves(given)}

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and id(leaf) not in self.given and leaf in self.tracked:
                raise NotKept(
                    f"{self.name} uses a tensor of shape {list(leaf.shape)} that is not among its arguments; "
                    f"give it to {self.name}.apply"
                )
        return op(*args, **(kwargs or {}))


# -- what the program does besides calling operators


class _Watch(TorchFunctionMode):
    """Intercepts what a program does to tensors that is not an operator."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self.kept = kept

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = _HANDLERS.get(function)
        if handler is None or self.kept.recording:
            return function(*args, **(kwargs or {}))
        return handler(self.kept, function, *args, **(kwargs or {}))


def _register_hook(kept: Kept, function: Any, tensor: Tensor, hook: Any) -> Any:
    if isinstance(tensor, nn.Parameter):
        raise NotKept("it puts a hook on a parameter each time it is called")
    handle = function(tensor, hook)
    if _tracer() is not None and tensor.requires_grad:
        own = _Hook(hook, handle.remove)
        handle.remove = own.remove
        kept.stand_in(own.register, (tensor,), {}, tensor)
    return handle


class _Hook:
    """A hook that the program put on a tensor, and may have taken away again."""

    def __init__(self, hook: Any, remove: Callable[[], None]) -> None:
        self.hook, self._remove, self.removed = hook, remove, False

    def remove(self) -> None:
        self.removed = True
        self._remove()

    def register(self, tensor: Tensor) -> Tensor:
        if tensor.requires_grad and not self.removed:
            tensor.register_hook(self.hook)
        return tensor


def _require_grad(kept: Kept, function: Any, tensor: Tensor, value: bool = True) -> Any:
    if isinstance(tensor, nn.Parameter) and tensor.requires_grad != value:
        raise NotKept("it switches requires_grad of a parameter; do so before it is called")
    changes = tensor.requires_grad != value
    result = function(tensor, value)
    if changes and _tracer() is not None:
        kept.stand_in(Tensor.requires_grad_, (tensor, value), {}, tensor)
    return result


def _refuse_torch_func() -> None:
    """Takes the place of what grad, vjp, jacrev and hessian of torch.func begin with."""
    raise NotKept(
        "it takes a gradient by torch.func; use torch.autograd.grad, or jvp and jacfwd of torch.func"
    )


def _gradient(kept: Kept, function: Any, *args: Any, **kwargs: Any) -> Any:
    if _tracer() is None:
        return function(*args, **kwargs)
    with _untraced():
        found = function(*args, **kwargs)
    kept.stand_in(function, args, kwargs, found)
    return found


def _backward(kept: Kept, function: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotKept("it calls backward() itself; return the loss instead, or use torch.autograd.grad")


def _data(kept: Kept, function: Any, tensor: Tensor) -> Tensor:
    return tensor.detach()


def _set_data(kept: Kept, function: Any, tensor: Tensor, value: Tensor) -> Any:
    raise NotKept("it assigns to .data; use copy_ under torch.no_grad")


def _watched(kept: Kept, function: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotKept("it registers a hook that runs after a gradient is accumulated; do so outside of the model")


def _grad_fn(kept: Kept, function: Any, tensor: Tensor) -> Any:
    found = function(tensor)
    return None if found is None else _WithoutHooks(found)


class _WithoutHooks:
    """A node of autograd's graph on which no hook can be put."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        if name in ("register_hook", "register_prehook"):
            raise NotKept("it puts a hook on a grad_fn; use Tensor.register_hook")
        return getattr(self._node, name)


_HANDLERS: Mapping[Any, Callable[..., Any]] = {
    Tensor.register_hook: _register_hook,
    Tensor.register_post_accumulate_grad_hook: _watched,
    Tensor.requires_grad_: _require_grad,
    Tensor.requires_grad.__set__: _require_grad,
    Tensor.grad_fn.__get__: _grad_fn,
    Tensor.data.__get__: _data,
    Tensor.data.__set__: _set_data,
    Tensor.backward: _backward,
    torch.autograd.backward: _backward,
    torch.autograd.grad: _gradient,
}


def _without_gradients(self: torch.inference_mode) -> None:
    """`inference_mode` is recorded as `no_grad`, which is equivalent for the values of the results."""
    self._before = torch.is_grad_enabled()
    if self.mode:
        torch.set_grad_enabled(False)


def _gradients_again(self: torch.inference_mode, *_: Any) -> None:
    torch.set_grad_enabled(self._before)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
