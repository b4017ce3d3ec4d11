"""At most once: a task that Spark runs a second time gives no bolt anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext

from transactional.errors import AttemptLost
from transactional.runtime.executors.spark import executor
from transactional.runtime.executors.spark.run_once import refuse_repetition
from transactional.runtime.tasks.items import TaskFailure


class Began(Exception):
    """A task has begun its work."""


def of(*, is_run_once: bool) -> Any:
    return SimpleNamespace(
        topology_id="words",
        is_run_once=is_run_once,
        spout=SimpleNamespace(id="spout"),
        plan=SimpleNamespace(slots=lambda level: [(SimpleNamespace(is_dataframe=False),)]),
    )


@pytest.fixture
def tried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often Spark has tried the task before."""

    def began(*_: object) -> None:
        raise Began

    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: request.param))
    monkeypatch.setattr(executor, "end_quietly", lambda: None)
    monkeypatch.setattr(executor, "task_input", began)


@pytest.mark.parametrize("tried", [1, 3], indirect=True)
@pytest.mark.usefixtures("tried")
def test_a_second_time_is_refused_at_every_level() -> None:
    program = of(is_run_once=True)
    for said in (executor.first_level(program, 1)(0, [0]), executor.next_level(program, 2)(0, [])):
        [refused] = said
        assert isinstance(refused, TaskFailure)
        assert AttemptLost.code in repr(refused)
        assert "a second time; at most once that may give messages to a bolt again" in repr(refused)


@pytest.mark.parametrize(("tried", "guarantee"), [(0, "at most once"), (1, "another")], indirect=["tried"])
@pytest.mark.usefixtures("tried")
def test_the_first_time_and_other_guarantees_run(guarantee: str) -> None:
    program = of(is_run_once=guarantee == "at most once")
    assert refuse_repetition(program, 0, 0) is None
    with pytest.raises(Began):
        list(executor.first_level(program, 1)(0, [0]))
    with pytest.raises(Began):
        list(executor.next_level(program, 2)(0, []))
