"""Cases of encoding: records depend on the values of tuples alone, wherever they are encoded."""

from __future__ import annotations

import json

import pyarrow as pa

from transactional.model.errors import SchemaMismatch
from transactional.testing.cases.register import NotOffered
from transactional.testing.sinks.trial import Row, SinkTrial, case, cases, copy_for_task, to_batch

ROWS: list[Row] = [("cat", 1), ("dog", -2), ("cat", 2**62)]
VALUES: dict[str, list[Row]] = {
    "NULL": [(None, 1), ("cat", None), (None, None)],
    "texts": [("", 1), (" a b ", 2), ('it\'s "quoted" \\ %s, {0};', 3), ("line\nline\ttab", 4), ("日本語 🦉", 5)],
    "numbers": [("low", -(2**63)), ("high", 2**63 - 1), ("zero", 0)],
}


@case
def encoding_is_pure(trial: SinkTrial) -> None:
    """The same tuples give the same records: once more, in parts, and with the copy of the sink that a task has."""
    sink, batch = trial.new_sink(), to_batch(ROWS)
    trial.note(f"the sink encodes {ROWS!r}")
    records = sink.encode(batch)
    task = copy_for_task(sink)
    trial.check_equal("encode() once more", sink.encode(batch).to_pylist(), records.to_pylist())
    trial.check_equal("encode() of a task", task.encode(batch).to_pylist(), records.to_pylist())
    parts = pa.concat_tables([sink.encode(batch.slice(0, 1)), sink.encode(batch.slice(1))])
    trial.check_equal("encode() of two parts", parts.to_pylist(), records.to_pylist())


@case
def fields_are_read_by_name(trial: SinkTrial) -> None:
    """A batch may have its columns in another order: fields are taken by their names."""
    leader = trial.lead().open()
    leader.commit(1, ROWS, ["count", "word"])
    leader.publish()
    trial.check_records(ROWS)


@case
def records_have_one_schema(trial: SinkTrial) -> None:
    """The records of all batches have the same columns and types, also where every value is NULL or no tuple comes."""
    sink = trial.new_sink()
    schema = sink.encode(to_batch(ROWS)).schema
    trial.note("the sink encodes no tuple")
    empty = sink.encode(to_batch([]))
    trial.check_equal("encode() of no tuple", empty.num_rows, 0)
    trial.check_equal("the schema of no record", empty.schema.remove_metadata(), schema.remove_metadata())
    trial.note("the sink encodes a tuple of NULLs")
    try:
        records = sink.encode(to_batch([(None, None)]))
    except SchemaMismatch as error:
        raise NotOffered(str(error)) from error
    trial.check_equal("the schema of NULLs", records.schema.remove_metadata(), schema.remove_metadata())


@cases(VALUES)
def values_arrive(trial: SinkTrial, name: str) -> None:
    """Readers see each value as it was, or the sink refuses the tuple before the commit, with `SchemaMismatch`."""
    leader = trial.lead().open()
    try:
        leader.commit(1, VALUES[name])
    except SchemaMismatch as error:
        raise NotOffered(str(error)) from error
    leader.publish()
    trial.check_records(VALUES[name])


@case
def the_identity_is_that_of_the_target(trial: SinkTrial) -> None:
    """`identity` can be stored as JSON, and is the same in each process that publishes to the target."""
    sink = trial.new_sink()
    trial.note("the sink is prepared in two processes, and copied to a task")
    identity = json.dumps(dict(sink.identity()), sort_keys=True)
    second_identity = json.dumps(dict(trial.new_sink().identity()), sort_keys=True)
    trial.check_equal("identity() of another process", second_identity, identity)
    copy = json.dumps(dict(copy_for_task(sink).identity()), sort_keys=True)
    trial.check_equal("identity() of a copy", copy, identity)
