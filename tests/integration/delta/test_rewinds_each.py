"""A topology is taken back to each transaction of a run of thirty, and goes on: as if it had never gone further.

Here each transaction in one layout and with one kind of tables; in `make proof` each of sixty in all of them.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.rewinding import LAYOUTS, Kept, World
from tests.rewinding_windows import WindowsWorld, changes, never_further

pytestmark = pytest.mark.long("tests/integration/delta/test_rewinds.py")

CASES = [(kind, layout) for kind in (World, WindowsWorld) for layout in LAYOUTS]
NAMES = [f"{'windows' if kind is WindowsWorld else 'words'}-{layout}" for kind, layout in CASES]
LENGTH, SHORT = 30, 12
ON = 3
"""So many transactions further it goes each time; at last to the end."""


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> dict[type[World], Kept]:
    """Folders in which the run has ended, one for each layout that was asked for."""
    return {kind: Kept(tmp_path_factory.mktemp(kind.__name__), LENGTH) for kind in (World, WindowsWorld)}


@pytest.mark.sampled(len(CASES))
@pytest.mark.parametrize("case", range(len(CASES)), ids=NAMES)
def test_back_to_each_transaction_and_on(thirty: dict[type[World], Kept], case: int) -> None:
    """Each from where the one before went on to, so these are rewinds of rewinds, too."""
    kind, layout = CASES[case]
    world = thirty[kind].world(layout, kind)
    with closing(world.store):
        for txid in reversed(range(case, LENGTH + 1, len(CASES))):
            world.back_to(txid)
            assert world.contents() == world.expected(txid), f"back at {txid}"
            until = min(txid + ON, LENGTH)
            if until > txid:
                world.run(transactions=until)
            assert world.contents() == world.expected(until), f"on from {txid}"
        assert world.findings() == []
        world.run()
        assert world.contents() == world.expected(LENGTH)
        assert world.findings() == []


def test_back_and_forth(tmp_path: Path) -> None:
    """Back to what was before an earlier rewind, and to what came after it."""
    world = Kept(tmp_path, SHORT).world("log", WindowsWorld)
    with closing(world.store):
        for back, on in ((10, 11), (6, 6), (5, 10), (9, SHORT), (0, 3), (1, SHORT)):
            world.back_to(back)
            assert world.contents() == world.expected(back), f"back at {back}"
            if on > back:
                world.run(transactions=on)
            assert world.contents() == world.expected(on), f"on to {on}"
        assert world.findings() == []


def test_the_run_has_all_that_it_is_to_have(thirty: dict[type[World], Kept]) -> None:
    """Else going back would be easy: rows that come and go in all ways, compactions, and more files than one version
    has."""
    happened = Counter(changes(never_further(LENGTH)))
    assert {"windows gains", "windows loses", "closed gains", "late gains", "seen gains", "seen loses"} <= set(happened)
    assert min(happened.values()) >= 2
    world = thirty[WindowsWorld].world("log", WindowsWorld)
    world.store.close()
    compacted = [
        DeltaTable(world.folder / name).transaction_version(f"rewound/{name}#compaction") for name in ("closed", "told")
    ]
    assert all(compacted)
