"""Which log files of a Delta table may go."""

from __future__ import annotations

import pytest

from state.delta.log.log import list_surplus_files

OLD_S, NOW_S = 0.0, 1_000.0


def log(commits: range, checkpoints: list[int], young_from: int = 10_000) -> dict[str, float]:
    """A log's files, by path, with the time of writing: those from a version on are young."""
    names = [(version, f"_delta_log/{version:020}.json") for version in commits]
    names += [(version, f"_delta_log/{version:020}.checkpoint.parquet") for version in checkpoints]
    return {path: NOW_S if version >= young_from else OLD_S for version, path in names}


def left(files: dict[str, float], kept: int, until_s: float = 500.0) -> list[int]:
    """The versions that stay."""
    gone = list_surplus_files(files, kept, until_s)
    assert gone == sorted(gone)
    assert set(gone) <= set(files)
    return sorted({int(path[11:31]) for path in files if path not in gone})


@pytest.mark.parametrize(
    ("kept", "first"), [(100, 200), (101, 100), (200, 100), (250, 0), (1_000, 0), (50, 200), (0, 300), (1, 200)]
)
def test_stays_what_is_needed_for_so_many_delta_commits(kept: int, first: int) -> None:
    assert left(log(range(301), [100, 200, 300]), kept) == list(range(first, 301))


def test_what_is_young_stays_and_so_does_the_checkpoint_before_it() -> None:
    assert left(log(range(301), [100, 200, 300], young_from=150), 1)[0] == 100
    assert left(log(range(301), [100, 200, 300], young_from=200), 1)[0] == 200


def test_a_checkpoint_of_several_parts_is_none_since_one_of_them_may_be_missing() -> None:
    files = log(range(301), [100])
    files["_delta_log/00000000000000000200.checkpoint.0000000001.0000000002.parquet"] = OLD_S
    assert left(files, 10)[0] == 100


def test_what_is_no_version_stays() -> None:
    files = {**log(range(301), [300]), "_delta_log/_last_checkpoint": OLD_S, "_delta_log/_commit_x.json.tmp": OLD_S}
    assert set(list_surplus_files(files, 0, 500.0)) == set(log(range(300), []))
    assert list_surplus_files({}, 1, 500.0) == []
