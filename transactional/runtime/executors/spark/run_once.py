"""At most once on Spark: a task that Spark runs a second time is refused before a bolt gets any tuple.

Spark retries a task whose executor has died, with a higher attempt number: such a task fails the attempt. Spark would
also run a whole stage again whose shuffle files were lost. Therefore a setting of the session allows one attempt per
stage.
"""

from __future__ import annotations

from pyspark import SparkContext, TaskContext

from transactional.model.errors import AttemptLost, ConfigError
from transactional.model.guarantees import Guarantee
from transactional.runtime.tasks.items import TaskFailure
from transactional.runtime.tasks.program import TaskProgram
from transactional.topology.topology import Topology

STAGE_ATTEMPTS = "spark.stage.maxConsecutiveAttempts"


def needed_settings(topology: Topology) -> dict[str, str]:
    """Return the settings that a new session needs for this topology."""
    return {STAGE_ATTEMPTS: "1"} if topology.guarantee is Guarantee.AT_MOST_ONCE else {}


def check_stage_attempts(context: SparkContext, program: TaskProgram) -> None:
    """Raise `ConfigError` if Spark might repeat a stage of an at-most-once topology."""
    if program.is_run_once and context.getConf().get(STAGE_ATTEMPTS, "4") != "1":
        raise ConfigError(
            f"topology {program.topology_id!r} is at most once, but Spark may run a stage again in this session: "
            f"create it with .config({STAGE_ATTEMPTS!r}, '1'), or pass no session"
        )


def refuse_repetition(program: TaskProgram, level: int, number: int) -> TaskFailure | None:
    """Return a failure if this task must not run, because Spark runs it a second time. Runs on an executor."""
    context = TaskContext.get()
    if not program.is_run_once or context is None or context.attemptNumber() == 0:
        return None
    text = (
        f"Spark runs task {number} of level {level} a second time; at most once that may give messages to a bolt again"
    )
    return TaskFailure((level, number, 0), program.spout.id, AttemptLost.code, text)
