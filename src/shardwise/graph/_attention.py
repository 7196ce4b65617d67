"""Fused attention as one device-neutral pair of operators, `shardwise::attention` and its backward.

What torch dispatches `scaled_dot_product_attention` to depends on the device, so a graph captured on CPU tensors
would hold a CPU kernel. The pair here stands for all of them: softmax(q k^T * scale + mask) v, with the logarithm of
the softmax's denominator as second output, from which the backward recomputes the probabilities. Heads of key and
value may be shared by groups of query heads. Dropout is a function of a seed and of positions, so the pair is
deterministic. The exact kernel runs anywhere; on CUDA the pair runs what torch itself would for the call, where there
is such a kernel.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from ..calls import declare
from ..forms import uniform

_ARGUMENTS = "Tensor? mask, Tensor? seed, bool causal, float scale, float dropout"


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key, mask, causal, scale)
    logsumexp = scores.logsumexp(-1)
    weights = _weights(scores, logsumexp)
    if dropout:
        weights = weights * _kept(weights, seed, dropout)
    output = weights @ _shared(value, query).to(weights.dtype)
    return _by_position(output.to(query.dtype)), logsumexp


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    mask: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    weights = _weights(_scores(query, key, mask, causal, scale), logsumexp)
    grad = grad.to(weights.dtype)
    grad_weights = grad @ _shared(value, query).to(weights.dtype).mT
    used = weights
    if dropout:
        kept = _kept(weights, seed, dropout)
        used, grad_weights = weights * kept, grad_weights * kept
    row = (grad * output.to(grad.dtype)).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - row) * scale
    grad_query = grad_scores @ _shared(key, query).to(weights.dtype)
    grad_key = _summed(grad_scores.mT @ query.to(weights.dtype), key)
    grad_value = _summed(used.mT @ grad, value)
    return (
        _by_position(grad_query.to(query.dtype)),
        _by_position(grad_key.to(key.dtype)),
        _by_position(grad_value.to(value.dtype)),
    )


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    accumulate = logsumexp_dtype(query.dtype)
    scores = query.to(accumulate) @ _shared(key, query).to(accumulate).mT * scale
    if causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~ones.tril(), -torch.inf)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def _weights(scores: Tensor, logsumexp: Tensor) -> Tensor:
    """The softmax; zero where a query may attend to nothing."""
    weights = (scores - logsumexp.unsqueeze(-1)).exp()
    return weights.masked_fill(logsumexp.unsqueeze(-1) == -torch.inf, 0.0)


def _kept(weights: Tensor, seed: Tensor | None, dropout: float) -> Tensor:
    assert seed is not None, "attention with dropout needs a seed"
    return kept(weights.shape, seed, dropout).to(weights.dtype) / (1.0 - dropout)


def kept(shape: Sequence[int], seed: Tensor, dropout: float) -> Tensor:
    """Which weights of attention dropout keeps, for images, heads, queries and keys.

    The seed of a piece is followed by where its first query lies (image, head, position) and by how many there are in
    all: the result is that part of the mask of the whole.
    """
    first, *where = seed.reshape(-1).tolist()
    offsets, sizes = (where[:3], where[3:]) if where else ((0, 0, 0), shape[:3])
    runs = [[(start, start + size)] for start, size in zip((*offsets, 0), shape, strict=True)]
    draws = uniform(torch.tensor(first, device=seed.device), (*sizes, shape[3]), runs)
    return draws >= dropout


def _shared(keys: Tensor, query: Tensor) -> Tensor:
    return keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)


def _summed(grad: Tensor, keys: Tensor) -> Tensor:
    return grad.unflatten(1, (keys.shape[1], -1)).sum(2)


def _by_position(heads: Tensor) -> Tensor:
    """The same values, stored position by position as fused kernels do: putting the heads side by side is a view."""
    return heads.transpose(1, 2).contiguous().transpose(1, 2)


def logsumexp_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


attention = torch.library.custom_op(
    "shardwise::attention",
    _forward,
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, {_ARGUMENTS}) -> (Tensor, Tensor)",
)
attention_backward = torch.library.custom_op(
    "shardwise::attention_backward",
    _backward,
    mutates_args=(),
    schema=(
        "(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor output, Tensor logsumexp, "
        f"{_ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
    ),
)


def _forward_flops(query: Any, key: Any, value: Any, causal: bool, **_: Any) -> int:
    """Scores and output."""
    return 2 * _pairs(query, key, causal) * (query.shape[-1] + value.shape[-1])


def _backward_flops(query: Any, key: Any, value: Any, causal: bool, **_: Any) -> int:
    """Scores again, and the gradients of weights, query, key and value."""
    return 2 * _pairs(query, key, causal) * (3 * query.shape[-1] + 2 * value.shape[-1])


def _pairs(query: Any, key: Any, causal: bool) -> int:
    """How many pairs of a query and a key attend; where it is causal, query i sees keys 0..i."""
    batch, heads, queries, _ = query.shape
    keys = key.shape[-2]
    if not causal:
        return batch * heads * queries * keys
    square = min(queries, keys)
    return batch * heads * (square * (square + 1) // 2 + (queries - square) * keys)


def _backward_scratch(query: Any, key: Any, **_: Any) -> int:
    """Fused kernels sum in float32 what is returned in 16 bits."""
    if query.dtype.itemsize != 2:
        return 0
    batch, heads, positions, size = query.shape
    rows = batch * heads * (positions + -positions % 128)
    held = rows * (size + -size % 32 + 1) * 4
    if key.shape[1] != heads:  # gradients of shared keys and values, by query head
        held += 2 * batch * heads * key.shape[2] * size * 2
    return held


_FACTS = {"seeded": True, "dropout": "dropout", "heads": "query", "causal": "causal"}
declare(attention, kernel="attention", flops=_forward_flops, **_FACTS)
declare(
    attention_backward,
    kernel="attention_backward",
    flops=_backward_flops,
    scratch=_backward_scratch,
    **_FACTS,
)


_Kernel = tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor, Tensor]]]


def _cudnn(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    output, logsumexp, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        query, key, value, _bias(mask, query, key), True, 0.0, causal, scale=scale
    )
    return output, logsumexp.squeeze(-1)


def _cudnn_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    mask, causal, scale = rest
    # Torch looks up cuDNN's plan by the strides of query, key and value only, so the others need one fixed memory
    # layout.
    if sorted(range(4), key=query.stride().__getitem__) != [3, 1, 2, 0]:
        query = _by_position(query)
    saved = (grad, query, key, value, output, logsumexp.unsqueeze(-1))
    sizes = (None, None, query.shape[2], key.shape[2])
    unused = torch.empty((), dtype=torch.int64, device=query.device)
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        *saved, unused, unused, _bias(mask, query, key), *sizes, 0.0, causal, scale=scale
    )


def _bias(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """The mask as a bias that is added to the scores, with aligned rows."""
    if mask is None:
        return None
    keys, bias = key.shape[2], mask
    if mask.dtype == torch.bool or mask.shape[-1] != keys or mask.stride(-1) != 1 or not _is_aligned(mask):
        bias = query.new_zeros((*mask.shape[:-1], keys + -keys % 8))[..., :keys]
        bias = bias.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else bias.copy_(mask)
    return bias.expand(*query.shape[:3], keys)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, _mask: None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    output, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention.default(
        query, key, value, 0.0, causal, scale=scale
    )
    return output, logsumexp


def _flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _mask, causal, scale = rest
    saved = (grad, query, key, value, output, logsumexp)
    sizes = (None, None, query.shape[2], key.shape[2])
    unused = torch.empty(2, dtype=torch.uint64, device=query.device)
    return torch.ops.aten._scaled_dot_product_flash_attention_backward.default(
        *saved, *sizes, 0.0, causal, unused, unused, scale=scale
    )


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, _mask: None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    output, logsumexp, *_ = torch.ops.aten._scaled_dot_product_efficient_attention.default(
        query, key, value, None, True, 0.0, causal, scale=scale
    )
    return output, logsumexp[..., : query.shape[2]].contiguous()


def _efficient_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _mask, causal, scale = rest
    padded = torch.nn.functional.pad(logsumexp, (0, -query.shape[2] % 32), value=torch.inf)
    unused = torch.empty((), dtype=torch.int64, device=query.device)
    wanted = [True, True, True, False]
    *grads, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default(
        grad, query, key, value, None, output, padded, unused, unused, 0.0, wanted, causal, scale=scale
    )
    return tuple(grads)


# Their logsumexp outputs mean the same, so the backward of one may follow the forward of another.
_KERNELS: dict[SDPBackend, _Kernel] = {
    SDPBackend.CUDNN_ATTENTION: (_cudnn, _cudnn_backward),
    SDPBackend.FLASH_ATTENTION: (_flash, _flash_backward),
    SDPBackend.EFFICIENT_ATTENTION: (_efficient, _efficient_backward),
}


def _torchs_kernel(query: Tensor, key: Tensor, value: Tensor, rest: tuple[Any, ...]) -> _Kernel | None:
    """The kernel that torch itself selects for this call on CUDA, forward and backward; None for the exact kernel."""
    mask, _seed, causal, scale, dropout = rest
    if dropout or not (query.numel() and key.numel()):
        return None
    if mask is not None and (causal or mask.dtype not in (torch.bool, query.dtype)):
        return None
    grouped = query.shape[1] != key.shape[1]
    # Selected as in training, wherever the call is made: the kernel must have a backward for it.
    with torch.inference_mode(), torch.enable_grad():
        choice = torch.ops.aten._fused_sdp_choice.default(
            query.detach().requires_grad_(), key, value, mask, 0.0, causal, scale=scale, enable_gqa=grouped
        )
    backend = SDPBackend(choice)
    if backend == SDPBackend.FLASH_ATTENTION and query.shape[-1] % 8:
        return None  # torch would pad the heads
    if backend == SDPBackend.EFFICIENT_ATTENTION and (grouped or mask is not None):
        return None
    return _KERNELS.get(backend)


def _is_aligned(tensor: Tensor) -> bool:
    """Whether all rows begin at multiples of 16 bytes, which is how the kernels read them."""
    strides = [n for n, size in zip(tensor.stride()[:-1], tensor.shape, strict=False) if size > 1]
    return not any(start % 16 for start in (tensor.data_ptr(), *(n * tensor.element_size() for n in strides)))


def _aligned(tensor: Tensor) -> Tensor:
    return tensor if _is_aligned(tensor) else tensor.clone()


@attention.register_kernel("cuda")
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    kernel = _torchs_kernel(query, key, value, rest)
    if kernel is None:
        return _forward(query, key, value, *rest)
    mask, _seed, causal, scale, _dropout = rest
    output, logsumexp = kernel[0](*map(_aligned, (query, key, value)), mask, causal, scale)
    return _by_position(output), logsumexp


@attention_backward.register_kernel("cuda")
def _(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    kernel = _torchs_kernel(query, key, value, rest)
    if kernel is None:
        return _backward(grad, query, key, value, output, logsumexp, *rest)
    mask, _seed, causal, scale, _dropout = rest
    given = map(_aligned, (_by_position(grad), query, key, value, _by_position(output)))
    grads = kernel[1](*given, logsumexp.contiguous(), mask, causal, scale)
    return tuple(map(_by_position, grads))


def _empty(like: Tensor, head_size: int | None = None) -> Tensor:
    batch, heads, positions, size = like.shape
    return like.new_empty((batch, positions, heads, head_size or size)).transpose(1, 2)


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    lse = query.new_empty(query.shape[:3], dtype=logsumexp_dtype(query.dtype))
    return _empty(query, value.shape[-1]), lse


@attention_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(query), _empty(key), _empty(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, seed, *ctx.rest = inputs
    ctx.save_for_backward(query, key, value, *output, mask, seed)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grads = attention_backward(grad, *ctx.saved_tensors, *ctx.rest)
    return (*grads, None, None, None, None, None)


attention.register_autograd(_differentiate, setup_context=_save)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` through the pair, or through matrix products where no fused kernel applies."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    if query.dim() == key.dim() == value.dim() == 3:
        mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        query, key, value = (tensor.unsqueeze(1) for tensor in (query, key, value))
        return fused_attention(query, key, value, mask, dropout_p, is_causal, scale=scale).squeeze(1)
    if not _fits(query, key, value, attn_mask, enable_gqa):
        return torch.ops.aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    seed = None
    if dropout_p > 0:
        seed = torch.randint(2**31, (), device=query.device)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return attention(query, key, value, attn_mask, seed, is_causal, scale, dropout_p)[0]


def _fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, grouped: bool) -> bool:
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
        return False
    if query.shape[1] != key.shape[1] and not grouped:
        return False
    # No fused kernel computes the gradient of a mask (a learned position bias) on every device.
    return mask is None or not mask.requires_grad
