"""The book, checked by plain torch on torch's samples and on calls with arguments changed at random."""

import pytest
import torch

from shardwise.rules import Entry, Rule, book, write
from tests.independent.__main__ import summary
from tests.independent.lookup import known, use_book
from tests.independent.running import Result, check_book

# A few of every kind: reductions, products, windows, indexing, views, losses, norms, attention.
SAMPLE = (
    *("addmm", "baddbmm", "mv", "cat", "gather", "index_select", "scatter_add", "tril", "view", "expand"),
    *("softmax", "mean", "logsumexp", "sub", "where", "nn_functional_layer_norm", "nn_functional_nll_loss"),
    *("nn_functional_conv1d", "nn_functional_avg_pool2d", "nn_functional_embedding", "nn_functional_gelu"),
)
# Calls of the whole check: 1,000,000 checks take so many changed calls of every overload.
CHANGES = 110


def assert_holds(result: Result) -> None:
    assert not (result.refuted or result.crashed or result.failed), summary(result, 0)


def test_a_sample_of_the_book_holds():
    result = check_book(seed=1, changes=4, names=SAMPLE)
    assert_holds(result)
    assert result.checks > 10_000 and len(result.names) >= len(SAMPLE), summary(result, 0)


@pytest.fixture
def wrong_book(tmp_path, monkeypatch):
    """A book of one rule, which forgets that the dims of a norm may not be kept."""
    text = "op: aten.linalg_vector_norm.default\nclauses: [{rows: S(d) -> S(d) when d not in dim}]"
    rule = Rule.from_yaml(text)
    running = torch.__version__.partition("+")[0]
    write(tmp_path, [Entry(rule.op, "ruled", rule=rule, evidence={"calls": 1})], running, {})
    monkeypatch.setenv("SHARDWISE_BOOK", "")
    use_book(tmp_path)
    yield
    monkeypatch.undo()
    book.cache_clear()
    known.cache_clear()


def test_a_wrong_rule_is_refuted(wrong_book):
    result = check_book(seed=1, changes=20, names=["linalg_vector_norm"])
    assert list(result.refuted) == [("aten.linalg_vector_norm.default", "S(d) -> S(d) when d not in dim")]
    assert "linalg_vector_norm" in summary(result, 0)


@pytest.mark.long
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_book_holds(seed):
    result = check_book(seed, jobs=2, changes=CHANGES)
    print(summary(result, 0))
    assert result.checks >= 1_000_000 and len(result.names) >= 650
    assert_holds(result)
