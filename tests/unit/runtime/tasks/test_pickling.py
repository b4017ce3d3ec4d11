"""How a committer's instance travels: without collector and state, with its class wherever that was defined."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.attempts import FIRST, Keep, Nowhere, instances, keep, processed
from tests.unit.fakes import Total, builder, stored, total, words
from transactional.bolts import BatchBolt, MapState, OutputCollector, TopologyContext
from transactional.errors import BoltFailed
from transactional.model.attempt import TransactionAttempt
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.tasks.map_state import MapStateView
from transactional.runtime.tasks.pickling import dump_instance, load_instance


def test_collector_and_state_are_the_drivers_own_on_arrival() -> None:
    made = builder(words([[("cat",)]]))
    keep(made, 2).all_grouping("spout")
    topology = made.build(options={"limit": 3})
    found = instances(topology, processed(topology))
    for task, instance in enumerate(found):
        assert isinstance(instance, Keep)
        assert isinstance(instance.collector, Nowhere)
        assert isinstance(instance.context.state, MapStateView)
        assert instance.context == TopologyContext("words", "keep", task, 2, {"limit": 3}, instance.context.state)
        assert (instance.rows, instance.attempt) == ([("cat",)], FIRST)
    assert found[0].rows is not found[1].rows


class Emitting:
    """Holds parts of what it was given instead of the whole."""

    def __init__(self, collector: OutputCollector) -> None:
        self.emit = collector.emit


def test_a_method_of_the_collector_travels_too() -> None:
    source, target = Nowhere(), Nowhere()
    arrived: Any = load_instance(dump_instance(Emitting(source), source), target, None)
    assert arrived.emit.__self__ is target


class Early(BatchBolt):
    """Uses its state before the commit phase."""

    def __init__(self, where: str, method: str) -> None:
        self.where, self.method = where, method

    def _use(self, where: str, state: MapState) -> None:
        if where == self.where:
            arguments: dict[str, tuple[Any, ...]] = {
                "get": ("cat",),
                "multi_get": ([("cat",)],),
                "put": ("cat", 1),
                "multi_update": ([("cat",)], len),
            }
            getattr(state, self.method)(*arguments[self.method])

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        assert context.state is not None
        self.state = context.state
        self._use("prepare", self.state)

    def execute(self, tuple: Tuple) -> None:
        self._use("execute", self.state)

    def finish_batch(self) -> None: ...


@pytest.mark.parametrize("where", ["prepare", "execute"])
@pytest.mark.parametrize("method", ["get", "multi_get", "put", "multi_update"])
def test_a_state_refuses_to_be_used_before_the_commit_phase(where: str, method: str) -> None:
    made = builder(words([[("cat",)]]))
    made.set_committer_bolt("early", Early(where, method), state=total()).global_grouping("spout")
    told = r"^task 0 of 1: committer 'early' used its state in prepare or execute, .*: collect in execute, and use"
    told += rf".* \({os.path.relpath(__file__)}:\d+\)"
    with pytest.raises(BoltFailed, match=told):
        processed(made.build())


SCRIPT = """
from transactional.bolts import BatchBolt
from transactional.runtime.tasks.map_state import DeferredState
from transactional.runtime.tasks.pickling import dump_instance
import sys

STEP = 2

def double(count):
    return count * STEP

class Doubled(BatchBolt):
    def prepare(self, context, collector, attempt): self.state = context
    def execute(self, tuple): self.count = 21
    def finish_batch(self): self.state.put((), double(self.count))

bolt = Doubled()
bolt.prepare(DeferredState("doubled"), None, None)
bolt.execute(None)
sys.stdout.buffer.write(dump_instance(bolt, object()))
"""


def test_a_class_that_was_defined_in_main_travels_with_what_it_uses(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, check=True, timeout=240)
    state = total()
    view = MapStateView("doubled", state, FIRST)
    bolt = load_instance(done.stdout, Nowhere(), view)
    bolt.finish_batch()
    assert view.changes == {(): (42,)}


def test_a_class_that_was_defined_in_a_function_travels() -> None:
    class Local(Total):
        """Counts double."""

        def execute(self, tuple: Tuple) -> None:
            self.count += 2

    state = total()
    state.open("words/total", lambda _: FIRST.txid)
    made = builder(words([[("cat",), ("dog",)]]))
    made.set_committer_bolt("total", Local(), 2, state=state).all_grouping("spout")
    topology = made.build()
    CommitPhase(topology).run(FIRST, processed(topology))
    assert stored(state.stored) == {(): 8}
