"""PostgreSQL fails over to a copy that was behind, under leaders whose stores and tables lie in it.

One failover meets all of them: each is a topology of its own, in a schema of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psycopg
import pytest

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.delta.state import DeltaMapState
from state.sql.state import SqlMapState
from tests.integration.faults.failing_over import failing_over
from tests.integration.postgres import new_schema
from transactional import FailedException, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.errors import StoreMismatch, StoreWentBack

pytestmark = pytest.mark.postgres

WAIT_S = 10
WORDS = [(f"w{number}",) for number in range(1, 7)]
"""Each is a transaction."""
EXACT = {word: 1 for (word,) in WORDS}
State = DeltaMapState | SqlMapState
Stop = Callable[[], object]
STOPS: dict[tuple[str, str], deque[Stop]] = {}


def stop_at(name: str, row: Tuple) -> tuple[str]:
    """The word, once what is to happen at it has happened."""
    if stops := STOPS.get((name, row["word"])):
        stops.popleft()()
    return (row["word"],)


class Counted:
    """A topology that counts words, and does what `stops` says when it comes to a word, one thing each time."""

    def __init__(self, name: str, store: str, state: Callable[[], State], stops: Mapping[str, Sequence[Stop]]) -> None:
        self.name, self.store, self._state = name, store, state
        STOPS.update({(name, word): deque(each) for word, each in stops.items()})

    def run(self) -> None:
        """Run until all is read."""
        spout = OpaqueMemoryTransactionalSpout([WORDS], "word string", take=1)
        builder = TransactionalTopologyBuilder(self.name, "words", spout)
        name = self.name
        builder.set_bolt("pass", lambda row: stop_at(name, row), output="word string").shuffle_grouping("words")
        builder.set_committer_bolt("count", self._state().count()).fields_grouping("pass", "word")
        config = {"stop_when_drained": True, "retry_pause_ms": 1}
        run_topology(builder.build(), store=self.store, master="none", config=config)

    def counts(self) -> dict[str, int]:
        return {row["word"]: row["count"] for row in self._state().read().to_pylist()}

    def free(self) -> None:
        """End the lease of a leader that could not give it back, as time would."""
        with psycopg.connect(self.store) as connection:
            connection.execute("UPDATE transactional_topologies SET leased_until_ms = 0")


def test_leaders_over_a_copy_that_was_behind_lose_nothing(tmp_path: Path) -> None:
    """Each goes on, or ends in one line and goes on when it is started again, or is refused until the newer copy is
    back."""
    with failing_over() as servers:
        copy = Barrier(5, servers.take_copy, WAIT_S).wait
        over = Barrier(5, servers.fail_over, WAIT_S).wait
        between = {"w2": [copy], "w4": [over]}

        def failing(stop: Stop) -> Stop:
            def fail() -> None:
                stop()
                raise FailedException("one attempt more")

            return fail

        def store(name: str) -> str:
            return new_schema(servers.folder, name)

        def table(name: str) -> Callable[[], State]:
            return lambda: DeltaMapState(tmp_path / name, "word string", "count long")

        def rows(url: str) -> Callable[[], State]:
            return lambda: SqlMapState(url, "count", "word string", "count long")

        up_to_date = Counted("up_to_date", store("up_to_date"), table("up_to_date"), {"w4": [lambda: (copy(), over())]})
        attempts = Counted("attempts", store("attempts"), table("attempts"), {"w4": [failing(copy), failing(over)]})
        both = Counted("both", url := store("both"), rows(url), between)
        commits = Counted("commits", store("commits"), table("commits"), between)
        state = Counted("state", f"sqlite:///{tmp_path}/store.db", rows(store("state")), between)
        every = (up_to_date, attempts, both, commits, state)
        with ThreadPoolExecutor(len(every)) as pool:
            runs = [pool.submit(each.run) for each in every]
            servers.await_refusal()
            servers.promote()
        ended = {each.name: run.exception() for each, run in zip(every, runs, strict=True)}
        assert (ended["up_to_date"], ended["attempts"]) == (None, None)
        for each in (both, commits):
            with pytest.raises(StoreWentBack, match="has lost writes that it had confirmed"):
                raise ended[each.name] or AssertionError(f"{each.name} has noticed nothing")
        assert isinstance(ended["state"], StoreMismatch)
        both.free()  # the copy may be of a moment at which its leader was about to renew
        both.run()
        for each in (up_to_date, attempts, both):
            assert each.counts() == EXACT, each.name
        for each in (commits, state):
            with pytest.raises(StoreMismatch):
                each.run()
        servers.fail_back()
        commits.free()
        for each in (commits, state):
            each.run()
            assert each.counts() == EXACT, each.name
