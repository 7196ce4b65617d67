"""Random operators: ranks draw the numbers of their pieces, so results are shards of some draw, not of the same one.

One table: for each operator which tensors carry the dims of the result. Two pieces of a sum would be two draws, so no
partials pass.
"""

from collections.abc import Iterator

from ...calls import Call
from ...placements import Row, Shards, shard
from ._register import hand
from ._rows import aligned, row_of, sharded_dims

# Draws a result of the shape of its first tensor (and of others beside it, which broadcast).
_LIKE = (
    "_standard_gamma.default",
    "alpha_dropout.default",
    "dropout.default",
    "bernoulli.default",
    "bernoulli.p",
    "bernoulli.Tensor",
    "binomial.default",
    "cauchy.default",
    "exponential.default",
    "geometric.default",
    "log_normal.default",
    "normal_functional.default",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.Tensor_Tensor",
    "poisson.default",
    "rand_like.default",
    "rand_like.generator",
    "randint_like.default",
    "randint_like.generator",
    "randint_like.low_dtype",
    "randint_like.low_generator_dtype",
    "randint_like.Tensor",
    "randint_like.Tensor_generator",
    "randn_like.default",
    "randn_like.generator",
    "random.default",
    "random.from",
    "random.to",
    "rrelu_with_noise_functional.default",
    "uniform.default",
)
# Draws a result of a given size.
_SIZED = (
    "normal.float_float",
    "rand.default",
    "rand.generator",
    "randn.default",
    "randn.generator",
    "randint.default",
    "randint.generator",
    "randint.low",
    "randint.low_generator",
)


@hand(*(f"aten.{name}" for name in _LIKE))
def like(call: Call) -> Iterator[Row]:
    yield from _drawn(call, "any")


@hand("aten.native_dropout.default", "aten._fused_dropout.default")
def dropout(call: Call) -> Iterator[Row]:
    """Of an empty piece the kernel gives a mask that is no mask: one of floats."""
    yield from _drawn(call, "nonempty")


def _drawn(call: Call, shards: Shards) -> Iterator[Row]:
    for dim in sharded_dims(call.output):
        placed = {
            name: shard(own)
            for name in call.tensor_names
            if (own := aligned(call.shape(name), dim, len(call.output))) is not None
        }
        yield row_of(call, placed, shard(dim), shards)


@hand(*(f"aten.{name}" for name in _SIZED))
def sized(call: Call) -> Iterator[Row]:
    for dim in sharded_dims(call.output):
        yield row_of(call, {}, shard(dim), local="sizes")


@hand("aten.multinomial.default")
def multinomial(call: Call) -> Iterator[Row]:
    """Each row of probabilities is drawn from alone."""
    if len(call.shape("self")) == 2 and call.shape("self")[0] > 1:
        yield row_of(call, {"self": shard(0)}, shard(0))
