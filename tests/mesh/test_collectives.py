"""Collectives measured with nccl-tests become curves of a cluster."""

import pytest

from shardwise import Cluster, Mesh
from shardwise.errors import UsageError
from shardwise.mesh import Calibration, Timing, fit_collectives, fit_curve, read_nccl_tests

HEADER = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 536870912 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
LINE = "{size:>12} {count:>13}  bfloat16    none      -1 {time:>8.2f} {rate:>7.2f} {rate:>7.2f}      0"
LINE += " {time:>8.2f} 1.00 1.00 N/A\n"


def output(hosts, per_host, seconds):
    ranks = [
        f"#  Rank {host * per_host + gpu:>2} Group  0 Pid   4000 on  node-{host} device {gpu:>2} [0x07] NVIDIA H100"
        for host in range(hosts)
        for gpu in range(per_host)
    ]
    text = HEADER.format(ranks="\n".join(ranks))
    for exponent in range(10, 30):
        size = 2**exponent
        time = seconds(size) * 1e6
        text += LINE.format(size=size, count=size // 2, time=time, rate=size / time / 1e3)
    return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 120.5\n"


def law(size):
    return 1e-5 + size / 1e11 if size < 5e6 else 4e-5 + size / 3e11


def test_times_are_read_from_the_output_of_nccl_tests(tmp_path):
    path = tmp_path / "all_gather_8.txt"
    path.write_text(output(1, 8, law))
    with pytest.raises(
        UsageError, match=r"all_gather_8.txt: neither the text nor the file's name says which"
    ):
        read_nccl_tests(path)
    path = path.rename(tmp_path / "all_gather_perf.8.txt")
    found = read_nccl_tests(path)
    assert found[:4] == ("all_gather", 8, 8, "NVIDIA H100")
    assert [timing.size for timing in found.found] == [2**e for e in range(10, 30)]
    assert found.found[10].seconds == pytest.approx(law(2**20), rel=1e-3)
    assert found.found[0].itemsize == 2


def test_the_program_may_be_named_in_the_text(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("# Collective test starting: reduce_scatter_perf\n" + output(1, 4, law))
    assert read_nccl_tests(path).collective == "reduce_scatter"


def test_a_cluster_has_the_collectives_that_were_measured(tmp_path):
    inside, between = tmp_path / "all_gather_perf.txt", tmp_path / "all_reduce_perf.txt"
    inside.write_text(output(1, 8, law))
    between.write_text(output(2, 8, lambda size: 1e-4 + size / 5e10))
    made = fit_collectives([inside, between], Calibration(Cluster.preset("h100"), ()))
    cluster = made.cluster
    assert [fit.kind for fit in made.fits] == ["all_gather among 8", "all_reduce among 16"]
    assert max(fit.worst for fit in made.fits) < 0.03
    assert "all_reduce among 16: 20 sizes, error 0.0%" in str(made)
    for size in (2**12, 2**20, 2**24, 2**29):
        one = cluster.link(Mesh.parse("d=8"), "d").time("all_gather", size, 8)
        two = cluster.link(Mesh.parse("d=16"), "d").time("all_reduce", size, 16)
        assert one == pytest.approx(law(size), rel=0.03)
        assert two == pytest.approx(1e-4 + size / 5e10, rel=0.03)
    assert Cluster.from_json(cluster.to_json()) == cluster
    assert "all_gather_perf.txt, all_reduce_perf.txt" in cluster.origin
    before = Cluster.preset("h100").link(Mesh.parse("d=4"), "d")
    assert cluster.link(Mesh.parse("d=4"), "d").time("all_gather", 2**20, 4) == before.time(
        "all_gather", 2**20, 4
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("all_gather_perf\nnothing", "lists at least two ranks"),
        (
            "all_gather_perf\n" + HEADER.format(ranks="#  Rank  0 Group 0 Pid 1 on a device 0 [0x1] X"),
            "two ranks",
        ),
        ("all_gather_perf\n" + output(1, 8, law).partition("(GB/s)")[0], "at least two sizes"),
        ("all_gather_perf\n" + output(1, 8, law).replace("node-0 device  7", "node-1 device  7"), None),
    ],
)
def test_other_files_are_one_sentence(tmp_path, text, message):
    path = tmp_path / "log.txt"
    path.write_text(text)
    if message is None:
        assert read_nccl_tests(path).members == 4  # 8 ranks on two hosts, taken to be even
        return
    with pytest.raises(UsageError, match=message):
        read_nccl_tests(path)


def test_ranks_on_several_hosts_need_a_level_for_them(tmp_path):
    path = tmp_path / "all_gather_perf.txt"
    path.write_text(output(2, 2, law))
    with pytest.raises(UsageError, match="'laptop' has only one level of links"):
        fit_collectives([path], Calibration(Cluster.preset("laptop"), ()))


def test_a_curve_has_as_few_pieces_as_the_times_have():
    sizes = [2.0**e for e in range(10, 30)]
    one = fit_curve("all_gather", 8, [Timing(size, 1e-5 + size / 1e11) for size in sizes])
    assert len(one.pieces) == 1
    two = fit_curve("all_gather", 8, [Timing(size, law(size)) for size in sizes])
    assert len(two.pieces) == 2
    assert 2**22 < two.pieces[1].above < 2**23


def test_an_outlier_does_not_make_a_piece():
    sizes = [2.0**e for e in range(10, 30)]
    timings = [Timing(size, (3 if size == 2**20 else 1) * (1e-5 + size / 1e11)) for size in sizes]
    assert len(fit_curve("all_gather", 8, timings).pieces) == 1


def test_elements_of_one_byte_have_their_own_rate():
    sizes = [2.0**e for e in range(10, 30)]
    timings = [Timing(s, 1e-5 + s / 1e11) for s in sizes]
    timings += [Timing(s, 1e-5 + 1.3 * s / 1e11, 1) for s in sizes]
    curve = fit_curve("all_reduce", 8, timings)
    assert curve.narrow == pytest.approx(1.3, rel=0.05)
    assert fit_curve("all_reduce", 8, timings[:20]).narrow == 1
