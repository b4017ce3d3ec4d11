"""Hints for users who know Storm, Spark or pandas: a name from there raises an error that says the name here.

The tables map foreign names of classes, methods and arguments to their equivalents. Classes of the framework derive
from `StormNames` or one of its subclasses to raise such errors, and `check_names` checks the classes of users.
"""

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


def _import_statement(module: str, name: str) -> str:
    return f"`from {module} import {name}`"


STORM_CLASSES: Final[Mapping[str, str]] = {
    # core
    **dict.fromkeys(("IRichBolt", "BaseRichBolt", "IBolt", "RichBolt"), _import_statement(_CORE, "RichBolt")),
    **dict.fromkeys(("IBasicBolt", "BaseBasicBolt"), _import_statement("transactional", "BasicBolt")),
    **dict.fromkeys(("IRichSpout", "BaseRichSpout", "ISpout", "QueueSpout"), _import_statement(_CORE, "QueueSpout")),
    **dict.fromkeys(("ICheckpointSpout", "CheckpointSpout"), "nothing: every transaction is a checkpoint"),
    **dict.fromkeys(("IStatefulBolt", "BaseStatefulBolt"), _import_statement("transactional", "StatefulBolt")),
    **dict.fromkeys(
        ("BaseWindowedBolt", "IWindowedBolt", "IStatefulWindowedBolt", "BaseStatefulWindowedBolt"),
        _import_statement("transactional", "WindowedBolt"),
    ),
    "TopologyBuilder": (
        "`from transactional.reliable import TopologyBuilder` for at least once, `TransactionalTopologyBuilder` for "
        "exactly once"
    ),
    "SpoutOutputCollector": _import_statement(_CORE, "SpoutCollector"),
    "BasicOutputCollector": _import_statement("transactional", "OutputCollector"),
    "BatchOutputCollector": _import_statement("transactional", "OutputCollector"),
    **dict.fromkeys(("Fields", "OutputFieldsDeclarer"), _DECLARED),
    "Values": "the values themselves: `collector.emit(word, 1)`, or a tuple that a function returns",
    "MessageId": "the number that `QueueSpout` gives each message",
    "Config": _OPTIONS,
    **dict.fromkeys(("StormSubmitter", "StormTopology", "ConfigurableTopology"), _CLI),
    **dict.fromkeys(("LocalCluster", "Testing", "CompleteTopologyParam"), "`transactional.testing.complete_topology`"),
    **dict.fromkeys(("StreamGrouping", "PartialKeyGrouping", "ShuffleGrouping"), _GROUPING),
    **dict.fromkeys(("Duration", "WindowConfiguration"), _WINDOW),
    "Window": _import_statement("transactional", "TupleWindow"),
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
    **dict.fromkeys(
        ("IBatchBolt", "BaseBatchBolt", "BaseTransactionalBolt"), _import_statement("transactional", "BatchBolt")
    ),
    "ICommitter": "`set_committer_bolt(…)`: which bolt is a committer is said where it is declared",
    **dict.fromkeys(
        ("ITransactionalSpout", "BaseTransactionalSpout"), _import_statement("spouts", "TransactionalSpout")
    ),
    **dict.fromkeys(
        ("IPartitionedTransactionalSpout", "BasePartitionedTransactionalSpout"),
        _import_statement("spouts", "PartitionedTransactionalSpout"),
    ),
    **dict.fromkeys(
        ("IOpaquePartitionedTransactionalSpout", "BaseOpaquePartitionedTransactionalSpout"),
        _import_statement("spouts", "OpaquePartitionedTransactionalSpout"),
    ),
    "ICommitterTransactionalSpout": "the method `committed` of a spout",
    "MemoryTransactionalSpout": _import_statement("spouts", "MemoryTransactionalSpout"),
    # Kafka
    **dict.fromkeys(
        ("KafkaSpout", "KafkaTridentSpoutOpaque", "OpaqueTridentKafkaSpout"),
        _import_statement("spouts", "OpaqueKafkaSpout"),
    ),
    **dict.fromkeys(
        ("KafkaTridentSpoutTransactional", "TransactionalTridentKafkaSpout"),
        _import_statement("spouts", "TransactionalKafkaSpout"),
    ),
    **dict.fromkeys(
        ("KafkaSpoutConfig", "KafkaTridentSpoutConfig", "SpoutConfig", "TridentKafkaConfig"),
        "arguments of the spout: `OpaqueKafkaSpout(servers, topics, …)`",
    ),
    **dict.fromkeys(
        ("RecordTranslator", "SimpleRecordTranslator", "Scheme"), _import_statement("spouts", "SimpleTranslator")
    ),
    "ByTopicRecordTranslator": _import_statement("spouts", "ByTopicTranslator"),
    **dict.fromkeys(
        ("KafkaBolt", "TridentKafkaState", "TridentKafkaStateUpdater"), _import_statement("sinks", "KafkaSink")
    ),
    **dict.fromkeys(
        ("KafkaTopicSelector", "DefaultTopicSelector", "FieldNameTopicSelector", "FieldNameBasedTupleToKafkaMapper"),
        'arguments of the sink: `KafkaSink(servers, topics=["a", "b"], topic_field="target", key="k")`',
    ),
    # Trident
    "TridentTopology": _import_statement(_TRIDENT, "TridentTopology"),
    **dict.fromkeys(
        ("Stream", "GroupedStream", "TridentState"), _import_statement(_TRIDENT, "Stream, GroupedStream, TridentState")
    ),
    **dict.fromkeys(("TridentTuple", "TridentCollector", "Function", "BaseFunction", "MapFunction"), _FUNCTION),
    **dict.fromkeys(("FlatMapFunction", "Consumer", "TridentOperation", "BaseOperation"), _FUNCTION),
    **dict.fromkeys(("Filter", "BaseFilter", "FilterNull", "Equals", "Negate"), _FILTER),
    "Debug": "`stream.peek(print)`",
    "CombinerAggregator": _import_statement(_TRIDENT, "Combiner"),
    "ReducerAggregator": _import_statement(_TRIDENT, "Reducer"),
    **dict.fromkeys(("Aggregator", "BaseAggregator"), _import_statement(_TRIDENT, "BatchAggregator")),
    **dict.fromkeys(("Count", "Sum", "Min", "Max"), _import_statement(_TRIDENT, "Count, Sum, Min, Max")),
    "FirstN": "`stream.first_n(10)`",
    "MultiReducer": _import_statement(_TRIDENT, "MultiReducer"),
    **dict.fromkeys(("StateFactory", "StateUpdater", "BaseStateUpdater", "StateSpec", "ReadOnlyState"), _STATE),
    **dict.fromkeys(("OpaqueMap", "TransactionalMap", "NonTransactionalMap", "SnapshottableMap", "CachedMap"), _STATE),
    **dict.fromkeys(("IBackingMap", "Snapshottable", "MapCombiner", "LRUMemoryMapState", "StateType"), _STATE),
    "MemoryMapState": _import_statement("state", "MemoryMapState"),
    "OpaqueValue": _import_statement("state", "OpaqueValue"),
    **dict.fromkeys(("QueryFunction", "BaseQueryFunction", "MapGet", "TupleCollectionGet"), "`stream.state_query(…)`"),
    **dict.fromkeys(("LocalDRPC", "DRPCClient", "DRPCSpout", "LinearDRPCTopologyBuilder", "ReturnResults"), _QUERY),
    **dict.fromkeys(("TumblingDurationWindow", "SlidingDurationWindow"), _WINDOW),
    **dict.fromkeys(("TumblingCountWindow", "SlidingCountWindow", "WindowConfig"), _WINDOW),
    **dict.fromkeys(("InMemoryWindowsStoreFactory", "WindowsStore"), "nothing: open windows are rows of a state"),
    **dict.fromkeys(("JoinType", "JoinerMultiReducer"), _JOIN),
    **dict.fromkeys(("ITridentSpout", "IBatchSpout", "IPartitionedTridentSpout"), _SPOUT_CONTRACT),
    **dict.fromkeys(("IOpaquePartitionedTridentSpout", "ITridentDataSource", "FixedBatchSpout"), _SPOUT_CONTRACT),
}
"""The equivalents of Storm's classes, as far as `transactional` itself has no class of the name."""
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
"""The members of objects that bolts receive, by their names in Storm, unless it is the same in snake case."""
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
"""The arguments of states elsewhere, with their names here, or with the reason why there are none."""
_TO_DECLARE: Final[Mapping[str, str]] = {
    "declareOutputFields": 'an attribute of the class: `output = "word string, count long"`',
    "getOutputFields": 'an attribute of the class: `output = "word string, count long"`',
    "getComponentConfiguration": _OPTIONS,
}
_CONFIGURATIONS: Final = frozenset({"conf", "config", "storm_conf", "stormConf", "topo_conf", "topoConf", "map"})


class NoSuchName(ConfigError, AttributeError):
    """An object has no attribute of this name; `hasattr` is False, as for any other."""


class StormNames:
    """Base of the objects that bolts receive: an attribute by its name in Storm raises an error with its name here."""

    __slots__ = ()
    _elsewhere: ClassVar[Mapping[str, str]] = IN_BOLTS

    if not TYPE_CHECKING:  # type checkers report by themselves what is missing

        def __getattr__(self, name: str) -> Any:
            raise make_name_error(type(self), name, self._elsewhere)


class NamesOfBuilders(StormNames):
    """The base of builders, whose methods have other names in Storm."""

    __slots__ = ()
    _elsewhere = OF_BUILDERS


class NamesOfMetrics(StormNames):
    """The base of a bolt's metrics, whose methods have other names in Storm."""

    __slots__ = ()
    _elsewhere = OF_METRICS


class NamesOfStreams(StormNames):
    """The base of streams, whose methods have other names in Trident, Spark and pandas."""

    __slots__ = ()
    _elsewhere = OF_STREAMS


class NoSuchArgument(ConfigError, TypeError):
    """A class takes no argument of this name."""


class NamesOfStates(StormNames):
    """The base of states, whose methods and arguments have other names elsewhere."""

    __slots__ = ()
    _elsewhere = OF_STATES

    if not TYPE_CHECKING:

        def __new__(cls, *_arguments: Any, **named_arguments: Any) -> Any:
            check_arguments(cls, named_arguments, ARGUMENTS_OF_STATES)
            return super().__new__(cls)


def make_name_error(kind: type, name: str, elsewhere: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that an object does not have."""
    if name.startswith("_"):
        return AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    own_name = to_snake_case(name)
    if name in elsewhere:
        hint = f"; here it is {elsewhere[name]}"
    elif own_name != name and hasattr(kind, own_name):
        hint = f"; here it is {own_name!r}"
    else:
        hint = did_you_mean(name, [attribute for attribute in dir(kind) if not attribute.startswith("_")])
    return NoSuchName(f"{kind.__name__} has no {name!r}{hint}")


def check_arguments(kind: type, named_arguments: Iterable[str], elsewhere: Mapping[str, str]) -> None:
    """Raise `NoSuchArgument` for the name of an argument that a class does not take."""
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    parameter_names = [parameter.name for parameter in parameters]
    for name in named_arguments:
        if name not in parameter_names:
            hint = f"; here it is {elsewhere[name]}" if name in elsewhere else did_you_mean(name, parameter_names)
            raise NoSuchArgument(f"{kind.__name__} takes no argument {name!r}{hint}")


def to_snake_case(name: str) -> str:
    """Convert a name such as `partitionBy` to `partition_by`."""
    return _CAPITAL.sub("_", name).lower()


def check_names(kind: type) -> None:
    """Raise `ConfigError` for a class of a user with methods that nobody would call, because Storm calls them so."""
    for name, member in vars(kind).items():
        if isinstance(member, type):
            continue
        own_name = to_snake_case(name)
        if name in _TO_DECLARE:
            raise ConfigError(f"{kind.__name__} defines {name!r}; here it is {_TO_DECLARE[name]}")
        if own_name != name and any(own_name in vars(base) for base in kind.__mro__[1:]):
            raise ConfigError(f"{kind.__name__} defines {name!r}, which is never called; here it is {own_name!r}")
        if name in ("prepare", "open") and inspect.isfunction(member):
            _check_parameters(kind, name, list(inspect.signature(member).parameters))


def _check_parameters(kind: type, name: str, parameters: list[str]) -> None:
    """Raise `ConfigError` for a method whose first parameter is the configuration, as in Storm."""
    if len(parameters) > 1 and parameters[1] in _CONFIGURATIONS:
        own_method = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
        signature_text = (
            ""
            if own_method is None
            else f"; here it is `{name}({', '.join(inspect.signature(own_method).parameters)})`"
        )
        raise ConfigError(f"{kind.__name__}.{name} takes {parameters[1]!r} first, as in Storm{signature_text}")


def make_class_error(name: str) -> ImportError | None:
    """Return the error for a class of Storm's that `transactional` does not have; None if Storm has no such class.

    An `AttributeError` would lose its text in an import.
    """
    equivalent = STORM_CLASSES.get(name)
    return (
        None
        if equivalent is None
        else ImportError(f"transactional has no {name!r}: Storm's class of that name is {equivalent} here")
    )
