"""What is malformed is refused, with the place of the fault."""

import copy
import gzip
import json

import pytest

from shardwise.errors import UsageError
from shardwise.solver import FORBIDDEN, Problem, read_problem

GOOD = {
    "problem": {
        "name": "two",
        "nodes": {"intervals": [[0, 2], [1, 1]], "costs": [[1, 2], [3]], "usages": [[4, 5], [6]]},
        "edges": {"nodes": [[0, 1]], "costs": [[7, 8]]},
        "usage_limit": 9,
    }
}


def _with(path, value):
    document = copy.deepcopy(GOOD)
    holder = document["problem"]
    *parents, last = path
    for key in parents:
        holder = holder[key]
    holder[last] = value
    return document


def test_a_problem_survives_json():
    problem = Problem.from_json(GOOD)
    assert problem.to_json() == GOOD
    assert Problem.from_json(problem.to_json()).to_json() == GOOD


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("nodes", "costs"), [[1, 2], []], r"nodes\.costs\[1\] is empty"),
        (("nodes", "costs"), [[1, 2, 3], [3]], r"nodes\.usages\[0\] has 2 entries"),
        (("nodes", "costs"), [[1, float("nan")], [3]], r"nodes\.costs\[0\]\[1\] is nan"),
        (("nodes", "costs"), [[1, 2.5], [3]], r"nodes\.costs\[0\]\[1\] is 2\.5"),
        (("nodes", "costs"), [[1, "2"], [3]], r"nodes\.costs\[0\]\[1\] is '2'"),
        (("nodes", "costs"), [[1, True], [3]], r"nodes\.costs\[0\]\[1\] is True"),
        (("nodes", "costs"), [[1, None], [3]], r"nodes\.costs\[0\]\[1\] is None"),
        (("nodes", "costs"), [7, [3]], r"nodes\.costs\[0\] is 7"),
        (("nodes", "costs"), [[1, 2], [-(10**18)]], r"nodes\.costs\[1\]\[0\]"),
        (("nodes", "usages"), [[4, 5]], r"nodes\.usages has 1 entries but nodes\.costs has 2"),
        (("nodes", "usages"), [[4, 5], [-1]], r"nodes\.usages\[1\]\[0\] is -1"),
        (("nodes", "usages"), [[4, float("inf")], [6]], r"nodes\.usages\[0\]\[1\] is inf"),
        (("nodes", "intervals"), [[0, 2], [5, 3]], r"nodes\.intervals\[1\] is \[5, 3\]: it ends before"),
        (("nodes", "intervals"), [[0, 2], [1]], r"nodes\.intervals\[1\] is \[1\]"),
        (("nodes", "intervals"), [[0, 2]], r"nodes\.intervals has 1 entries"),
        (("edges", "nodes"), [[0, 2]], r"edges\.nodes\[0\] has node 2: the nodes are 0 to 1"),
        (("edges", "nodes"), [[-1, 1]], r"edges\.nodes\[0\] has node -1"),
        (("edges", "nodes"), [[0, 1, 1]], r"edges\.nodes\[0\] is \[0, 1, 1\]"),
        (("edges", "nodes"), [[0, 1], [1, 0]], r"edges\.costs has 1 entries but edges\.nodes has 2"),
        (("edges", "costs"), [[7, 8, 9]], r"edges\.costs\[0\] has 3 entries: .* so the table must have 2"),
        (("edges", "costs"), [[7, float("nan")]], r"edges\.costs\[0\]\[1\] is nan"),
        (("usage_limit",), -1, "usage_limit: expected a whole number, at least 0, found -1"),
        (("usage_limit",), 1.5, r"usage_limit: expected a whole number, at least 0, found 1\.5"),
        (("nodes",), [], "problem.nodes: expected an object, found a list of 0"),
        (("name",), 3, "problem.name: expected text, found 3"),
    ],
)
def test_the_place_of_a_fault_is_named(path, value, place):
    with pytest.raises(UsageError, match=place):
        Problem.from_json(_with(path, value))


def test_a_missing_part_is_named():
    document = copy.deepcopy(GOOD)
    del document["problem"]["edges"]["costs"]
    with pytest.raises(UsageError, match="edges: expected the field 'costs'"):
        Problem.from_json(document)
    with pytest.raises(UsageError, match="expected an object, found a list of 0"):
        Problem.from_json([])


def test_huge_and_infinite_costs_forbid():
    problem = Problem.from_json(_with(("edges", "costs"), [[10**30, float("inf")]]))
    assert problem.tables.tolist() == [FORBIDDEN, FORBIDDEN]


def test_files_plain_and_compressed(tmp_path):
    plain, compressed = tmp_path / "p.json", tmp_path / "p.json.gz"
    plain.write_text(json.dumps(GOOD))
    compressed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_problem(plain).to_json() == read_problem(compressed).to_json() == GOOD


@pytest.mark.parametrize("content", [b"{", b"\x1f\x8b broken", b'{"problem": {}}', b"\xff\xfe"])
def test_a_broken_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"broken\.json"):
        read_problem(path)


def test_a_missing_file_is_refused():
    with pytest.raises(UsageError, match=r"nowhere\.json cannot be read"):
        read_problem("nowhere.json")
