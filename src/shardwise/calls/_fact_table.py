"""What schemas and tags do not say about torch's own operators: one statement per fact."""

from typing import Any

from ._dtypes import gradient_like_input, norms_of_half, statistics_like_weight
from ._guards import (
    attention_shapes_fit,
    batches_fit,
    channels_fit,
    does_not_grow,
    mask_is_bool,
    scales_fit,
    statistics_fit,
    tolerances_are_numbers,
    windows_fit,
)


def _of(*ops: str, **known: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return ops, known


# Names without an overload stand for all overloads.
TABLE = (
    # -- what they are
    _of("aten.detach", "aten.alias", "aten.lift_fresh", identity=True),
    _of("aten.t", involution=True),
    _of("aten._to_copy", cast=True),
    # The schema shows no view, since torch forbids writing through it.
    _of("aten._unsafe_view", view=True),
    _of("aten.view.default", "aten._unsafe_view", "aten.expand", "aten.slice.Tensor", shape_only=True),
    _of("aten.view.default", "aten._unsafe_view", any_strides="aten.reshape.default"),
    _of(
        "aten.view",
        "aten.reshape",
        "aten._unsafe_view",
        "aten._reshape_alias",
        "aten.view_copy",
        "aten.flatten",
        "aten.unflatten",
        reshape=True,
    ),
    _of("aten.as_strided", "aten.as_strided_copy", "aten.as_strided_scatter", by_strides=True),
    # Found by running every operator that torch's samples reach on inputs of equal values and different strides: see
    # tests/verification/test_strides.py.
    _of(
        # Forward and backward go by whether the matrix is stored by rows or by columns.
        "aten._linalg_det",
        "aten._linalg_slogdet",
        # Gradient and input are read as if both had the same strides, weights as if they were contiguous.
        "aten.native_group_norm",
        "aten.native_group_norm_backward",
        "aten.native_layer_norm_backward",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
        # Indices are read as if they were contiguous.
        "aten._embedding_bag",
        "aten._embedding_bag_backward",
        "aten._embedding_bag_forward_only",
        "aten._embedding_bag_per_sample_weights_backward",
        "aten.adaptive_max_pool3d_backward",
        "aten.fractional_max_pool2d_backward",
        "aten.fractional_max_pool3d_backward",
        # Refuse what is not contiguous, or has no contiguous last dim.
        "aten._linalg_check_errors",
        "aten._pdist_backward",
        "aten._pdist_forward",
        "aten.nll_loss2d_backward",
        "aten.view_as_complex",
        stride_dependent=True,
    ),
    # Beside those with torch's tag.
    _of(
        "aten._to_copy",
        "aten.copy",
        "aten.contiguous",
        "aten.to.dtype",
        "aten.to.dtype_layout",
        "aten.__and__.Tensor",
        "aten.__or__.Tensor",
        elementwise=True,
    ),
    _of(
        "aten.embedding.default",
        "aten.index.Tensor",
        "aten.index_select.default",
        "aten.gather.default",
        "aten._embedding_bag.default",
        "aten._embedding_bag_forward_only.default",
        lookup=True,
    ),
    _of("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu", recurrent=True),
    _of("aten.index", "aten._unsafe_index", indexing=True),
    # Torch counts it among those that give a tensor another shape in place.
    _of("aten.detach_", reshapes_in_place=False),
    _of("_c10d_functional.all_gather_into_tensor", collective="all_gather"),
    _of("_c10d_functional.reduce_scatter_tensor", collective="reduce_scatter"),
    _of("_c10d_functional.all_reduce", "_c10d_functional.all_reduce_", collective="all_reduce"),
    _of("_c10d_functional.all_to_all_single", "_dtensor.shard_dim_alltoall", collective="all_to_all"),
    _of("_c10d_functional.broadcast", "_c10d_functional.broadcast_", collective="broadcast"),
    # -- their values
    _of(
        "aten.empty",
        "aten.empty_like",
        "aten.new_empty",
        "aten.empty_strided",
        "aten.new_empty_strided",
        "aten.empty_permuted",
        "prims.empty",
        "prims.empty_strided",
        "prims.empty_permuted",
        uninitialised=True,
    ),
    _of("aten.nextafter", "aten.nextafter_", "prims.nextafter", exact=True),
    _of("aten.native_dropout.default", draws="dropout"),
    _of("aten.bernoulli.default", "aten.bernoulli.p", "aten.bernoulli_.float", draws="bernoulli"),
    _of("aten.rand.default", "aten.rand_like.default", draws="rand"),
    _of("aten.randn.default", "aten.randn_like.default", draws="randn"),
    _of("aten.uniform.default", draws="uniform"),
    _of("aten.normal_functional.default", draws="normal"),
    _of("aten.exponential.default", draws="exponential"),
    _of("aten.randint.default", "aten.randint.low", draws="randint"),
    _of("aten.randint_like.default", "aten.randint_like.low_dtype", draws="randint"),
    # -- their kernels
    # Each element of their results depends on many of their inputs, though as many come out: torch tags none of them.
    _of(
        "aten._softmax",
        "aten._softmax_backward_data",
        "aten._log_softmax",
        "aten._log_softmax_backward_data",
        "aten._safe_softmax",
        "aten._masked_softmax",
        "aten._masked_softmax_backward",
        "aten.native_layer_norm",
        "aten.native_layer_norm_backward",
        "aten.native_group_norm",
        "aten.native_group_norm_backward",
        "aten._fused_rms_norm",
        "aten._fused_rms_norm_backward",
        "aten.native_batch_norm",
        "aten.native_batch_norm_backward",
        "aten._native_batch_norm_legit",
        "aten._native_batch_norm_legit_functional",
        "aten._native_batch_norm_legit_no_training",
        "aten._batch_norm_no_update",
        "aten._batch_norm_with_update",
        "aten._batch_norm_with_update_functional",
        "aten.batch_norm_backward",
        "aten.batch_norm_backward_elemt",
        "aten.batch_norm_backward_reduce",
        "aten.batch_norm_elemt",
        "aten.batch_norm_gather_stats",
        "aten.batch_norm_gather_stats_with_counts",
        "aten.batch_norm_stats",
        "aten.batch_norm_update_stats",
        "aten.cudnn_batch_norm",
        "aten.cudnn_batch_norm_backward",
        "aten.miopen_batch_norm",
        "aten.miopen_batch_norm_backward",
        "aten._weight_norm_interface",
        "aten._weight_norm_interface_backward",
        "aten.native_norm",
        "aten._foreach_norm",
        "aten.var_mean",
        "aten.cumsum",
        "aten.logcumsumexp",
        "aten._logcumsumexp",
        kernel="reduction",
    ),
    # In mixed precision, as autocast runs them: the input in bfloat16, the parameters in float32.
    _of("aten.native_layer_norm", "aten.native_group_norm", dtypes=statistics_like_weight),
    _of("aten.native_group_norm_backward", dtypes=gradient_like_input),
    _of("aten._weight_norm_interface", dtypes=norms_of_half),
    # On shapes that do not fit, these crash: see `_guards`.
    _of("aten._scaled_dot_product_flash_attention_for_cpu", guard=attention_shapes_fit),
    _of(
        "aten.native_batch_norm",
        "aten.native_batch_norm_backward",
        "aten._native_batch_norm_legit",
        "aten._native_batch_norm_legit_functional",
        "aten._native_batch_norm_legit_no_training",
        guard=channels_fit,
    ),
    _of("aten.convolution_backward", guard=windows_fit),
    _of("aten.native_layer_norm_backward", guard=statistics_fit),
    _of("aten._adaptive_avg_pool2d_backward", guard=batches_fit),
    _of("aten.native_dropout_backward", guard=mask_is_bool),
    _of("aten.resize_", "aten.resize_as_", guard=does_not_grow),
    _of("aten.linalg_pinv", guard=tolerances_are_numbers),
    _of(
        "aten._upsample_bilinear2d_aa.default",
        "aten._upsample_bilinear2d_aa.out",
        "aten._upsample_bilinear2d_aa_backward",
        "aten._upsample_bicubic2d_aa.default",
        "aten._upsample_bicubic2d_aa.out",
        "aten._upsample_bicubic2d_aa_backward",
        guard=scales_fit,
    ),
)
