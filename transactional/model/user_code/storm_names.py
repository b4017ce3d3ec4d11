"""Names of Storm, Spark and pandas, for those who come from there: what is called otherwise here is an error of one
line that says how."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from transactional.model.errors import ConfigError
from transactional.model.schema import did_you_mean

_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OPTIONS: Final = "the options of the topology, `build(config={…})`"
_SPARKS: Final = "nothing: Spark distributes its own resources"
ONLY_COUNTERS: Final = (
    '`metrics.counter("parsed")`; there are no gauges, timers, meters and histograms: what bolts measure has to count '
    "exactly once"
)
_BY_POSITION: Final = "`t[0]`"
_BY_NAME: Final = '`t["word"]`, or `t.word`'

_CORE: Final = "transactional.reliable"
_TRIDENT: Final = "transactional.trident"
_FUNCTION: Final = "a Python function of a row: `stream.map(f, …)`, `flat_map`, `filter`, `each` or `peek`"
_FILTER: Final = '`stream.filter(f)` with a function of a row, or with an expression such as `field("n") > 3`'
_CLI: Final = "the command line, `transactional run MODULE:FUNCTION`, or `run_topology(topology)`"
_DECLARED: Final = 'an attribute of the bolt\'s class: `output = "word string, count long"`'
_GROUPING: Final = '`CustomStreamGrouping`; the others are methods: `set_bolt(…).fields_grouping("words", "word")`'
_SPOUT_CONTRACT: Final = "a contract in `spouts`, which is one class for both sides"
_STATE: Final = "a state in `state`, such as `DeltaMapState`; your own extends `transactional.core.ports.State`"
_WINDOW: Final = "`tumbling`, `sliding` or `count`: an argument of set_windowed_bolt, or of `stream.window(…)`"
_NOTHING: Final = "nothing: there is no cluster of its own, and tuples travel in Arrow's format"
_QUERY: Final = "`@topology.query(…)` of a TridentTopology, and `transactional serve` or `QueryClient`"
_JOIN: Final = "`JoinBolt` for windows; streams have `topology.join(…)`"
_AGGREGATED: Final = (
    '`persistent_aggregate(state, n=Count(), total=Sum("amount"))` for all batches together, `aggregate(…)` for each '
    "batch alone"
)
_NO_PARTITIONS: Final = (
    "nothing: rows are located by their key, in Delta by the bounds of it that each file has. To keep days apart, let "
    "the day be a column of the key: `key='day date, word string'`; who reads by partitions reads a copy of the table"
)
_COLUMNS_OF_STATES: Final = "'key' and 'values', such as `key='word string', values='count long'`"


def _from(module: str, name: str) -> str:
    return f"`from {module} import {name}`"


STORM_CLASSES: Final[Mapping[str, str]] = {
    # core
    **dict.fromkeys(("IRichBolt", "BaseRichBolt", "IBolt", "RichBolt"), _from(_CORE, "RichBolt")),
    **dict.fromkeys(("IBasicBolt", "BaseBasicBolt"), _from("transactional", "BasicBolt")),
    **dict.fromkeys(("IRichSpout", "BaseRichSpout", "ISpout", "QueueSpout"), _from(_CORE, "QueueSpout")),
    **dict.fromkeys(("ICheckpointSpout", "CheckpointSpout"), "nothing: every transaction is a checkpoint"),
    **dict.fromkeys(("IStatefulBolt", "BaseStatefulBolt"), _from("transactional", "StatefulBolt")),
    **dict.fromkeys(
        ("BaseWindowedBolt", "IWindowedBolt", "IStatefulWindowedBolt", "BaseStatefulWindowedBolt"),
        _from("transactional", "WindowedBolt"),
    ),
    "TopologyBuilder": (
        "`from transactional.reliable import TopologyBuilder` for at least once, `TransactionalTopologyBuilder` for "
        "exactly once"
    ),
    "SpoutOutputCollector": _from(_CORE, "SpoutCollector"),
    "BasicOutputCollector": _from("transactional", "OutputCollector"),
    "BatchOutputCollector": _from("transactional", "OutputCollector"),
    **dict.fromkeys(("Fields", "OutputFieldsDeclarer"), _DECLARED),
    "Values": "the values themselves: `collector.emit(word, 1)`, or a tuple that a function returns",
    "MessageId": "the number that `QueueSpout` gives each message",
    "Config": _OPTIONS,
    **dict.fromkeys(("StormSubmitter", "StormTopology", "ConfigurableTopology"), _CLI),
    **dict.fromkeys(("LocalCluster", "Testing", "CompleteTopologyParam"), "`transactional.testing.complete_topology`"),
    **dict.fromkeys(("StreamGrouping", "PartialKeyGrouping", "ShuffleGrouping"), _GROUPING),
    **dict.fromkeys(("Duration", "WindowConfiguration"), _WINDOW),
    "Window": _from("transactional", "TupleWindow"),
    "State": _STATE,
    "GlobalStreamId": "the names of a component and of its stream",
    **dict.fromkeys(("KeyValueStateProvider", "StateProvider", "RedisKeyValueState"), "the option 'state_provider'"),
    **dict.fromkeys(("CountMetric", "MultiCountMetric", "IMetric", "Counter"), "`context.metrics.counter(…)`"),
    **dict.fromkeys(
        ("Gauge", "Timer", "Meter", "Histogram"),
        "`context.metrics.counter(…)`; there are no other kinds: what bolts measure has to count exactly once",
    ),
    **dict.fromkeys(
        ("ITaskHook", "BaseTaskHook", "BaseWorkerHook"), "an observer of the run: `run_topology(observers=…)`"
    ),
    **dict.fromkeys(("ShellBolt", "ShellSpout", "Flux", "Nimbus", "Kryo"), _NOTHING),
    # transactional
    **dict.fromkeys(("IBatchBolt", "BaseBatchBolt", "BaseTransactionalBolt"), _from("transactional", "BatchBolt")),
    "ICommitter": "`set_committer_bolt(…)`: which bolt is a committer is said where it is declared",
    **dict.fromkeys(("ITransactionalSpout", "BaseTransactionalSpout"), _from("spouts", "TransactionalSpout")),
    **dict.fromkeys(
        ("IPartitionedTransactionalSpout", "BasePartitionedTransactionalSpout"),
        _from("spouts", "PartitionedTransactionalSpout"),
    ),
    **dict.fromkeys(
        ("IOpaquePartitionedTransactionalSpout", "BaseOpaquePartitionedTransactionalSpout"),
        _from("spouts", "OpaquePartitionedTransactionalSpout"),
    ),
    "ICommitterTransactionalSpout": "the method `committed` of a spout",
    "MemoryTransactionalSpout": _from("spouts", "MemoryTransactionalSpout"),
    # Kafka
    **dict.fromkeys(
        ("KafkaSpout", "KafkaTridentSpoutOpaque", "OpaqueTridentKafkaSpout"), _from("spouts", "OpaqueKafkaSpout")
    ),
    **dict.fromkeys(
        ("KafkaTridentSpoutTransactional", "TransactionalTridentKafkaSpout"), _from("spouts", "TransactionalKafkaSpout")
    ),
    **dict.fromkeys(
        ("KafkaSpoutConfig", "KafkaTridentSpoutConfig", "SpoutConfig", "TridentKafkaConfig"),
        "arguments of the spout: `OpaqueKafkaSpout(servers, topics, …)`",
    ),
    **dict.fromkeys(("RecordTranslator", "SimpleRecordTranslator", "Scheme"), _from("spouts", "SimpleTranslator")),
    "ByTopicRecordTranslator": _from("spouts", "ByTopicTranslator"),
    **dict.fromkeys(("KafkaBolt", "TridentKafkaState"), "nothing: there is no sink for Kafka; send from a RichBolt"),
    # Trident
    "TridentTopology": _from(_TRIDENT, "TridentTopology"),
    **dict.fromkeys(
        ("Stream", "GroupedStream", "TridentState"), _from(_TRIDENT, "Stream, GroupedStream, TridentState")
    ),
    **dict.fromkeys(("TridentTuple", "TridentCollector", "Function", "BaseFunction", "MapFunction"), _FUNCTION),
    **dict.fromkeys(("FlatMapFunction", "Consumer", "TridentOperation", "BaseOperation"), _FUNCTION),
    **dict.fromkeys(("Filter", "BaseFilter", "FilterNull", "Equals", "Negate"), _FILTER),
    "Debug": "`stream.peek(print)`",
    "CombinerAggregator": _from(_TRIDENT, "Combiner"),
    "ReducerAggregator": _from(_TRIDENT, "Reducer"),
    **dict.fromkeys(("Aggregator", "BaseAggregator"), _from(_TRIDENT, "BatchAggregator")),
    **dict.fromkeys(("Count", "Sum", "Min", "Max"), _from(_TRIDENT, "Count, Sum, Min, Max")),
    "FirstN": "`stream.first_n(10)`",
    "MultiReducer": _from(_TRIDENT, "MultiReducer"),
    **dict.fromkeys(("StateFactory", "StateUpdater", "BaseStateUpdater", "StateSpec", "ReadOnlyState"), _STATE),
    **dict.fromkeys(("OpaqueMap", "TransactionalMap", "NonTransactionalMap", "SnapshottableMap", "CachedMap"), _STATE),
    **dict.fromkeys(("IBackingMap", "Snapshottable", "MapCombiner", "LRUMemoryMapState", "StateType"), _STATE),
    "MemoryMapState": _from("state", "MemoryMapState"),
    "OpaqueValue": _from("state", "OpaqueValue"),
    **dict.fromkeys(("QueryFunction", "BaseQueryFunction", "MapGet", "TupleCollectionGet"), "`stream.state_query(…)`"),
    **dict.fromkeys(("LocalDRPC", "DRPCClient", "DRPCSpout", "LinearDRPCTopologyBuilder", "ReturnResults"), _QUERY),
    **dict.fromkeys(("TumblingDurationWindow", "SlidingDurationWindow"), _WINDOW),
    **dict.fromkeys(("TumblingCountWindow", "SlidingCountWindow", "WindowConfig"), _WINDOW),
    **dict.fromkeys(("InMemoryWindowsStoreFactory", "WindowsStore"), "nothing: open windows are rows of a state"),
    **dict.fromkeys(("JoinType", "JoinerMultiReducer"), _JOIN),
    **dict.fromkeys(("ITridentSpout", "IBatchSpout", "IPartitionedTridentSpout"), _SPOUT_CONTRACT),
    **dict.fromkeys(("IOpaquePartitionedTridentSpout", "ITridentDataSource", "FixedBatchSpout"), _SPOUT_CONTRACT),
}
"""What Storm's classes are here, as far as `transactional` itself has no class of the name."""
IN_BOLTS: Final[Mapping[str, str]] = {
    "getThisTaskIndex": "'task_index'",
    "getThisTaskId": "'task_index', which counts from 0 in each component",
    "getThisComponentId": "'component_id'",
    "getComponentTasks": "'subscribers', the numbers of tasks",
    "getStormId": "'topology_id'",
    **dict.fromkeys(("getTaskData", "getExecutorData", "getResource", "setTaskData"), "'shared'"),
    **dict.fromkeys(("ack", "reportError"), "nothing: a batch is acked as a whole, once its transaction is committed"),
    "fail": "`raise FailedException(…)`, which fails the batch",
    **dict.fromkeys(("getString", "getLong", "getInteger", "getDouble", "getValue", "getBoolean"), _BY_POSITION),
    **dict.fromkeys(("getStringByField", "getLongByField", "getIntegerByField"), _BY_NAME),
    **dict.fromkeys(("getDoubleByField", "getValueByField", "getBooleanByField"), _BY_NAME),
    **dict.fromkeys(("registerCounter", "registerMetric", "registerMeter"), '`metrics.counter("parsed")`'),
    **dict.fromkeys(("registerGauge", "registerTimer", "registerHistogram"), ONLY_COUNTERS),
    "getSourceComponent": "'source'",
    "getSourceStreamId": "'stream'",
    "getValues": "'values'",
    "getFields": "'fields'",
}
"""What bolts are given: by Storm's name what it is here, where it is more than the name in lower case."""
OF_BUILDERS: Final[Mapping[str, str]] = {
    "buildTopology": "`build()`",
    "createTopology": "`build()`",
    "getSpoutDeclarer": "'parallelism', an argument of the builder",
    "setNumTasks": "'parallelism', an argument of set_bolt",
    **dict.fromkeys(("setMaxTaskParallelism", "setMaxSpoutPending", "setDebug"), _OPTIONS),
    **dict.fromkeys(("addConfiguration", "addConfigurations"), _OPTIONS),
    **dict.fromkeys(("setCPULoad", "setMemoryLoad", "addSharedMemory", "addResource"), _SPARKS),
}
OF_METRICS: Final[Mapping[str, str]] = dict.fromkeys(("gauge", "timer", "meter", "histogram"), ONLY_COUNTERS)
OF_STREAMS: Final[Mapping[str, str]] = {
    "newDRPCStream": '`@topology.query("words", "line string")`, for a function of the stream of questions',
    "newValuesStream": "`new_values()`",
    **dict.fromkeys(("chainedAgg", "chainEnd"), '`aggregate(n=Count(), total=Sum("amount"))`, all aggregates at once'),
    "applyAssembly": "`apply(f)`; for FirstN it is `first_n(10)`",
    "name": '`named("x")`',
    "min": '`min_by("field")`, or `min_by(function)` of a row',
    "max": '`max_by("field")`, or `max_by(function)` of a row',
    "tumblingWindow": '`window(tumbling("5 minutes"))`',
    "slidingWindow": '`window(sliding("1 hour", every="5 minutes"))`',
    "getOutputFields": "'fields'",
    **dict.fromkeys(("setCPULoad", "setMemoryLoad", "addSharedMemory", "addResource"), _SPARKS),
    **dict.fromkeys(("agg", "count", "sum", "avg", "mean"), _AGGREGATED),
    "where": "'filter'",
    "select": "'project'",
    "explode": "'flat_map'",
    **dict.fromkeys(("withColumn", "assign"), '`with_columns(double=field("n") * 2)`'),
    **dict.fromkeys(("writeStream", "foreachBatch"), "`persist(state)`, which makes each tuple a row of a table"),
    **dict.fromkeys(
        ("dropDuplicates", "dropDuplicatesWithinWatermark", "drop_duplicates", "distinct"),
        '`state_query(seen, on="id", when="before")`, and a filter of what is NULL',
    ),
    "withWatermark": '`new_stream(…, event_time="at", max_delay="5 minutes")`',
}
OF_STATES: Final[Mapping[str, str]] = {
    "agg": '`aggregate(n=Count(), total=Sum("amount"))`, with aggregates of `state`',
    "avg": '`mean("amount")`',
    **dict.fromkeys(("first", "last"), '`aggregate(amount=Last("amount"))`, or First: `from state import First, Last`'),
}
ARGUMENTS_OF_STATES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("partition_by", "partitionBy", "partition_columns", "partitions"), _NO_PARTITIONS),
    **dict.fromkeys(("zorder_by", "z_order", "cluster_by"), _NO_PARTITIONS),
    **dict.fromkeys(("mode", "overwrite"), "nothing: rows are merged by their key, and written exactly once"),
    **dict.fromkeys(("schema", "merge_schema", "schema_mode", "mergeSchema"), _COLUMNS_OF_STATES),
    **dict.fromkeys(("path", "uri", "location"), "'table', the first argument"),
    **dict.fromkeys(("primary_key", "keys", "merge_keys"), "'key'"),
    **dict.fromkeys(("options", "credentials", "hadoop_conf"), "'storage_options'"),
    **dict.fromkeys(("configuration", "table_properties"), "'properties'"),
    "ttl": "'expires' and 'after': `expires=\"at\", after=\"30 days\"`",
}
"""Arguments of states that have another name here, or that there are not."""
_TO_DECLARE: Final[Mapping[str, str]] = {
    "declareOutputFields": 'an attribute of the class: `output = "word string, count long"`',
    "getOutputFields": 'an attribute of the class: `output = "word string, count long"`',
    "getComponentConfiguration": _OPTIONS,
}
_CONFIGURATIONS: Final = frozenset({"conf", "config", "storm_conf", "stormConf", "topo_conf", "topoConf", "map"})


class NoSuchName(ConfigError, AttributeError):
    """An object has no attribute of this name; `hasattr` is False, as for any other."""


class StormNames:
    """Base of what bolts are given: an attribute that it has under another name than in Storm is an error with ours."""

    __slots__ = ()
    _elsewhere: ClassVar[Mapping[str, str]] = IN_BOLTS

    if not TYPE_CHECKING:  # type checkers report by themselves what is missing

        def __getattr__(self, name: str) -> Any:
            raise no_such_name(type(self), name, self._elsewhere)


class NamesOfBuilders(StormNames):
    """The same for builders of topologies."""

    __slots__ = ()
    _elsewhere = OF_BUILDERS


class NamesOfMetrics(StormNames):
    """The same for the metrics of a bolt."""

    __slots__ = ()
    _elsewhere = OF_METRICS


class NamesOfStreams(StormNames):
    """The same for streams."""

    __slots__ = ()
    _elsewhere = OF_STREAMS


class NoSuchArgument(ConfigError, TypeError):
    """A class takes no argument of this name."""


class NamesOfStates(StormNames):
    """The same for states, and for their arguments."""

    __slots__ = ()
    _elsewhere = OF_STATES

    if not TYPE_CHECKING:

        def __new__(cls, *_given: Any, **named: Any) -> Any:
            check_arguments(cls, named, ARGUMENTS_OF_STATES)
            return super().__new__(cls)


def no_such_name(kind: type, name: str, elsewhere: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that an object does not have."""
    if name.startswith("_"):
        return AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    ours = in_lower_case(name)
    if name in elsewhere:
        hint = f"; here it is {elsewhere[name]}"
    elif ours != name and hasattr(kind, ours):
        hint = f"; here it is {ours!r}"
    else:
        hint = did_you_mean(name, [each for each in dir(kind) if not each.startswith("_")])
    return NoSuchName(f"{kind.__name__} has no {name!r}{hint}")


def check_arguments(kind: type, named: Iterable[str], elsewhere: Mapping[str, str]) -> None:
    """Raise `NoSuchArgument` for the name of an argument that a class does not take."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in parameters]
    for name in named:
        if name not in known:
            hint = f"; here it is {elsewhere[name]}" if name in elsewhere else did_you_mean(name, known)
            raise NoSuchArgument(f"{kind.__name__} takes no argument {name!r}{hint}")


def in_lower_case(name: str) -> str:
    """`partitionBy` is `partition_by`."""
    return _CAPITAL.sub("_", name).lower()


def check_names(kind: type) -> None:
    """Raise `ConfigError` for a class of a user with methods that nobody would call, because Storm calls them so."""
    for name, member in vars(kind).items():
        ours = in_lower_case(name)
        if name in _TO_DECLARE:
            raise ConfigError(f"{kind.__name__} defines {name!r}; here it is {_TO_DECLARE[name]}")
        if ours != name and any(ours in vars(base) for base in kind.__mro__[1:]):
            raise ConfigError(f"{kind.__name__} defines {name!r}, which is never called; here it is {ours!r}")
        if name in ("prepare", "open") and inspect.isfunction(member):
            _check_parameters(kind, name, list(inspect.signature(member).parameters))


def _check_parameters(kind: type, name: str, parameters: list[str]) -> None:
    """Storm passes the configuration first."""
    if len(parameters) > 1 and parameters[1] in _CONFIGURATIONS:
        ours = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
        shown = "" if ours is None else f"; here it is `{name}({', '.join(inspect.signature(ours).parameters)})`"
        raise ConfigError(f"{kind.__name__}.{name} takes {parameters[1]!r} first, as in Storm{shown}")


def no_such_class(name: str) -> ImportError | None:
    """The error for a class of Storm's that `transactional` does not have; None if Storm has none of this name, either.

    An `AttributeError` would lose its text in an import.
    """
    here = STORM_CLASSES.get(name)
    return (
        None
        if here is None
        else ImportError(f"transactional has no {name!r}: Storm's class of that name is {here} here")
    )
