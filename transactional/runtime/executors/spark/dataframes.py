"""Runs DataFrame bolts: turns the items for a bolt into a Spark DataFrame, and the returned DataFrame into items."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import RDD, TaskContext
from pyspark.sql import DataFrame, SparkSession

from transactional.model.arrow import from_ipc
from transactional.model.errors import BoltFailed, SchemaMismatch
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.user_code.failures import TaskFailed, guarding, make_error
from transactional.runtime.processing.staging import staged
from transactional.runtime.processing.tasks import run_dataframe_task
from transactional.runtime.spark.internals import end_quietly, map_in_arrow
from transactional.runtime.tasks.items import Item, Tuples
from transactional.runtime.tasks.program import AttemptInput, BoltSpec, TaskProgram
from transactional.topology.bolts.functions import BoltFunction
from transactional.topology.stages import Stage


def run_dataframe_bolt(
    session: SparkSession, program: TaskProgram, stage: Stage, rdd: RDD[Item], task_input: Callable[[], AttemptInput]
) -> RDD[Item]:
    """Apply a stage's DataFrame bolt to the items of `rdd` that are for it. Raises `BoltFailed`, `SchemaMismatch`."""
    bolt = program.bolts[stage.components[0]]
    [grouping] = bolt.inputs
    source = program.outputs_of(grouping.source)[grouping.stream]
    level, slots = stage.level, {program.slot_of[(stage.index, task)] for task in range(stage.task_count)}

    def ipc_data(items: Iterable[Item]) -> Iterator[tuple[bytes]]:
        tuples = (item for item in items if isinstance(item, Tuples))
        return ((item.data,) for item in tuples if item.level == level and item.slot in slots)

    batch = map_in_arrow(session.createDataFrame(rdd.mapPartitions(ipc_data), "ipc binary"), _decode, str(source))
    emitted = _apply(bolt, batch)
    pickled = map_in_arrow(emitted, _encode(program, stage, task_input), "item binary")
    return pickled.rdd.map(lambda row: pickle.loads(row.item))


def _apply(bolt: BoltSpec, batch: DataFrame) -> DataFrame:
    assert isinstance(bolt.bolt, BoltFunction)
    try:
        with guarding(bolt.id):
            emitted = bolt.bolt.function(batch)
    except TaskFailed as failed:
        raise make_error(failed.code, str(failed)) from failed.__cause__
    if not isinstance(emitted, DataFrame):
        raise BoltFailed(f"bolt {bolt.id!r} must return a DataFrame, it returned a {type(emitted).__name__}")
    if tuple(emitted.columns) != bolt.outputs[DEFAULT_STREAM].names:
        raise SchemaMismatch(
            f"bolt {bolt.id!r} declares the fields {bolt.outputs[DEFAULT_STREAM].names}, it returned {emitted.columns}"
        )
    return emitted


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for ipc in batch.column(0).to_pylist():
            yield from from_ipc(ipc)


def _encode(
    program: TaskProgram, stage: Stage, task_input: Callable[[], AttemptInput]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end_quietly()
        context = TaskContext.get()
        assert context is not None
        inputs = task_input()
        sent = run_dataframe_task(program, inputs, stage, context.partitionId(), batches)
        items = staged(program, inputs.attempt, sent, stage.task_count)
        yield pa.RecordBatch.from_pydict({"item": pa.array([pickle.dumps(item) for item in items], pa.binary())})

    return encode
