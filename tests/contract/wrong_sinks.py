"""A sink in memory, a keyed one, and sinks that are wrong in one thing, with the case of `check_sink` that fails."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from sinks import KafkaSink, KeyedSink, Sink
from sinks.kafka.publisher import KafkaPublisher
from transactional.core.ports import PublishedRecords, SinkOwner, SinkPosition
from transactional.core.store.outbox import Publication
from transactional.errors import SinkUnavailable
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema

Row = tuple[object, ...]


@dataclass
class Target:
    """Published rows with their transactions, by key if they have one; positions and fences by sink."""

    rows: list[tuple[int, Row]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    positions: dict[str, SinkPosition] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    fails: bool = False
    """The next publication fails."""

    def fail(self) -> None:
        """Raise an error if the publication is to fail."""
        if self.fails:
            self.fails = False
            raise ConnectionError("no answer")


TARGETS: dict[str, Target] = {}


def read(target: str) -> list[Row]:
    """What readers of a target see."""
    return [row for _, row in TARGETS.setdefault(target, Target()).rows]


def break_publication(sink: Sink) -> None:
    """Let the next publication of a sink fail."""
    assert isinstance(sink, ListSink | KeyedListSink)
    sink.target.fails = True


def lose_kafka_answer(sink: Sink) -> None:
    """Let the next Kafka transaction be committed, and its answer be lost."""
    assert isinstance(sink, KafkaSink)
    publisher = sink._publisher
    assert publisher is not None

    def commit() -> None:
        KafkaPublisher._commit(publisher)
        raise SinkUnavailable("no answer", is_fenced=True)

    publisher._commit = commit  # type: ignore[method-assign]


class ListSink(Sink):
    """Appends rows to a list, in one step with the position. An answer may be lost."""

    kind = "list sink"
    can_go_back = True
    can_send = True
    owner: SinkOwner

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def target(self) -> Target:
        return TARGETS.setdefault(self.name, Target())

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        fields.require(["word", "count"], of="the stream", used_by=used_by)

    def identity(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "name": self.name}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.table({name: batch[name] for name in ("word", "count")})

    def id_of(self, owner: SinkOwner) -> str:
        return f"{owner.topology_id}/{owner.sink}"

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        return self.target.positions.get(self.id_of(owner))

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        self.owner = owner
        self.target.fences[self.id_of(owner)] = owner.fence_id

    def position(self) -> SinkPosition | None:
        return self.target.positions.get(self.id_of(self.owner))

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        self.check_fence()
        self.write(group)
        try:
            self.target.fail()
        except ConnectionError as error:
            raise SinkUnavailable("no answer", is_fenced=True) from error

    def check_fence(self) -> None:
        if self.target.fences[self.id_of(self.owner)] != self.owner.fence_id:
            raise SinkUnavailable("another leader", is_fenced=True)

    def write(self, group: Sequence[PublishedRecords]) -> None:
        self.append(group)
        self.move(group[-1].publication)

    def append(self, group: Sequence[PublishedRecords]) -> None:
        for published in group:
            txid = published.publication.attempt.txid
            self.target.rows += [(txid, tuple(row.values())) for row in published.records.to_pylist()]

    def move(self, publication: Publication) -> None:
        self.target.positions[self.id_of(self.owner)] = SinkPosition(self.owner.store_id, publication)

    def go_back(self, txid: TxId, fence_id: AttemptId) -> None:
        self.target.fences[self.id_of(self.owner)] = fence_id
        self.target.rows = [(row_txid, row) for row_txid, row in self.target.rows if row_txid <= txid]

    def send(self, records: pa.Table) -> Mapping[int, str]:
        self.target.rows += [(0, tuple(row.values())) for row in records.to_pylist()]
        return {}

    def close(self) -> None:
        """Nothing is held."""


class KeyedListSink(KeyedSink):
    """Appends rows to a list unless it has their keys. It takes some of a group, and then an answer may be lost."""

    kind = "keyed list sink"

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def target(self) -> Target:
        return TARGETS.setdefault(self.name, Target())

    def identity(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "name": self.name}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.table({name: batch[name] for name in ("word", "count")})

    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        for key, row in zip(keys, records.to_pylist(), strict=True):
            try:
                self.post(key, tuple(row.values()))
                self.target.fail()
            except ConnectionError as error:
                raise SinkUnavailable("no answer") from error

    def post(self, key: str, row: Row) -> None:
        if key not in self.target.keys:
            self.target.keys.add(key)
            self.target.rows.append((0, row))


# --- encoding ---------------------------------------------------------------------------------------------------------


class FieldsByPlace(ListSink):
    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"word": batch.column(0), "count": batch.column(1)})


class Numbering(ListSink):
    encoded: ClassVar[int] = 0

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        Numbering.encoded += 1
        return super().encode(batch).append_column("number", pa.array([self.encoded] * len(batch)))


class InferredTypes(ListSink):
    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_pylist(super().encode(batch).to_pylist())


class NullAsEmptyText(ListSink):
    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"word": batch["word"].fill_null(""), "count": batch["count"]})


class NumbersOfJavaScript(ListSink):
    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        counts = [None if count is None else int(float(count)) for count in batch["count"].to_pylist()]
        return pa.table({"word": batch["word"], "count": pa.array(counts, pa.decimal128(38))})


class StrippedTexts(ListSink):
    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        words = [word and word.strip() for word in batch["word"].to_pylist()]
        return pa.table({"word": pa.array(words, pa.string()), "count": batch["count"]})


class RandomIdentity(ListSink):
    def identity(self) -> Mapping[str, Any]:
        return {"name": self.name, "client": uuid.uuid4().hex}


# --- publishing -------------------------------------------------------------------------------------------------------


class MadeUpPosition(ListSink):
    def position(self) -> SinkPosition | None:
        nothing = Publication("", TransactionAttempt(TxId(1), AttemptId(1)))
        return super().position() or SinkPosition(self.owner.store_id, nothing)


class NoPosition(ListSink):
    def move(self, publication: Publication) -> None:
        """Forget it."""


class FirstPosition(ListSink):
    def write(self, group: Sequence[PublishedRecords]) -> None:
        self.append(group)
        self.move(group[0].publication)


class FromTheEnd(ListSink):
    def append(self, group: Sequence[PublishedRecords]) -> None:
        super().append(group[::-1])


class KeyedByContent(KeyedListSink):
    def post(self, key: str, row: Row) -> None:
        super().post(str(row), row)


class OnePage(ListSink):
    def append(self, group: Sequence[PublishedRecords]) -> None:
        super().append([replace(published, records=published.records.slice(0, 1_000)) for published in group])


class WritesWhenStaged(ListSink):
    def stage(self, attempt: TransactionAttempt, records: pa.Table) -> pa.Table:
        self.target.rows += [(attempt.txid, tuple(row.values())) for row in records.to_pylist()]
        return records

    def append(self, group: Sequence[PublishedRecords]) -> None:
        """Do nothing."""


class PositionFirst(ListSink):
    def write(self, group: Sequence[PublishedRecords]) -> None:
        self.move(group[-1].publication)
        try:
            self.target.fail()
        except ConnectionError as error:
            raise SinkUnavailable("no answer", is_fenced=True) from error
        self.append(group)


class PositionApart(ListSink):
    def write(self, group: Sequence[PublishedRecords]) -> None:
        self.append(group)
        try:
            self.target.fail()
        except ConnectionError as error:
            raise SinkUnavailable("no answer", is_fenced=True) from error
        self.move(group[-1].publication)


class UnknownOutcomeAsFailure(ListSink):
    def publish(self, group: Sequence[PublishedRecords]) -> None:
        try:
            super().publish(group)
        except SinkUnavailable as error:
            error.is_fenced = False
            raise


class ErrorsOfItsOwn(KeyedListSink):
    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        for key, row in zip(keys, records.to_pylist(), strict=True):
            self.target.fail()
            self.post(key, tuple(row.values()))


class SilentLoss(KeyedListSink):
    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        try:
            super().deliver(keys, records)
        except SinkUnavailable:
            return


class CreatesWhatIsGone(ListSink):
    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        super().open(owner, has_published=has_published)
        if has_published and self.position() is None:
            self.move(Publication("", TransactionAttempt(TxId(1), AttemptId(1))))


class OnePositionForAll(ListSink):
    def id_of(self, owner: SinkOwner) -> str:
        return owner.topology_id


class OnePositionOfASink(ListSink):
    def id_of(self, owner: SinkOwner) -> str:
        return owner.sink


class ClosesWhatItOpened(ListSink):
    def close(self) -> None:
        del self.owner


class LosesWhatItSends(ListSink):
    def send(self, records: pa.Table) -> Mapping[int, str]:
        return {}


# --- leaders ----------------------------------------------------------------------------------------------------------


class LookingFences(ListSink):
    def look(self, owner: SinkOwner) -> SinkPosition | None:
        self.open(owner, has_published=False)
        return super().look(owner)


class RandomKeys(KeyedListSink):
    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        super().deliver([uuid.uuid4().hex for _ in keys], records)


class NoFence(ListSink):
    def check_fence(self) -> None:
        """Believe that nobody else leads."""


class OpensOnce(ListSink):
    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        if self.target.fences.get(self.id_of(owner)) == owner.fence_id:
            raise SinkUnavailable("it is open")
        super().open(owner, has_published=has_published)


class StoreOfWhoLooks(ListSink):
    def look(self, owner: SinkOwner) -> SinkPosition | None:
        position = super().look(owner)
        return position and replace(position, store_id=owner.store_id)


class KeysWithoutSink(KeyedListSink):
    without = 2

    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        parts = [key.split("/") for key in keys]
        super().deliver(["/".join((*key[: self.without], *key[self.without + 1 :])) for key in parts], records)


class KeysWithoutTopology(KeysWithoutSink):
    without = 1


class NumberedKeys(KeyedListSink):
    """Keys are numbers of requests: a late record has the key of another one."""

    requests = 0

    def deliver(self, keys: Sequence[str], records: pa.Table) -> None:
        numbers = [f"{self.owner_id}-{self.requests + number}" for number in range(len(keys))]
        self.requests += len(keys)
        super().deliver(numbers, records)

    @property
    def owner_id(self) -> str:
        return "" if self._owner is None else f"{self._owner.topology_id}/{self._owner.sink}/{self._owner.fence_id}"


# --- rewinds ----------------------------------------------------------------------------------------------------------


class KeyedByTxid(KeyedListSink):
    def publish(self, group: Sequence[PublishedRecords]) -> None:
        for published in group:
            txid = published.publication.attempt.txid
            publication = replace(published.publication, attempt=TransactionAttempt(txid, AttemptId(txid)))
            super().publish([replace(published, publication=publication)])


class PositionByTxid(ListSink):
    can_go_back = False

    def go_back(self, txid: TxId, fence_id: AttemptId) -> None:
        """Leave all rows."""

    def write(self, group: Sequence[PublishedRecords]) -> None:
        position = self.position()
        newest = 0 if position is None else position.publication.attempt.txid
        if later := [published for published in group if published.publication.attempt.txid > newest]:
            super().write(later)


class GoesNowhere(ListSink):
    def go_back(self, txid: TxId, fence_id: AttemptId) -> None:
        self.target.fences[self.id_of(self.owner)] = fence_id


class GoesTooFar(ListSink):
    def go_back(self, txid: TxId, fence_id: AttemptId) -> None:
        last = max(row_txid for row_txid, _ in self.target.rows)
        super().go_back(TxId(min(int(txid), last - 1)), fence_id)


class RestoresTheFence(ListSink):
    def go_back(self, txid: TxId, fence_id: AttemptId) -> None:
        super().go_back(txid, fence_id)
        self.target.fences = dict.fromkeys(self.target.fences, 1)


AT_ONCE, NEXT = "a_publication_that_fails(at once)", "a_publication_that_fails(in the next process)"
WRONG: dict[type[Sink], str] = {
    FieldsByPlace: "fields_are_read_by_name",
    Numbering: "encoding_is_pure",
    InferredTypes: "records_have_one_schema",
    NullAsEmptyText: "values_arrive(NULL)",
    NumbersOfJavaScript: "values_arrive(numbers)",
    StrippedTexts: "values_arrive(texts)",
    RandomIdentity: "the_identity_is_that_of_the_target",
    MadeUpPosition: "a_new_target_is_empty",
    NoPosition: "each_record_is_seen_once",
    FirstPosition: "several_transactions_are_published_together",
    FromTheEnd: "several_transactions_are_published_together",
    KeyedByContent: "equal_records_are_all_seen",
    OnePage: "many_records_are_all_seen",
    WritesWhenStaged: "attempts_that_fail_are_not_seen",
    PositionFirst: AT_ONCE,
    PositionApart: NEXT,
    UnknownOutcomeAsFailure: AT_ONCE,
    ErrorsOfItsOwn: AT_ONCE,
    SilentLoss: AT_ONCE,
    CreatesWhatIsGone: "a_target_that_is_gone_is_not_replaced",
    OnePositionForAll: "another_publisher_of_the_target(sink)",
    OnePositionOfASink: "another_publisher_of_the_target(topology)",
    KeysWithoutSink: "another_publisher_of_the_target(sink)",
    KeysWithoutTopology: "another_publisher_of_the_target(topology)",
    ClosesWhatItOpened: "closing_repeats",
    LosesWhatItSends: "sending_without_a_transaction",
    LookingFences: "looking_fences_nobody",
    RandomKeys: "what_is_published_is_not_published_again",
    NoFence: "an_earlier_leader_is_fenced",
    NumberedKeys: "late_records_have_the_same_keys",
    OpensOnce: "the_same_leader_opens_again",
    StoreOfWhoLooks: "the_target_of_another_store",
    KeyedByTxid: "transactions_come_again",
    PositionByTxid: "transactions_come_again",
    GoesNowhere: "transactions_come_again",
    GoesTooFar: "going_back_repeats",
    RestoresTheFence: "going_back_fences",
}
"""The case that fails, by the sink that is wrong."""
