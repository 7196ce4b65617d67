"""Named layouts read as they are written, and say in one sentence what is wrong with them."""

import pytest

from shardwise import Mesh, UsageError
from shardwise.planning import NamedLayout
from shardwise.planning._named import mesh_of


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("dp=8", "dp=8"),
        ("fsdp=8", "fsdp=8,zero=3"),
        ("fsdp=8, zero=1", "fsdp=8,zero=1"),
        ("dp=8,zero=1,tp=2", "dp=8,tp=2,zero=1"),
        ("dp=2,fsdp=4,tp=2,sequence,reshard=no", "dp=2,fsdp=4,tp=2,zero=3,sequence,reshard=no"),
        ("fsdp=4,reshard,recompute=full,reduce=float32", "fsdp=4,zero=3,recompute=full,reduce=float32"),
        ("tp=2,sequence=yes,micro_batch=4", "tp=2,micro_batch=4,sequence"),
        ("tp=2,sequence=no", "tp=2"),
        ("tp=2,overlap,sequence", "tp=2,sequence,overlap"),
        ("dp=2,pp=4", "pp=4,dp=2"),
        ("pp=4,schedule=GPipe", "pp=4,schedule=GPipe"),
        ("pp=4,schedule=Interleaved1F1B", "pp=4,schedule=Interleaved1F1B,stages=2"),
        ("pp=4,schedule=LoopedBFS,stages=4", "pp=4,schedule=LoopedBFS,stages=4"),
        ("", "dp=1"),
    ],
)
def test_a_layout_is_written_shortly_and_reads_the_same(text, written):
    layout = NamedLayout.parse(text)
    assert str(layout) == written
    assert NamedLayout.parse(written) == layout


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cp=2", "unknown word 'cp': use pp, dp, fsdp, tp"),
        ("pp=0", "pp=0: it must be at least 1"),
        ("pp=2,stages=0", "stages=0: it must be at least 1"),
        ("dp=2,schedule=GPipe", "schedule=GPipe needs a pipeline: add pp=2 or more"),
        ("dp=2,stages=2", "stages=2 needs a pipeline: add pp=2 or more"),
        ("pp=2,schedule=2F2B", "unknown schedule '2F2B': use one of 1F1B, GPipe"),
        ("pp=2,schedule", "schedule needs a value, such as schedule=Interleaved1F1B"),
        ("pp=2,stages=2", "schedule=1F1B cannot have stages=2 on a rank: write stages=1"),
        (
            "pp=2,schedule=DualPipeV,stages=1",
            "schedule=DualPipeV cannot have stages=1 on a rank: write stages=2",
        ),
        ("dp=two", "dp=two is not a number: write dp=2"),
        ("dp", "dp needs a number"),
        ("dp=2,dp=4", "dp occurs twice"),
        ("dp=0", "dp=0: it must be at least 1"),
        ("fsdp=2,zero=4", "zero=4: it must be 0, 1, 2 or 3"),
        ("fsdp=2,zero=0", "write dp=2"),
        ("dp=2,sequence", "sequence needs tensor parallelism: add tp=2 or more"),
        ("dp=2,overlap", "overlap needs tensor parallelism: add tp=2 or more"),
        ("tp=2,sequence=maybe", "is not of the form sequence, sequence=yes or sequence=no"),
        ("fsdp=2,zero=1,reshard=no", "add zero=3"),
        ("recompute=all", "unknown recompute 'all': use one of none, selective"),
        ("recompute", "recompute needs a value, such as recompute=full"),
        ("reduce=int8", "unknown dtype of reduce 'int8'"),
    ],
)
def test_a_wrong_layout_is_refused_in_one_sentence(text, complaint):
    with pytest.raises(UsageError) as caught:
        NamedLayout.parse(text)
    assert complaint in str(caught.value) and str(caught.value).startswith(f"layout {text!r}: ")


def test_states_are_shared_by_fsdp_and_else_by_dp():
    hybrid, plain, stage = (NamedLayout.parse(t) for t in ("dp=2,fsdp=4", "dp=8", "dp=8,zero=2"))
    assert (hybrid.sharding_axis, hybrid.shards, hybrid.summing_axis) == ("fsdp", 4, "dp")
    assert (plain.sharding_axis, plain.shards, plain.summing_axis) == (None, 1, "dp")
    assert (stage.sharding_axis, stage.shards, stage.summing_axis) == ("dp", 8, None)


@pytest.mark.parametrize(
    ("mesh", "found"),
    [
        (None, "fsdp=4,tp=2"),
        ("tp=2,fsdp=4", "tp=2,fsdp=4"),
        ("x=4,y=2", "fsdp=4,tp=2"),
        ("fsdp=4,tp=2,pp=1", "fsdp=4,tp=2"),
    ],
)
def test_a_mesh_orders_the_axes_of_a_layout(mesh, found):
    layout = NamedLayout.parse("fsdp=4,tp=2")
    assert str(mesh_of(layout, None if mesh is None else Mesh.parse(mesh))) == found


def test_a_mesh_of_other_sizes_is_refused():
    with pytest.raises(
        UsageError, match="mesh dp=8 does not fit layout fsdp=4,tp=2,zero=3: give the mesh fsdp=4,tp=2"
    ):
        mesh_of(NamedLayout.parse("fsdp=4,tp=2"), Mesh.parse("dp=8"))
