from shardwise.book import diff
from shardwise.rules import Book, Entry, Rule, write


def ruled(op, row):
    return Entry(
        op, "ruled", rule=Rule.from_yaml(f"op: {op}\nclauses: [{{rows: {row}}}]"), evidence={"calls": 1}
    )


def test_what_came_went_and_changed(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write(
        first, [ruled("aten.abs.default", "S(d) -> S(d)"), ruled("aten.neg.default", "S(d) -> S(d)")], "1", {}
    )
    write(
        second, [ruled("aten.neg.default", "P(sum) -> P(sum)"), Entry("aten.erf.default", "random")], "2", {}
    )
    assert str(diff(Book(first), Book(second))) == (
        "+ aten.erf.default\n- aten.abs.default\n~ aten.neg.default\n  - S(d) -> S(d)\n  + P(sum) -> P(sum)"
    )
    assert str(diff(Book(first), Book(first))) == "nothing differs"
