"""A leader that stands still before one of its writes, in this process, while others do whatever they do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.proof.crashing import LEASE_MS, check_at_the_end, store_url
from tests.proof.effects import Effects, NumberedStore, numbered_delta
from tests.proof.shapes import OTHER_TAKE, TAKE, Setting, build
from tests.rewinding import end_lease
from transactional import TopologyConfig, TopologyDriver
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import TransactionalError
from transactional.operations.doctor.examine import examine
from transactional.runtime.engine.fencing import one_by_one
from transactional.runtime.executors.local import LocalExecutor
from verifier import CheckedTable, verify


@dataclass
class Stops(Effects):
    """The effects of a leader that stands still before its n-th one of a name, while something else happens."""

    at: tuple[str, int] | None = None
    meanwhile: Callable[[], None] = field(default=lambda: None)
    is_away: bool = False

    @contextmanager
    def numbered(self, name: str) -> Iterator[None]:
        """One effect; what happens meanwhile has no number."""
        if not self.is_away:
            self.names.append(name)
            if (name, self.names.count(name)) == self.at:
                self.is_away = True
                try:
                    self.meanwhile()
                finally:
                    self.is_away = False
        yield


def lead(
    setting: Setting, folder: Path, owner: str, effects: Effects, *, take: int = TAKE
) -> TransactionalError | None:
    """Lead until the source is drained; what ends it before."""
    topology = build(setting, folder, effects, take=take)
    config = TopologyConfig(
        max_spout_pending=setting.pending,
        stop_when_drained=True,
        lease_ms=LEASE_MS,
        retry_pause_ms=1,
        idle_pause_ms=1,
        tick_ms=1,
        commit_steps="jobs" if setting.layout == "staged" else "driver",
    )
    with closing(NumberedStore(store_url(folder), effects)) as store:
        driver = TopologyDriver(topology, store, LocalExecutor(topology), config, owner=owner)
        driver.leadership._side_by_side = one_by_one
        try:
            driver.run()
        except TransactionalError as error:
            return error
    return None


def content(folder: Path) -> Any:
    """All that a leader can change of the store, and the Delta commits of every table."""
    with closing(SqlCoordinatorStore(store_url(folder))) as store:
        stored = [replace(each, is_leased=True) for each in store.status()], store.attempts("proof", limit=1_000)
    return stored, sorted(log.relative_to(folder) for log in folder.glob("*/_delta_log/*.json"))


def findings(setting: Setting, folder: Path) -> list[Any]:
    """What the doctor and the checker find, that is wrong."""
    topology = build(setting, folder, Effects(), take=TAKE)
    states: dict[str, Any] = {each.id: each.state for each in topology.committers}
    addresses = {name: state.parts.examination.address() for name, state in states.items()}
    tables = [CheckedTable(name, address.uri) for name, address in addresses.items()]
    report = verify(store_url(folder), "proof", tables)
    with closing(SqlCoordinatorStore(store_url(folder))) as store:
        examined = examine(topology, store, store_url(folder))
    return [*(each for each in examined if not each.is_harmless), *report.findings]


def overtaken(setting: Setting, folder: Path, at: tuple[str, int]) -> TransactionalError | None:
    """The first leader stands still, its lease ends, the second one does all there is to do, the first one goes on.

    What has ended the first one. Whatever it does then changes nothing.
    """
    left = list[Any]()

    def take_over() -> None:
        end_lease(folder)
        # Its batches are others, where they may be.
        assert lead(setting, folder, "second", Effects(), take=OTHER_TAKE if setting.is_opaque else TAKE) is None
        left.append(content(folder))

    first = Stops(at=at, meanwhile=take_over)
    with numbered_delta(first, folder, merges=setting.pending % 2 == 1, apart=setting.layout == "staged"):
        said = lead(setting, folder, "first", first)
    assert left, f"there is no such write: {sorted(set(first.names))}"
    assert left == [content(folder)], f"it has changed something, and said {said}"
    check_at_the_end(setting, folder)
    assert findings(setting, folder) == []
    return said
