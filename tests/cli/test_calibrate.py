"""`shardwise calibrate` writes a cluster that `--cluster` reads."""

import json

from shardwise import Cluster, Mesh

RANK = "#  Rank  {rank} Group  0 Pid   4000 on  node-0 device  {rank} [0x07] NVIDIA H100\n"
LINE = "{size:>12} {count:>13}  bfloat16    none      -1 {time:>8.2f} 1.00 1.00      0 {time:>8.2f} 1.00 1.00 N/A\n"


def test_collectives_measured_with_nccl_tests_become_a_cluster(shardwise, tmp_path):
    measured, made = tmp_path / "all_gather_perf.txt", tmp_path / "mine.json"
    text = "".join(RANK.format(rank=rank) for rank in range(4))
    text += "".join(LINE.format(size=2**e, count=2 ** (e - 1), time=50 + 2**e / 1e5) for e in range(10, 30))
    measured.write_text(text)
    status, out, err = shardwise("calibrate", "--links", "h100", "--nccl", str(measured), "--out", str(made))
    assert (status, err) == (0, "")
    assert "all_gather among 4: 20 sizes, error 0.0%" in out
    mine, h100 = Cluster.of(made), Cluster.preset("h100")
    assert mine.device == h100.device
    assert abs(mine.link(Mesh.parse("d=4"), "d").time("all_gather", 1e6, 4) - 60e-6) < 1e-6
    assert "all_gather_perf.txt" in mine.origin
    _, out, _ = shardwise("calibrate", "--links", "h100", "--nccl", str(measured), "--json")
    assert Cluster.from_json(json.loads(out)["cluster"]) == mine


def test_a_file_of_something_else_is_one_sentence(shardwise, tmp_path):
    (tmp_path / "all_gather.txt").write_text("hello")
    status, _, err = shardwise("calibrate", "--links", "h100", "--nccl", str(tmp_path / "all_gather.txt"))
    assert status == 2
    assert "all_gather.txt: expected the output of nccl-tests" in err
