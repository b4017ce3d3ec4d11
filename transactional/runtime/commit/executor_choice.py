"""Chooses per transaction whether a step of the commit phase runs on the driver or as a Spark job.

The choice follows measured cost. A step on the driver takes a fixed time per tuple; a job has a fixed cost however
small it is, and then takes less time per tuple. Both are measured in every transaction, as medians. An executor that
has not been measured is estimated from the other one. Two cases ignore the cost: tuples that are too large for the
driver's memory go to a job, and so does a step of which a process has died. This module only decides; `commit_steps`
runs steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from transactional.model.plumbing.moving_median import MovingMedian
from transactional.topology.steps import Step

JOB_MS: Final = 60.0
"""Fixed cost of a job, before its first tuple."""
DRIVER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A step over more bytes than this always runs as a job: the driver's memory is limited."""
TUPLES_MIN: Final = 1_000
"""Steps of fewer tuples are not measured: their time depends on other things than tuples."""
MARGIN: Final = 0.8
"""A job is chosen if its expected time is below this share of the driver's: Spark's executors may be busy with other
transactions."""


@dataclass(frozen=True, slots=True)
class StepExecutorChoice:
    """Whether a step runs as a Spark job or on the driver, with the reason, which is empty while nothing is
    measured."""

    is_job: bool
    reason: str

    def __str__(self) -> str:
        return f"{'job' if self.is_job else 'driver'}{': ' if self.reason else ''}{self.reason}"


@dataclass(slots=True)
class _StepRecord:
    """Measurements of one step: its milliseconds per tuple on the driver, and in a job without the job's fixed cost."""

    driver: MovingMedian = field(default_factory=MovingMedian)
    job: MovingMedian = field(default_factory=MovingMedian)
    driver_reason: str = ""
    has_died: bool = False


class StepExecutorChooser:
    """Chooses the executor of each step. Not thread-safe.

    `choice` is `auto`, or `driver` for all steps on the driver, or `jobs` for jobs wherever that is possible. `slots`
    is the number of tasks that run at a time, or None if there is no executor for jobs.
    """

    def __init__(self, choice: str = "auto", slots: int | None = None) -> None:
        self._choice, self._slots = choice, slots
        self._records: dict[str, _StepRecord] = {}

    @property
    def has_jobs(self) -> bool:
        """Whether any step can run as a job."""
        return self._choice != "driver" and self._slots is not None

    def choose(self, step: Step, tuples: int, size_bytes: int) -> StepExecutorChoice:
        """Choose the executor of a step over this many tuples, of about `size_bytes` in all."""
        record = self._record_of(step)
        if reason := step.driver_reason or record.driver_reason:
            return StepExecutorChoice(False, reason)
        if self._choice == "driver" or self._slots is None:
            return StepExecutorChoice(
                False, "all steps do" if self._choice == "driver" else "there is nothing to run jobs"
            )
        if record.has_died:
            return StepExecutorChoice(True, "a process has died of it")
        if self._choice == "jobs":
            return StepExecutorChoice(True, "all steps do that can")
        if size_bytes > DRIVER_BYTES_MAX:
            return StepExecutorChoice(True, f"{size_bytes >> 20} MiB of tuples are too many for the driver")
        if (expected := self._expected(record, step, tuples)) is None:
            return StepExecutorChoice(False, "")
        driver_ms, job_ms = expected
        return StepExecutorChoice(
            job_ms < MARGIN * driver_ms, f"about {driver_ms:.0f} ms in the driver, {job_ms:.0f} ms as a job"
        )

    def record_duration(self, step: Step, choice: StepExecutorChoice, tuples: int, elapsed_ms: float) -> None:
        """Record how long a step over this many tuples took on the executor that was chosen."""
        if tuples >= TUPLES_MIN:
            record = self._record_of(step)
            if choice.is_job:
                record.job.add(max(0.0, elapsed_ms - JOB_MS) / tuples)
            else:
                record.driver.add(elapsed_ms / tuples)

    def require_driver(self, step: Step, reason: str) -> None:
        """Run a step on the driver from now on: one of its tasks could not run in a job. Does nothing with the choice
        `jobs`, where the step fails again."""
        if self._choice == "auto":
            self._record_of(step).driver_reason = reason

    def require_job(self, step: Step) -> None:
        """Run a step as a job from now on: a process has died of it, so the driver might, too."""
        self._record_of(step).has_died = True

    def _expected(self, record: _StepRecord, step: Step, tuples: int) -> tuple[float, float] | None:
        """Return the expected milliseconds on the driver and as a job, or None if neither is measured."""
        side_by_side = max(1, min(self._slots or 1, step.tasks))
        driver, job = record.driver.value, record.job.value
        if driver is None:
            if job is None:
                return None
            driver = job * side_by_side
        if job is None:
            job = driver / side_by_side
        return driver * tuples, JOB_MS + job * tuples

    def _record_of(self, step: Step) -> _StepRecord:
        return self._records.setdefault(step.component, _StepRecord())
