"""Where a step of the commit phase runs: in the driver, or as a Spark job. Chosen per transaction, by measured cost.

A step in the driver takes so long per tuple; as a job it takes a while however small it is, and then less per tuple.
Both are measured as transactions go by. What is not measured yet is estimated from the other. And whatever it costs,
what is too large for the driver's memory runs as a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from transactional.model.plumbing.moving_median import MovingMedian
from transactional.topology.steps import Step

JOB_MS: Final = 60.0
"""What a job costs before its first tuple."""
DRIVER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Tuples of more bytes than this are not brought into the driver."""
TUPLES_MIN: Final = 1_000
"""Steps of fewer tuples measure other things than tuples."""
MARGIN: Final = 0.8
"""A job has to be so much quicker than the driver: executors may have other transactions to process."""


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Where a step runs, and why; no reason is given before anything is measured."""

    is_job: bool
    why: str

    def __str__(self) -> str:
        return f"{'job' if self.is_job else 'driver'}{': ' if self.why else ''}{self.why}"


@dataclass(slots=True)
class _Measured:
    """Milliseconds per tuple in the last steps: in the driver, and in a job, beyond what each job costs."""

    driver: MovingMedian = field(default_factory=MovingMedian)
    job: MovingMedian = field(default_factory=MovingMedian)
    stays: str = ""
    has_died: bool = False


class StepPlaces:
    """Chooses where steps run. `choice`: `auto`, or everything in the `driver`, or as `jobs` where that is possible.
    `slots` is how many tasks run at a time; None: there are no jobs."""

    def __init__(self, choice: str = "auto", slots: int | None = None) -> None:
        self._choice, self._slots = choice, slots
        self._measured: dict[str, _Measured] = {}

    @property
    def has_jobs(self) -> bool:
        """Whether a step could run as a job."""
        return self._choice != "driver" and self._slots is not None

    def place(self, step: Step, tuples: int, size_bytes: int) -> StepPlace:
        """Where a step over so many tuples of this size runs."""
        known = self._of(step)
        if stays := step.stays or known.stays:
            return StepPlace(False, stays)
        if self._choice == "driver" or self._slots is None:
            return StepPlace(False, "all steps do" if self._choice == "driver" else "there is nothing to run jobs")
        if known.has_died:
            return StepPlace(True, "a process has died of it")
        if self._choice == "jobs":
            return StepPlace(True, "all steps do that can")
        if size_bytes > DRIVER_BYTES_MAX:
            return StepPlace(True, f"{size_bytes >> 20} MiB of tuples are too many for the driver")
        if (expected := self._expected(known, step, tuples)) is None:
            return StepPlace(False, "")
        driver_ms, job_ms = expected
        return StepPlace(
            job_ms < MARGIN * driver_ms, f"about {driver_ms:.0f} ms in the driver, {job_ms:.0f} ms as a job"
        )

    def learn(self, step: Step, place: StepPlace, tuples: int, took_ms: float) -> None:
        """A step over so many tuples took this long."""
        if tuples >= TUPLES_MIN:
            known = self._of(step)
            if place.is_job:
                known.job.add(max(0.0, took_ms - JOB_MS) / tuples)
            else:
                known.driver.add(took_ms / tuples)

    def keep_in_driver(self, step: Step, why: str) -> None:
        """A step can't run as a job, as has turned out. Not with `jobs`: there it is a mistake that stays one."""
        if self._choice == "auto":
            self._of(step).stays = why

    def keep_from_driver(self, step: Step) -> None:
        """A process has died of a step: the driver would, too."""
        self._of(step).has_died = True

    def _expected(self, known: _Measured, step: Step, tuples: int) -> tuple[float, float] | None:
        """In the driver, and as a job, in milliseconds; None: neither is measured."""
        side_by_side = max(1, min(self._slots or 1, step.tasks))
        driver, job = known.driver.value, known.job.value
        if driver is None:
            if job is None:
                return None
            driver = job * side_by_side
        if job is None:
            job = driver / side_by_side
        return driver * tuples, JOB_MS + job * tuples

    def _of(self, step: Step) -> _Measured:
        return self._measured.setdefault(step.component, _Measured())
