"""A vacuum that keeps nothing back, by somebody who has switched its check off, deletes files that are written and not
yet committed, of ours as of every writer. Whoever checks then names the file, and where to go back to; from there the
result is exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.rewinding import Kept, World, store_url
from transactional.core.ports.examining import Problem
from transactional.errors import StoreMismatch
from transactional.operations.doctor.examine import examine
from verifier import CheckedTable, Kind, verify

LENGTH = 8


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("deleted"), LENGTH)


@pytest.fixture
def world(kept: Kept, request: pytest.FixtureRequest) -> Iterator[World]:
    world = kept.world(request.param)
    with closing(world.store):
        yield world


def files(world: World) -> list[Path]:
    """Of the newest version of a table, oldest first."""
    return sorted(map(Path, DeltaTable(world.folder / "in-all").file_uris()), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("world", "place", "problem"),
    [
        ("merge", -1, Problem.TABLE_BEHIND),
        ("log", -1, Problem.TABLE_BEHIND),
        ("log", 0, Problem.FILE_MISSING),
        ("staged", 0, Problem.FILE_MISSING),
    ],
    indirect=["world"],
)
def test_what_is_deleted_is_named_and_made_again(world: World, place: int, problem: Problem) -> None:
    """The newest file, without which a start does not see that the table has its transaction; and an older one."""
    path = files(world)[place]
    path.unlink()
    [found] = [each for each in examine(world.topology(), world.store) if not each.is_harmless]
    assert (found.problem, found.component) == (problem, "in-all")
    assert path.name in found.what
    report = verify(store_url(world.folder), "rewound", [CheckedTable("in-all", str(world.folder / "in-all"))])
    [wrong] = report.findings
    assert (wrong.kind, path.name in wrong.where) == (Kind.FILE_MISSING, True)
    if problem is Problem.TABLE_BEHIND:
        with pytest.raises(StoreMismatch, match=f"in-all.*{path.name} that it adds does not exist"):
            world.run()
    offered = re.search(r"`transactional rewind … --to-txid (\d+)`", found.remedy)
    assert offered is not None
    world.back_to(int(offered[1]))
    assert world.contents() == world.expected(int(offered[1]))
    world.run()
    assert world.contents() == world.expected(LENGTH)
    assert world.findings() == []
