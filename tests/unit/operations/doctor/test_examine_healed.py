"""What others have changed in a Delta table and put back themselves is no change any more."""

from __future__ import annotations

import pytest

from state.delta.log.entries import Entry, healed_by_others

OWNER = "words/count"


def commit(version: int, text: str, *, own: bool = False) -> Entry:
    """`+a -b` adds the file a and removes b."""
    words = text.split()
    added, removed = (frozenset(word[1:] for word in words if word[0] == sign) for sign in "+-")
    return Entry(version, "WRITE", {OWNER: version} if own else {}, True, False, added, removed, None)


@pytest.mark.parametrize(
    ("commits", "healed"),
    [
        ([commit(1, "+b -a")], set()),
        ([commit(1, "+b -a"), commit(2, "+a -b")], {1, 2}),
        ([commit(1, "+b -a"), commit(2, "+c -b"), commit(3, "+a -c")], {1, 2, 3}),
        ([commit(1, "+b -a"), commit(2, "+d", own=True), commit(3, "+a -b")], set()),
        ([commit(1, "+b -a"), commit(2, "+a")], set()),
        # Deletion vectors: the same file, with fewer rows.
        ([commit(1, "+a -a")], set()),
        ([commit(1, "+b -a"), commit(2, "+a -b"), commit(3, "+e")], {1, 2}),
    ],
)
def test_commits_are_healed_when_all_files_are_there_again_and_no_other(commits: list[Entry], healed: set[int]) -> None:
    assert healed_by_others(commits, OWNER) == healed
