"""Storm's names, for those who come from there: what is called otherwise here is an error of one line that says how."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from transactional.errors import ConfigError
from transactional.schema import did_you_mean

_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OPTIONS: Final = "the options of the topology, `build(config={…})`"
_SPARKS: Final = "nothing: Spark distributes its own resources"
_BY_POSITION: Final = "`t[0]`"
_BY_NAME: Final = '`t["word"]`, or `t.word`'

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
}
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


class NamesOfStreams(StormNames):
    """The same for streams."""

    __slots__ = ()
    _elsewhere = OF_STREAMS


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
