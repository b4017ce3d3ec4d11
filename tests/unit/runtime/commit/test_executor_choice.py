"""Where steps run: by what they have taken, by what is too large for the driver, and by what was asked for."""

from __future__ import annotations

import pytest

from transactional.runtime.commit.executor_choice import DRIVER_BYTES_MAX, StepExecutorChoice, StepExecutorChooser
from transactional.topology.steps import Step

STEP = Step("count", 4, ("word",))


def learned(driver_us: float | None, job_us: float | None, slots: int = 4) -> StepExecutorChooser:
    """After a step in the driver and one as a job, each of so many microseconds per tuple; a job takes 60 ms more."""
    chooser = StepExecutorChooser("auto", slots)
    if driver_us is not None:
        chooser.record_duration(STEP, StepExecutorChoice(False, ""), 10_000, 10 * driver_us)
    if job_us is not None:
        chooser.record_duration(STEP, StepExecutorChoice(True, ""), 10_000, 60 + 10 * job_us)
    return chooser


@pytest.mark.parametrize(
    ("driver_us", "job_us", "tuples", "is_job"),
    [
        (None, None, 10_000_000, False),
        (4, None, 1_000, False),
        (4, None, 20_000, False),
        (4, None, 100_000, True),
        (4, 3.9, 1_000_000, False),
        (4, 1, 10_000, False),
        (4, 1, 100_000, True),
        (None, 1, 100_000, True),
        (None, 1, 10_000, False),
    ],
)
def test_the_quicker_executor(driver_us: float | None, job_us: float | None, tuples: int, is_job: bool) -> None:  # noqa: FBT001
    choice = learned(driver_us, job_us).choose(STEP, tuples, 0)
    assert choice.is_job is is_job, choice


def test_a_job_is_not_quicker_with_one_slot_but_may_be_smaller() -> None:
    chooser = learned(4, None, slots=1)
    assert not chooser.choose(STEP, 10_000_000, DRIVER_BYTES_MAX).is_job
    assert chooser.choose(STEP, 1, DRIVER_BYTES_MAX + 1) == StepExecutorChoice(
        True, "64 MiB of tuples are too many for the driver"
    )


def test_small_steps_teach_nothing() -> None:
    chooser = StepExecutorChooser("auto", 4)
    chooser.record_duration(STEP, StepExecutorChoice(False, ""), 10, 1_000)
    assert chooser.choose(STEP, 1_000_000, 0) == StepExecutorChoice(False, "")


def test_the_median_of_the_last_steps_counts() -> None:
    chooser = learned(4, 1)
    for _ in range(2):
        chooser.record_duration(STEP, StepExecutorChoice(True, ""), 10_000, 9_999)
    assert not chooser.choose(STEP, 100_000, 0).is_job
    for _ in range(3):
        chooser.record_duration(STEP, StepExecutorChoice(True, ""), 10_000, 70)
    assert chooser.choose(STEP, 100_000, 0).is_job


def test_what_was_asked_for() -> None:
    assert not StepExecutorChooser("driver", 4).choose(STEP, 10**9, 10**12).is_job
    assert StepExecutorChooser("jobs", 4).choose(STEP, 1, 1).is_job
    assert not StepExecutorChooser("jobs", None).choose(STEP, 1, 1).is_job
    driver_reason = Step("count", 4, (), "it has one task")
    assert StepExecutorChooser("jobs", 4).choose(driver_reason, 10**9, 10**12) == StepExecutorChoice(
        False, "it has one task"
    )


@pytest.mark.parametrize(("choice", "is_job"), [("auto", False), ("jobs", True)])
def test_what_turns_out_to_need_the_driver(choice: str, is_job: bool) -> None:  # noqa: FBT001
    chooser = StepExecutorChooser(choice, 4)
    chooser.require_driver(STEP, "it reads all keys of its state")
    assert chooser.choose(STEP, 10**9, 10**12).is_job is is_job


def test_a_reason_is_given_once_there_is_one() -> None:
    assert str(StepExecutorChooser("auto", 4).choose(STEP, 1, 0)) == "driver"
    assert str(StepExecutorChooser("driver", 4).choose(STEP, 1, 0)) == "driver: all steps do"


def test_a_step_of_which_a_process_has_died_is_not_tried_in_the_driver() -> None:
    """Quicker though that would be."""
    chooser = learned(driver_us=1, job_us=100)
    assert not chooser.choose(STEP, 10, 0).is_job
    chooser.require_job(STEP)
    assert chooser.choose(STEP, 10, 0) == StepExecutorChoice(True, "a process has died of it")
