"""Where steps run: by what they have taken, by what is too large for the driver, and by what was asked for."""

from __future__ import annotations

import pytest

from transactional.runtime.commit.step_places import DRIVER_BYTES_MAX, StepPlace, StepPlaces
from transactional.topology.steps import Step

STEP = Step("count", 4, ("word",))


def learned(driver_us: float | None, job_us: float | None, slots: int = 4) -> StepPlaces:
    """After a step in the driver and one as a job, each of so many microseconds per tuple; a job takes 60 ms more."""
    places = StepPlaces("auto", slots)
    if driver_us is not None:
        places.learn(STEP, StepPlace(False, ""), 10_000, 10 * driver_us)
    if job_us is not None:
        places.learn(STEP, StepPlace(True, ""), 10_000, 60 + 10 * job_us)
    return places


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
def test_the_quicker_place(driver_us: float | None, job_us: float | None, tuples: int, is_job: bool) -> None:  # noqa: FBT001
    place = learned(driver_us, job_us).place(STEP, tuples, 0)
    assert place.is_job is is_job, place


def test_a_job_is_not_quicker_with_one_slot_but_may_be_smaller() -> None:
    places = learned(4, None, slots=1)
    assert not places.place(STEP, 10_000_000, DRIVER_BYTES_MAX).is_job
    assert places.place(STEP, 1, DRIVER_BYTES_MAX + 1) == StepPlace(
        True, "64 MiB of tuples are too many for the driver"
    )


def test_small_steps_teach_nothing() -> None:
    places = StepPlaces("auto", 4)
    places.learn(STEP, StepPlace(False, ""), 10, 1_000)
    assert places.place(STEP, 1_000_000, 0) == StepPlace(False, "")


def test_the_median_of_the_last_steps_counts() -> None:
    places = learned(4, 1)
    for _ in range(2):
        places.learn(STEP, StepPlace(True, ""), 10_000, 9_999)
    assert not places.place(STEP, 100_000, 0).is_job
    for _ in range(3):
        places.learn(STEP, StepPlace(True, ""), 10_000, 70)
    assert places.place(STEP, 100_000, 0).is_job


def test_what_was_asked_for() -> None:
    assert not StepPlaces("driver", 4).place(STEP, 10**9, 10**12).is_job
    assert StepPlaces("jobs", 4).place(STEP, 1, 1).is_job
    assert not StepPlaces("jobs", None).place(STEP, 1, 1).is_job
    stays = Step("count", 4, (), "it has one task")
    assert StepPlaces("jobs", 4).place(stays, 10**9, 10**12) == StepPlace(False, "it has one task")


@pytest.mark.parametrize(("choice", "is_job"), [("auto", False), ("jobs", True)])
def test_what_turns_out_to_need_the_driver(choice: str, is_job: bool) -> None:  # noqa: FBT001
    places = StepPlaces(choice, 4)
    places.keep_in_driver(STEP, "it reads all keys of its state")
    assert places.place(STEP, 10**9, 10**12).is_job is is_job


def test_a_reason_is_given_once_there_is_one() -> None:
    assert str(StepPlaces("auto", 4).place(STEP, 1, 0)) == "driver"
    assert str(StepPlaces("driver", 4).place(STEP, 1, 0)) == "driver: all steps do"


def test_a_step_of_which_a_process_has_died_is_not_tried_in_the_driver() -> None:
    """Quicker though that would be."""
    places = learned(driver_us=1, job_us=100)
    assert not places.place(STEP, 10, 0).is_job
    places.keep_from_driver(STEP)
    assert places.place(STEP, 10, 0) == StepPlace(True, "a process has died of it")
