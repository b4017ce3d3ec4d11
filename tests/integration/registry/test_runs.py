"""Whole runs over a real broker and a real registry that is killed, slow, or does not know an id, in their middle."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from spouts import AvroTranslator, JsonTranslator
from spouts.decoding.translator import DecodingTranslator
from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout
from spouts.kafka_admin import produce
from spouts.local_registry import LocalRegistry
from spouts.registry import client
from spouts.registry.client import Registry
from spouts.registry.connection import RegistryConnection
from state.memory import MemoryMapState, MemoryTable
from tests.integration.kafka_topics import BOTH, new_topic
from tests.unit.fakes import stored
from tests.unit.poisoned import letters, try_again
from transactional import FailedException, RunSummary, TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.errors import RetriesExhausted, SourceUnavailable
from transactional.runtime.engine.letter_spout import all_letters
from transactional.topology.topology import Topology

pytestmark = [pytest.mark.kafka, pytest.mark.registry]

INTERRUPTIONS: dict[int, Callable[[], None]] = {}
"""What happens, once, when a number is parsed; the attempt fails then."""
RECORDS, BATCH = 40, 10
_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(client, "_memories", {})
    monkeypatch.setattr(client, "_RETRY_S", 0.05)
    yield
    assert INTERRUPTIONS == {}, "these were never reached"


@pytest.fixture(scope="module")
def registry() -> Iterator[LocalRegistry]:
    """One of this file, whose tests kill it, and start it again."""
    with LocalRegistry() as registry:
        yield registry


def parse(tuple: Tuple) -> Any:
    """The number, unless something comes between."""
    happens = INTERRUPTIONS.pop(tuple["n"], None)
    if happens is not None:
        happens()
        raise FailedException(f"interrupted at {tuple['n']!r}")
    return (tuple["n"],)


class Json:
    """Numbers in JSON."""

    def translator(self, registry: str | Registry) -> DecodingTranslator:
        return JsonTranslator("n long", registry=registry, on_error="dead_letter")

    def registered(self, registry: LocalRegistry) -> int:
        """The id of a new schema, which is one more than that of the last."""
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "title": str(next(_NUMBERS))}
        return registry.register("numbers", json.dumps(schema), kind="JSON")

    def payload(self, number: int) -> bytes:
        return json.dumps({"n": number}).encode()


class Avro(Json):
    """Numbers in Avro."""

    def translator(self, registry: str | Registry) -> DecodingTranslator:
        return AvroTranslator(registry, "n long", on_error="dead_letter")

    def registered(self, registry: LocalRegistry) -> int:
        schema = {"type": "record", "name": f"Number{next(_NUMBERS)}", "fields": [{"name": "n", "type": "long"}]}
        return registry.register("avro-numbers", json.dumps(schema))

    def payload(self, number: int) -> bytes:
        return bytes([2 * number])


JSON, AVRO = Json(), Avro()
BOTH_FORMATS = pytest.mark.parametrize("form", [JSON, AVRO], ids=["JSON", "Avro"])


def framed(schema_id: int, number: int, form: Json = JSON) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + form.payload(number)


@dataclass
class World:
    """A topic whose records have the ids of schemas, and the topology that counts them."""

    bootstrap: str
    kind: type[KafkaSpout]
    folder: Path
    translator: DecodingTranslator
    records: Sequence[bytes]
    batch: int = BATCH
    counts: MemoryTable = field(default_factory=lambda: MemoryTable("counts"))
    letters: MemoryMapState = field(default_factory=letters)

    def __post_init__(self) -> None:
        self.topic = new_topic(self.bootstrap)
        produce(self.bootstrap, self.topic, [(0, None, each) for each in self.records], {"enable.idempotence": False})

    def topology(self) -> Topology:
        spout = self.kind(self.bootstrap, [self.topic], batch_records_max=self.batch, translator=self.translator)
        builder = TransactionalTopologyBuilder("runs", "records", spout)
        builder.set_bolt("parse", parse, output="n long").shuffle_grouping("records")
        counts = MemoryMapState("n long", table=self.counts)
        builder.set_committer_bolt("count", counts.count()).fields_grouping("parse", "n")
        if self.translator.sets_aside:
            builder.set_dead_letters(self.letters)
        return builder.build()

    def run(self) -> RunSummary:
        config = TopologyConfig(stop_when_drained=True, retry_pause_ms=10, attempts_max=9)
        store = f"sqlite:///{self.folder}/store.db"
        return run_topology(self.topology(), store=store, config=config, master="none")

    @property
    def counted(self) -> Counter[int]:
        """How often each number was counted."""
        return Counter(stored(self.counts))

    @property
    def set_aside(self) -> dict[int, str]:
        """The error of each letter that was not retried, by its offset."""
        rows = [row for row in all_letters(self.topology()) if row["tried_again_in"] is None]
        return {json.loads(row["tuple"])["offset"]: row["error"] for row in rows}


def forget() -> None:
    """What a process that takes over has: it knows no schema."""
    client._memories.clear()


@pytest.fixture
def mended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[type[Exception] | None, Callable[[], None]]]:
    """What is done after a question to the registry ends so, once: with an error, or, None, with a no."""
    waiting: list[tuple[type[Exception] | None, Callable[[], None]]] = []
    get = RegistryConnection.get

    def getting(self: RegistryConnection, path: str) -> Any:
        try:
            answer = get(self, path)
        except SourceUnavailable:
            mend(SourceUnavailable)
            raise
        if answer is None:
            mend(None)
        return answer

    def mend(outcome: type[Exception] | None) -> None:
        if waiting and waiting[0][0] is outcome:
            waiting.pop(0)[1]()

    monkeypatch.setattr(RegistryConnection, "get", getting)
    return waiting


def each_once(numbers: Sequence[int] = range(RECORDS)) -> Counter[int]:
    return Counter(numbers)


Mended = list[tuple[type[Exception] | None, Callable[[], None]]]


@BOTH
@BOTH_FORMATS
@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_registry_that_is_away_is_an_outage(
    how: str,
    form: Json,
    kind: type[KafkaSpout],
    bootstrap: str,
    registry: LocalRegistry,
    mended: Mended,
    tmp_path: Path,
) -> None:
    schema_id = form.registered(registry)
    translator = form.translator(Registry(registry.url, timeout_ms=300))
    world = World(bootstrap, kind, tmp_path, translator, [framed(schema_id, n, form) for n in range(RECORDS)])

    def goes_away() -> None:
        forget()
        mended.append((SourceUnavailable, comes_back))  # not for an answer that takes too long before
        registry.kill() if how == "killed" else os.kill(registry.pid, signal.SIGSTOP)

    def comes_back() -> None:
        registry.start() if how == "killed" else os.kill(registry.pid, signal.SIGCONT)

    INTERRUPTIONS[BATCH + 3] = goes_away
    assert world.run().failures >= 2, "the interruption, and the outage"
    assert (world.counted, world.set_aside) == (each_once(), {})


@BOTH
@BOTH_FORMATS
def test_a_schema_that_is_registered_after_its_record_is_waited_for(
    form: Json, kind: type[KafkaSpout], bootstrap: str, registry: LocalRegistry, mended: Mended, tmp_path: Path
) -> None:
    first = form.registered(registry)
    translator = form.translator(registry.url)
    records = [framed(first + (n >= BATCH + 3), n, form) for n in range(RECORDS)]
    world = World(bootstrap, kind, tmp_path, translator, records)
    mended.append((None, lambda: registered_next(registry, first, form)))
    assert world.run().failures == 0
    assert (world.counted, world.set_aside) == (each_once(), {})


def registered_next(registry: LocalRegistry, first: int, form: Json = JSON) -> None:
    assert form.registered(registry) == first + 1


@BOTH
@BOTH_FORMATS
def test_an_id_that_was_found_unknown_is_so_for_all_attempts_at_the_batch(
    form: Json, kind: type[KafkaSpout], bootstrap: str, registry: LocalRegistry, mended: Mended, tmp_path: Path
) -> None:
    first = form.registered(registry)
    patient = Registry(registry.url, unknown_id_wait_ms=0)
    translator = form.translator(patient)
    late = (BATCH + 3, BATCH + 4, 3 * BATCH)
    world = World(bootstrap, kind, tmp_path, translator, [framed(first + (n in late), n, form) for n in range(RECORDS)])
    mended.append((None, lambda: registered_next(registry, first, form)))
    INTERRUPTIONS[BATCH + 5] = forget  # the attempt after the one that has found out
    assert world.run().failures == 2
    assert world.counted == each_once([n for n in range(RECORDS) if n not in late[:2]])
    assert sorted(world.set_aside) == list(late[:2]), "of the later batch it is known"
    assert all(f"does not know schema id {first + 1}; it is " in error for error in world.set_aside.values())
    assert try_again(world.topology(), tmp_path).failures == 0
    assert (world.counted, world.set_aside) == (each_once(), {})


@BOTH
def test_a_wrong_registry_ends_the_run(
    kind: type[KafkaSpout], bootstrap: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    wrong = Registry(registry.url.replace("/v7", "/no/v7"), unknown_id_wait_ms=0)
    translator = JsonTranslator("n long", registry=wrong, on_error="dead_letter")
    world = World(bootstrap, kind, tmp_path, translator, [framed(1, n) for n in range(BATCH + 1)], batch=BATCH + 1)
    with pytest.raises(RetriesExhausted, match=r"TX310 .*no/v7 does not know schema id 1; 11 of 11 values of topic"):
        world.run()
    assert (world.counted, world.set_aside) == (Counter(), {})


def test_records_of_other_formats_are_at_fault_by_themselves(
    bootstrap: str, registry: LocalRegistry, tmp_path: Path
) -> None:
    schema_id = JSON.registered(registry)
    of_avro = registry.register("strings", '"string"')
    translator = JsonTranslator("n long", registry=registry.url, on_error="dead_letter")
    bad = [b'{"n": 1}', framed(of_avro, 2), framed(schema_id, 3)[:-1], b"\0\0"]
    world = World(bootstrap, OpaqueKafkaSpout, tmp_path, translator, [framed(schema_id, 0), *bad])
    assert world.run().failures == 0
    assert world.counted == each_once([0])
    errors = world.set_aside
    assert "it has no schema id" in errors[1]
    assert (
        f"with schema id {of_avro}, is not a JSON object of 'n long': schema id {of_avro} is one of AVRO" in errors[2]
    )
    assert f"with schema id {schema_id}, is not a JSON object" in errors[3]
    assert "its schema id has 2 bytes, not 5" in errors[4]


@BOTH
@pytest.mark.parametrize("on_error", ["skip", "null"])
def test_what_is_recorded_as_unknown_is_so_without_letters(
    on_error: Literal["skip", "null"],
    kind: type[KafkaSpout],
    bootstrap: str,
    registry: LocalRegistry,
    mended: Mended,
    tmp_path: Path,
) -> None:
    first = JSON.registered(registry)
    patient = Registry(registry.url, unknown_id_wait_ms=0)
    translator = JsonTranslator("n long", registry=patient, on_error=on_error)
    late = (BATCH + 3, BATCH + 4, 3 * BATCH)
    world = World(bootstrap, kind, tmp_path, translator, [framed(first + (n in late), n) for n in range(RECORDS)])
    mended.append((None, lambda: registered_next(registry, first)))
    INTERRUPTIONS[BATCH + 5] = forget  # the attempt after the one that has found out
    assert world.run().failures == 2
    nulls: dict[Any, int] = {None: 2} if on_error == "null" else {}
    assert world.counted == each_once([n for n in range(RECORDS) if n not in late[:2]]) + Counter(nulls)
