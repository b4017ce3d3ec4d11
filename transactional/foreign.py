"""Which Delta commits of a state's table are foreign: they change rows, and are not its topology's. The only rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from transactional.names import fold_of, repair_of


class LoggedCommit(Protocol):
    """One Delta commit, as recorded in a table's log."""

    @property
    def version(self) -> int:
        """Its Delta version."""

    @property
    def operation(self) -> str:
        """Its writer's name for it."""

    @property
    def app_versions(self) -> Mapping[str, int]:
        """The app transactions in it."""

    @property
    def changes_data(self) -> bool:
        """Whether it marks any file as changing rows: files that were only rewritten are no change."""


class MovingCommit(LoggedCommit, Protocol):
    """A Delta commit with the files that it moves."""

    @property
    def added(self) -> frozenset[str]:
        """The files that it adds."""

    @property
    def removed(self) -> frozenset[str]:
        """The files that it removes."""


AnyCommit = TypeVar("AnyCommit", bound=LoggedCommit)


def is_foreign(commit: LoggedCommit, owner: str) -> bool:
    """True for a Delta commit that changes rows and is not the topology's, nor a fold of a table in the log layout."""
    return commit.changes_data and owner not in commit.app_versions and fold_of(owner) not in commit.app_versions


def foreign_change(commits: Sequence[AnyCommit], owner: str) -> AnyCommit | None:
    """The first of these Delta commits, oldest first, that is foreign; None also when the last such one is a repair."""
    foreign = [commit for commit in commits if is_foreign(commit, owner)]
    return foreign[0] if foreign and repair_of(owner) not in foreign[-1].app_versions else None


def named(commit: LoggedCommit) -> str:
    """A Delta commit in words."""
    return f"Delta version {commit.version} ({commit.operation or 'unnamed'})"


def healed_by_others(commits: Sequence[MovingCommit], owner: str) -> set[int]:
    """The versions of foreign Delta commits after which a later one, not the topology's, has put all files back."""
    healed, open_since = set[int](), list[int]()
    # The files that there are by now and were not before the first of them, and the other way round.
    more, fewer = set[str](), set[str]()
    for commit in commits:
        if owner in commit.app_versions:
            open_since = []
        elif is_foreign(commit, owner):
            more, fewer = (more, fewer) if open_since else (set(), set())
            open_since.append(commit.version)
        if open_since:
            gone = commit.removed - commit.added
            more, fewer = (more - gone) | (commit.added - fewer), (fewer - commit.added) | (gone - more)
            if not more and not fewer:
                healed |= set(open_since)
                open_since = []
    return healed
