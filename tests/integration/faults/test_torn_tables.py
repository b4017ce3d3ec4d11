"""Tables whose newest files a power cut has torn: they open as they were one transaction before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from state import DeltaMapState
from state.delta.log.torn import find_torn_files
from state.delta.segments.log_layout import LogLayout
from state.delta.write.change import REWRITTEN_ROWS_MAX
from tests.contract.states import OWNER, Place, content, counts

LAYOUTS: dict[str, str | LogLayout] = {"small": "merge", "large": "merge", "log": LogLayout(compact_after=100)}
Tear = Callable[[Path], object]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(folder: Path, layout: str, place: Place) -> DeltaMapState:
    words = DeltaMapState(folder, "word string", "count long", layout=LAYOUTS[layout])
    words.parts.durability.set_aside_torn(OWNER, lambda torn: None)
    words.open(OWNER, place.txids.__getitem__)
    return words


def table(place: Place, layout: str, transactions: int = 3) -> Path:
    folder = place.folder / layout
    words = opened(folder, layout, place)
    if layout == "large":
        words.merge(place.attempt(1, 1), counts({f"w{n}": 0 for n in range(REWRITTEN_ROWS_MAX + 1)}))
    for n in range(1 + (layout == "large"), transactions + 1):
        words.merge(place.attempt(n, n), counts({"a": 1}))
    words.close()
    return folder


def log_file(folder: Path, version: int, suffix: str = ".json") -> Path:
    return folder / "_delta_log" / f"{version:020}{suffix}"


def value_of_a(words: DeltaMapState, place: Place) -> object:
    return words.get(place.attempt(9, 9), [("a",)]).get(("a",))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_entry_that_is_cut_short_anywhere_is_as_if_never_written(place: Place, layout: str) -> None:
    whole = table(place, layout)
    version = DeltaTable(whole).version()
    entry = log_file(whole, version).read_bytes()
    ends = [at for at, byte in enumerate(entry) if byte == ord("\n")]
    # Where a line ends, what is left can be read.
    lengths = {0, 1, *(end + by for end in ends for by in (-1, 0, 1)), *range(0, len(entry), 97), len(entry) - 1}
    for length in sorted(lengths):
        torn = place.folder / "torn" / str(length)
        shutil.copytree(whole, torn)
        log_file(torn, version).write_bytes(entry[:length])
        words = opened(torn, layout, place)
        assert (words.version(), DeltaTable(torn).version()) == (2, version - 1), length
        words.merge(place.attempt(3, 4), counts({"a": 1}))
        assert content(words)["a"] == 3 - (layout == "large")
        shutil.rmtree(torn)


def test_who_does_not_lead_yet_can_ask_whether_tasks_are_to_write_into_it(place: Place) -> None:
    """Before the lease is taken nobody mends a log; a topology that is about to start must not end there."""
    whole = table(place, "small")
    entry = log_file(whole, DeltaTable(whole).version())
    entry.write_bytes(entry.read_bytes()[:100])
    words = DeltaMapState(whole, "word string", "count long")
    assert words.parts.staging.stager(OWNER) is None
    assert entry.exists()
    assert opened(whole, "small", place).version() == 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("left", [None, b"", b"PAR1", "half", "zeros"])
def test_an_entry_whose_file_is_torn_is_as_if_never_written(
    place: Place, layout: str, left: bytes | str | None
) -> None:
    folder = table(place, layout)
    version = DeltaTable(folder).version()
    before = set(DeltaTable(folder, version=version - 1).file_uris())
    [added] = {*DeltaTable(folder).file_uris()} - before
    path = Path(added)
    if left is None:
        path.unlink()
    elif left == "zeros":
        path.write_bytes(path.read_bytes()[:20].ljust(path.stat().st_size, b"\0"))
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if isinstance(left, str) else left)
    words = opened(folder, layout, place)
    assert words.version() == 2
    words.merge(place.attempt(3, 4), counts({"a": 1}))
    assert content(words)["a"] == 3 - (layout == "large")


def cut_checkpoint(folder: Path) -> None:
    path = log_file(folder, DeltaTable(folder).version(), ".checkpoint.parquet")
    path.write_bytes(path.read_bytes()[:1000])


def lose_entry_below_checkpoint(folder: Path) -> None:
    log_file(folder, DeltaTable(folder).version()).unlink()


def tear_hint(folder: Path) -> None:
    (folder / "_delta_log" / "_last_checkpoint").write_bytes(b'{"ver')


def lose_checkpoint(folder: Path) -> None:
    log_file(folder, DeltaTable(folder).version(), ".checkpoint.parquet").unlink()


@pytest.mark.parametrize(
    ("tear", "version"), [(cut_checkpoint, 3), (lose_entry_below_checkpoint, 2), (tear_hint, 3), (lose_checkpoint, 3)]
)
@pytest.mark.parametrize("layout", ["small", "log"])
def test_a_torn_checkpoint_or_its_hint_keeps_nobody_out(place: Place, layout: str, tear: Tear, version: int) -> None:
    folder = table(place, layout)
    DeltaTable(folder).create_checkpoint()
    tear(folder)
    words = opened(folder, layout, place)
    assert words.version() == version
    words.merge(place.attempt(version + 1, 4), counts({"a": 1}))
    assert content(words) == {"a": version + 1}
    assert DeltaTable(folder).transaction_version(OWNER) == 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_whole_stays(place: Place, layout: str) -> None:
    folder = table(place, layout)
    DeltaTable(folder).create_checkpoint()
    assert find_torn_files(folder) == []
    DeltaTable(folder).optimize.compact()
    DeltaTable(folder).delete("word = 'b'")
    DeltaTable(folder).alter.set_table_properties({"delta.appendOnly": "false"})
    assert find_torn_files(folder) == [], "entries of others end as they like"


def test_what_would_leave_no_table_is_left_alone(place: Place) -> None:
    folder = table(place, "small")
    DeltaTable(folder).create_checkpoint()
    cut_checkpoint(folder)
    log_file(folder, 1).unlink()
    assert find_torn_files(folder) == []


def test_a_table_whose_creation_is_torn_is_created_anew(place: Place) -> None:
    folder = table(place, "small")
    for path in (folder / "_delta_log").iterdir():
        if path != log_file(folder, 0):
            path.unlink()
    entry = log_file(folder, 0).read_bytes()
    for length in (0, 10, entry.index(b"\n"), entry.index(b"\n") + 1):
        log_file(folder, 0).write_bytes(entry[:length])
        words = opened(folder, "small", place)
        assert words.version() is None
        assert words.read().num_rows == 0
    assert pa.schema(DeltaTable(folder).schema()).names[0] == "word"
