"""Classes of users whose methods can't be called as the framework calls them are refused where they are defined."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from sinks import KeyedSink
from spouts import PartitionedSpout, PartitionedTransactionalSpout
from state.memory import MemoryMapState
from state.row_table import RowStore
from tests.unit.own_spouts import _Words
from transactional import BasicBolt
from transactional.core.ports import PartitionReader
from transactional.errors import ConfigError
from transactional.model.user_code.overrides import OverridesChecked
from transactional.reliable import QueueSpout


class Renames(_Words):
    def next_batch(self, name: str) -> Any:  # type: ignore[override]
        """Lack the metadata of the batch before."""


def lacks_a_parameter() -> None:
    class Words(Renames, PartitionedTransactionalSpout[Any]):  # type: ignore[misc]
        output = "word string"


def has_one_more() -> None:
    class Post(KeyedSink):
        def deliver(self, keys: Any, records: Any, timeout: float) -> None: ...  # type: ignore[override]


def lacks_a_keyword() -> None:
    class Logs(PartitionedSpout):
        def plan(self, previous_batch: Any) -> Any: ...  # type: ignore[override]


def lacks_an_optional_one() -> None:
    class Reader(PartitionReader):
        def read(self, partition: Any, offsets: Any) -> Any: ...  # type: ignore[override]


def is_a_property() -> None:
    class Logs(PartitionedSpout):
        def replays_exactly(self) -> bool: ...  # type: ignore[override, empty-body]


def state() -> None:
    class Rows(MemoryMapState):
        def close(self, timeout: int) -> None: ...  # type: ignore[override]


def store() -> None:
    class Rows(RowStore):
        def version(self, at: int) -> Any: ...  # type: ignore[override]


def bolt() -> None:
    class Split(BasicBolt):
        def execute(self, tuple: Any) -> None: ...  # type: ignore[override]


def queue() -> None:
    class Queue(QueueSpout):
        def ack(self) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lacks_a_parameter, "Words.next_batch(name) can't be called as next_batch(partition, previous): too many pos"),
        (has_one_more, "Post.deliver(keys, records, timeout) can't be called as deliver(keys, records): missing a req"),
        (
            lacks_a_keyword,
            "Logs.plan(previous_batch) can't be called as plan(previous_batch, *, replay): got an unexpe",
        ),
        (
            lacks_an_optional_one,
            "Reader.read(partition, offsets) can't be called as read(partition, offsets, metadata)",
        ),
        (is_a_property, "Logs.replays_exactly is read as a property: write @property above it"),
        (state, "Rows.close(timeout) can't be called as close()"),
        (store, "Rows.version(at) can't be called as version()"),
        (bolt, "Split.execute(tuple) can't be called as execute(tuple, collector)"),
        (queue, "Queue.ack() can't be called as ack(message_id)"),
    ],
)
def test_a_method_with_other_parameters_is_refused(define: Callable[[], None], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(message)}.*\(tests/unit/[\w/]*test_overrides\.py:\d+\)$"):
        define()


def test_other_names_and_further_options_are_accepted() -> None:
    class Post(KeyedSink):
        def deliver(self, names: Any, rows: Any, timeout: float = 1.0) -> None: ...

        def encode(self, *arguments: Any, **options: Any) -> Any: ...

    class Slower(Post):
        def deliver(self, *arguments: Any) -> None: ...

        def post(self, key: str) -> None: ...

    class Slowest(Slower):
        def post(self) -> None: ...  # type: ignore[override]

    assert issubclass(Slowest, OverridesChecked)


def with_connection(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any) -> None:
        method(self, "a connection", *arguments)

    return call


def test_a_decorator_may_pass_further_arguments() -> None:
    class Post(KeyedSink):
        @with_connection
        def deliver(self, connection: str, keys: Any, records: Any) -> None: ...

    assert issubclass(Post, OverridesChecked)
