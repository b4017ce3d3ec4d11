"""`RunProgress`: what a run says of itself, as whoever holds its handle sees it."""

from __future__ import annotations

from tests.unit.drivers import DRAINED, World, silent
from transactional.operations.launch.progress import RunProgress, RunStatus


def test_a_run_that_has_not_begun() -> None:
    progress = RunProgress("words")
    assert str(progress.status) == "words: starting"
    assert not progress.has_begun.is_set()


def test_what_a_run_has_done() -> None:
    world, progress = World(), RunProgress("words")
    world.run(observers=[progress])
    status = progress.status
    assert (status.state, status.committed_txid, status.transactions, status.rows) == ("drained", 3, 3, 19)
    again = RunProgress("words")
    world.run(observers=[again])
    assert (again.status.committed_txid, again.status.transactions) == (3, 0)


class Keeps:
    """An observer behind another one that keeps every status of it."""

    def __init__(self, progress: RunProgress) -> None:
        self.progress, self.all = progress, list[RunStatus]()

    def __call__(self, *of: object) -> None:
        self.all.append(self.progress.status)


def test_a_failure_is_shown_until_it_is_over() -> None:
    world, progress = World(), RunProgress("words")
    keeps, failed = Keeps(progress), [False]

    def once(attempt: object) -> None:
        if not failed[0]:
            failed[0] = True
            raise RuntimeError("one\ntwo")

    topology = world.topology()
    world.states["counts"].before = once
    world.run(topology, DRAINED, observers=[progress, keeps])
    failing = [status for status in keeps.all if status.state == "failing"]
    assert failing
    assert "one" in (failing[0].error or "")
    assert "two" not in (failing[0].error or "")
    assert (progress.status.state, progress.status.error) == ("drained", None)


def test_a_store_that_is_away_is_no_failure_of_the_run() -> None:
    world, progress = World(), RunProgress("words")
    world.store.before = silent("desired", 3)
    world.run(observers=[progress])
    assert progress.status.state == "drained"
