"""What can't be sent to other processes is refused at the start, and the part of it that can't be sent is named."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.fakes import Total, builder, total, words
from transactional.errors import ConfigError
from transactional.model.groupings import CustomStreamGrouping
from transactional.model.user_code.picklable import check_picklable
from transactional.model.user_code.tuples import Tuple
from transactional.operations.launch.running import make_executor

LOCK = threading.Lock()


class Client:
    def __init__(self) -> None:
        self.pools = {"db": [threading.Lock()]}


def emitting_under(lock: Any) -> Callable[[Tuple], tuple[str]]:
    def emit(row: Tuple) -> tuple[str]:
        with lock:
            return (row.word,)

    return emit


def local_class() -> object:
    class Local:
        lock = LOCK

    return Local()


def local_method() -> object:
    class Local:
        def execute(self) -> None:
            with LOCK:
                pass

    return Local()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (LOCK, r"it \(lock\) can't be sent to other processes: cannot pickle '_thread\.lock' object; "),
        (Client(), r"it \(Client, .*test_picklable\.py:\d+\) can't .*: it is `self\.pools\['db'\]\[0\]`; open"),
        (emitting_under(LOCK), r"it \(emit, .*test_picklable\.py:\d+\) can't .*: it is `lock`; "),
        (functools.partial(max, LOCK), r"it can't .*: it is `argument 0`; "),
        (functools.partial(emitting_under, lock=LOCK), r"it \(emitting_under, .*\) can't .*: it is `lock`; "),
        (Client().__init__, r"it \(__init__, .*\) can't .*: it is `self\.pools\['db'\]\[0\]`; "),  # type: ignore[misc]
        (local_class(), r"it \(Local, .*\) can't .*: it is `Local\.lock`; "),
        (local_method(), r"it \(Local, .*\) can't .*: it is `LOCK`; "),
        ({"at": (iter(()) for _ in "a")}, r"it can't .*'generator' object: it is `\['at'\]`; "),
    ],
)
def test_the_part_that_can_not_be_sent_is_named(value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        check_picklable("it", value)


@pytest.mark.parametrize("processing", ["auto", "workers"])
def test_a_bolt_that_can_not_be_sent_ends_a_start_in_one_line(processing: str) -> None:
    made = builder(words())
    made.set_bolt("upper", emitting_under(LOCK), output="word string").shuffle_grouping("spout")
    made.set_committer_bolt("total", Total(), state=total()).global_grouping("upper")
    said = r"^bolt 'upper' \(emit, .*\) can't be sent .*: it is `lock`; create what it needs inside$"
    with pytest.raises(ConfigError, match=said):
        make_executor(made.build(), processing)


class Modulo(CustomStreamGrouping):
    def __init__(self) -> None:
        self.lock = LOCK

    def choose_tasks(self, values: tuple[Any, ...]) -> list[int]:
        return [0]


def test_a_grouping_that_can_not_be_sent_is_named() -> None:
    made = builder(words())
    made.set_committer_bolt("total", Total(), state=total()).custom_grouping("spout", Modulo())
    with pytest.raises(ConfigError, match=r"^grouping of bolt 'total' on 'spout' \(Modulo, .*: it is `self\.lock`; "):
        make_executor(made.build(), "workers")
