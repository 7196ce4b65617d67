"""Calls of ATen overloads, recorded while torch's own samples run forward and backward.

Every OpInfo's samples run under a mode that sees each overload reach dispatch. Calls on lists of tensors come from a
database of their own; the library's own attention, which no OpInfo reaches, from a short list here.
"""

import functools
import itertools
from collections.abc import Collection, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from shardwise.graph import attention

from .calls import Call
from .lookup import known
from .pieces import on_grid

# Samples per OpInfo, of its first dtype and of one other; calls of one overload that one OpInfo may give; elements.
SAMPLES, OTHERS, EACH, LARGEST = 16, 6, 8, 4096
_DTYPES = (torch.float64, torch.complex128, torch.float32, torch.int64, torch.bool)


@functools.cache
def opinfos() -> dict[str, Any]:
    """torch's database of operators by name, those on lists among them."""
    from torch.testing._internal import common_methods_invocations as database

    kinds = ("unary", "binary", "pointwise", "reduce", "other")
    foreach = [info for kind in kinds for info in getattr(database, f"foreach_{kind}_op_db")]
    return {info.formatted_name: info for info in database.op_db} | {f"{i.name}": i for i in foreach}


class _Recorder(TorchDispatchMode):
    """Keeps a copy of every call of some operators before it runs."""

    def __init__(self, wanted: Collection[str]) -> None:
        super().__init__()
        self.wanted = wanted
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func) not in self.wanted:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if sum(t.numel() for t in tensors) <= LARGEST and all(map(_is_plain, tensors)):
            self.calls.append((func, *pytree.tree_map(_copied, (args, kwargs))))
        return func(*args, **kwargs)


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.dtype != torch.complex32
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
    )


def _copied(leaf: Any) -> Any:
    """Tensors apart from their graph and memory, on the grid; overlapping ones spread out."""
    return on_grid(leaf.detach().resolve_conj().resolve_neg()).clone() if isinstance(leaf, Tensor) else leaf


def recorded(name: str, seed: int) -> Iterator[Call]:
    """The calls that an OpInfo's samples make: up to a few of every overload."""
    info, random = opinfos()[name], Random(f"{seed} {name}")
    supported = info.supported_dtypes("cpu")
    usual = [d for d in _DTYPES if d in supported] or sorted(supported, key=str)[:1]
    counts: dict[str, int] = {}
    seen: set[str] = set()
    for place, dtype in enumerate(usual[:1] + random.sample(usual[1:], min(1, len(usual[1:])))):
        calls = list(_calls_of(info, dtype, OTHERS if place else SAMPLES, random))
        random.shuffle(calls)
        for func, args, kwargs in calls:
            call = Call.of(func, args, kwargs, name)
            if counts.get(call.name, 0) < EACH and str(call) not in seen:
                counts[call.name] = counts.get(call.name, 0) + 1
                seen.add(str(call))
                yield call


def _calls_of(info: Any, dtype: torch.dtype, count: int, random: Random) -> Iterator[tuple[Any, Any, Any]]:
    torch.manual_seed(random.getrandbits(60))
    samples = list(itertools.islice(_samples_of(info, dtype), 200))
    for sample in random.sample(samples, min(count, len(samples))):
        recorder = _Recorder(known())
        kwargs = {k: v for k, v in sample.kwargs.items() if k != "disable_fastpath"}
        try:
            with recorder:
                result = info.op(sample.input, *sample.args, **kwargs)
                _run_backward(result, (sample.input, sample.args, kwargs))
        except Exception:  # no gradient, or no kernel in this build of torch: what ran is kept
            pass
        yield from recorder.calls


def _samples_of(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    if info.name.startswith("_foreach"):
        for same_size in (True, False):
            yield from info.sample_inputs(
                "cpu", dtype, requires_grad=False, num_input_tensors=[3], size=6, same_size=same_size
            )
        return
    differentiable = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    yield from info.sample_inputs("cpu", dtype, requires_grad=differentiable)


def _run_backward(result: Any, inputs: Any) -> None:
    outputs = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    wanted = [t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.requires_grad]
    if outputs and wanted:
        torch.autograd.grad(outputs, wanted, [torch.randn_like(o) for o in outputs], allow_unused=True)


def attention_calls(seed: int) -> Iterator[Call]:
    """Attention, forward and backward: plain, causal, masked, with key heads that serve several query heads."""
    source, generator = "attention", torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return on_grid(torch.randn(shape, dtype=torch.float64, generator=generator))

    for heads, shared, causal, masked in itertools.product(
        (4, 6), (1, 2, None), (False, True), (False, True)
    ):
        query, key, value = (
            normal(2, heads, 5, 4),
            normal(2, shared or heads, 6, 4),
            normal(2, shared or heads, 6, 3),
        )
        if causal:
            key, value = key[:, :, :5].clone(), value[:, :, :5].clone()
        mask = torch.randn(1, heads, 5, key.shape[2], generator=generator) > -1 if masked else None
        rest = (mask, None, causal, 0.5, 0.0)
        yield Call.of(torch.ops.shardwise.attention.default, (query, key, value, *rest), {}, source)
        output, logsumexp = attention(query, key, value, *rest)
        saved = (normal(*output.shape), query, key, value, output, logsumexp, *rest)
        yield Call.of(torch.ops.shardwise.attention_backward.default, saved, {}, source)
