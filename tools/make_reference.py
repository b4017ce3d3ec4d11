"""Writes the pages of the command line and the options, docs/proof.md from docs/proof.json, the diagram of
docs/state-machine.md, the table of docs/howto/change.md, and docs/command-matrix.md.

The pages of classes and functions are made from their docstrings when the site is built (`tools/docs_site.py`).

`python tools/make_reference.py`, from the repository's root. A test fails when a page is not what this would write.
The code is read, not imported, but for the command line, whose options only exist once it is built.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.changes.page import table
from tests.journeys.page import matrix_page
from tests.proof.entries import Proof
from tests.proof.page import page_of
from transactional.core.machine.protocol import diagram
from transactional.model.config import INTERNAL, TopologyConfig

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its title, what stands above everything, and the names in it, each as `module.Name`."""

    title: str
    introduction: str
    names: tuple[str, ...] = ()


COMMITTED = ("command-line", "configuration")
"""The pages that are files of the repository; the others are only in the site."""
PAGES = {
    "command-line": Page("Command line", "`transactional COMMAND --help` shows the same."),
    "configuration": Page(
        "Configuration",
        "The options of a running topology; [how to set them](../howto/configuration.md).",
        (
            "transactional.model.config.TopologyConfig",
            "transactional.model.config_sources.load_config",
            "transactional.model.config_sources.ResolvedConfig",
            "transactional.model.config_sources.Setting",
            "transactional.model.config_sources.SourcedValue",
        ),
    ),
    "topology": Page(
        "Topologies",
        "Putting a topology together, and running it.",
        (
            "transactional.topology.builder.TransactionalTopologyBuilder",
            "transactional.topology.builder.BoltDeclarer",
            "transactional.model.groupings.GroupingKind",
            "transactional.model.groupings.CustomStreamGrouping",
            "transactional.model.groupings.Grouping",
            "transactional.topology.topology.Topology",
            "transactional.topology.topology.Component",
            "transactional.topology.topology.WorkPhase",
            "transactional.topology.wiring.WeakerGuaranteeWarning",
            "transactional.operations.launch.running.run_topology",
            "transactional.operations.launch.running.start_topology",
            "transactional.operations.launch.topology_run.TopologyRun",
            "transactional.operations.launch.progress.RunStatus",
            "transactional.runtime.engine.driver.TopologyDriver",
            "transactional.runtime.engine.history.run_history.RunSummary",
            "transactional.runtime.engine.history.observing.Observer",
            "transactional.operations.cli.display.Display",
            "transactional.runtime.engine.history.journal.JournalWriter",
            "transactional.runtime.spark.session.spark_session",
        ),
    ),
    "trident": Page(
        "Trident",
        "Topologies as operations on streams; [how to write them](../howto/trident.md).",
        (
            "transactional.topology.streams.topology.TridentTopology",
            "transactional.topology.streams.streams.Stream",
            "transactional.topology.streams.operations.Operations",
            "transactional.topology.streams.streams.GroupedStream",
            "transactional.topology.streams.streams.TridentState",
            "transactional.topology.streams.static.StaticState",
            "transactional.model.reading.StaticTable",
            "transactional.topology.windows.windows.tumbling",
            "transactional.topology.windows.windows.sliding",
            "transactional.topology.windows.windows.session",
            "transactional.topology.windows.windows.count",
            "transactional.topology.windows.windows.Window",
            "transactional.topology.windows.windows.CountWindow",
            "transactional.topology.windows.windows.Session",
            "transactional.topology.streams.windowed.WindowedStream",
            "transactional.topology.streams.windowed.WindowedState",
            "transactional.topology.streams.windowed_joins.JoinedWindows",
            "transactional.trident.field",
            "transactional.trident.First",
            "transactional.trident.Last",
            "transactional.trident.Avg",
            "transactional.trident.Collect",
            "transactional.trident.collected",
            "transactional.trident.Combiner",
            "transactional.trident.Reducer",
            "transactional.trident.BatchAggregator",
            "transactional.trident.MultiReducer",
        ),
    ),
    "reliable": Page(
        "Core reliability",
        "Topologies that are at least once or at most once; [how to write them](../howto/at-least-once.md).",
        (
            "transactional.topology.reliable.builder.TopologyBuilder",
            "transactional.topology.reliable.bolts.RichBolt",
            "transactional.topology.reliable.bolts.TupleCollector",
            "transactional.topology.reliable.queue_spout.QueueSpout",
            "transactional.topology.reliable.queue_spout.SpoutCollector",
            "transactional.model.guarantees.Guarantee",
        ),
    ),
    "queries": Page(
        "Queries",
        "Querying a topology from outside; [how to do it](../howto/queries.md).",
        (
            "transactional.queries.QueryClient",
            "transactional.queries.Answer",
            "transactional.queries.as_of",
            "transactional.operations.queries.as_of.AsOf",
            "transactional.queries.Snapshot",
            "transactional.topology.topology.Query",
        ),
    ),
    "bolts": Page(
        "Bolts",
        "The classes to derive a bolt from, what is handed to them, and plain functions as bolts.",
        (
            "transactional.bolts.Bolt",
            "transactional.bolts.BasicBolt",
            "transactional.bolts.BatchBolt",
            "transactional.bolts.ArrowBatchBolt",
            "transactional.topology.bolts.stateful.StatefulBolt",
            "transactional.topology.bolts.stateful.KeyValueState",
            "transactional.topology.windows.windowed.WindowedBolt",
            "transactional.topology.windows.windowed.TupleWindow",
            "transactional.topology.windows.join_bolt.JoinBolt",
            "transactional.topology.bolts.functions.FunctionKind",
            "transactional.bolts.Tuple",
            "transactional.bolts.OutputCollector",
            "transactional.bolts.TopologyContext",
            "transactional.bolts.BoltMetrics",
            "transactional.bolts.BoltCounter",
            "transactional.bolts.MapState",
            "transactional.model.attempt.TransactionAttempt",
            "transactional.model.schema.Schema",
            "transactional.model.arrow.origin_of",
        ),
    ),
    "spouts": Page(
        "Spouts",
        "The sources, and the bases for one of your own; [how to write one](../howto/own-spout.md).",
        (
            "spouts.memory.MemoryTransactionalSpout",
            "spouts.memory.OpaqueMemoryTransactionalSpout",
            "spouts.kafka.spout.KafkaSpout",
            "spouts.kafka.spout.TransactionalKafkaSpout",
            "spouts.kafka.spout.OpaqueKafkaSpout",
            "spouts.kafka.subscription.TopicPattern",
            "spouts.kafka.subscription.TopicPartitions",
            "spouts.kafka.start.GroupOffsets",
            "spouts.decoding.json_records.JsonTranslator",
            "spouts.decoding.avro_records.AvroTranslator",
            "spouts.registry.client.Registry",
            "spouts.kafka.translators.SimpleTranslator",
            "spouts.kafka.translators.KafkaRecord",
            "spouts.kafka.translators.ByTopicTranslator",
            "spouts.kafka.translators.Translator",
            "transactional.model.batch.BatchLimit",
            "spouts.contracts.SpoutContract",
            "spouts.contracts.TransactionalSpout",
            "spouts.contracts.PartitionedContract",
            "spouts.contracts.PartitionedTransactionalSpout",
            "spouts.contracts.OpaquePartitionedTransactionalSpout",
            "spouts.base.PartitionedSpout",
            "spouts.planning.PartitionLog",
            "spouts.planning.Limits",
            "transactional.core.ports.Spout",
            "transactional.core.ports.PartitionReader",
            "transactional.model.batch.PartitionId",
            "transactional.model.batch.OffsetRange",
            "transactional.model.batch.BatchMetadata",
        ),
    ),
    "sinks": Page(
        "Sinks",
        "Where records of committed transactions are published: [to Kafka](../howto/write-to-kafka.md), and [to Delta "
        "tables](../howto/keep-every-event.md).",
        (
            "sinks.kafka.sink.KafkaSink",
            "sinks.kafka.json_value.JsonValue",
            "sinks.kafka.avro_value.AvroValue",
            "sinks.delta.sink.DeltaSink",
            "sinks.keyed.KeyedSink",
            "transactional.core.ports.Sink",
            "transactional.core.ports.SinkOwner",
            "transactional.core.ports.SinkPosition",
            "transactional.core.ports.PublishedRecords",
            "transactional.core.store.outbox.Publication",
        ),
    ),
    "states": Page(
        "States and stores",
        "The tables that committers keep, also [your own](../howto/own-state.md), what updates them without code of "
        "yours, and where progress is kept.",
        (
            "transactional.core.ports.StateKind",
            "state.delta.state.DeltaMapState",
            "state.delta.segments.log_layout.LogLayout",
            "state.delta.static.StaticDeltaTable",
            "state.delta.tables.table.DeltaLocation",
            "state.delta.tables.table.catalog_table",
            "state.sql.state.SqlMapState",
            "state.redis.state.RedisMapState",
            "state.dead_letters.DeadLetterTable",
            "state.table_state.TableState",
            "state.row_table.RowStore",
            "state.row_table.RowWrite",
            "state.row_table.Changes",
            "state.row_table.RowTable",
            "state.rows.records.Records",
            "state.updates.Updatable",
            "state.updates.StateUpdate",
            "state.Aggregate",
            "state.Count",
            "state.Sum",
            "state.Min",
            "state.Max",
            "state.memory.MemoryMapState",
            "state.memory.MemoryTable",
            "state.rows.stored_value.StoredValue",
            "transactional.core.store.sql.sql_store.SqlCoordinatorStore",
            "transactional.core.ports.State",
            "transactional.core.store.CoordinatorStore",
            "transactional.core.store.DesiredState",
            "transactional.core.store.Desired",
        ),
    ),
    "testing": Page(
        "Testing",
        "For tests of [your topologies](../howto/test-your-topology.md), [spouts](../howto/own-spout.md), "
        "[states](../howto/own-state.md) and [sinks](../howto/own-sink.md).",
        (
            "transactional.testing.complete_topology",
            "transactional.testing.check_sink",
            "transactional.testing.check_spout",
            "transactional.testing.check_state",
            "transactional.testing.MemoryCoordinatorStore",
            "transactional.testing.ManualClock",
            "transactional.runtime.executors.local.LocalExecutor",
            "spouts.local_broker.LocalBroker",
            "spouts.kafka_admin.create_topic",
            "spouts.kafka_admin.add_partitions",
            "spouts.kafka_admin.delete_topic",
            "spouts.kafka_admin.delete_records",
            "spouts.kafka_admin.produce",
            "spouts.kafka_admin.watermarks",
        ),
    ),
}

# Their methods are those of a port, which is described once; what is more than that is described here.
PORT_OF = {
    "DeltaMapState": "State",
    "SqlMapState": "State",
    "RedisMapState": "State",
    "MemoryMapState": "State",
    "SqlCoordinatorStore": "CoordinatorStore",
    "MemoryCoordinatorStore": "CoordinatorStore",
    "KafkaSpout": "Spout",
    "MemoryTransactionalSpout": "Spout",
    "OpaqueMemoryTransactionalSpout": "Spout",
    "TransactionalKafkaSpout": "Spout",
    "OpaqueKafkaSpout": "Spout",
}
_PARTITIONED_ONLY = {"logs"}


def reference_page(name: str) -> str:
    """The text of one page."""
    page = PAGES[name]
    head = [f"# {page.title}", page.introduction]
    if name == "command-line":
        head += list(_commands())
    return "\n\n".join([*head, *(part for each in page.names for part in _described(each))]) + "\n"


def proof_page() -> str:
    """Return the page of the long proofs, from docs/proof.json."""
    return page_of(Proof.read(ROOT / "docs" / "proof.json"))


# --- what is read from the source ----------------------------------------------------------------------------------


def _described(qualified: str) -> Iterator[str]:
    module, name = qualified.rsplit(".", 1)
    node = _definition(module, name)
    yield f"## {name}"
    bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
    shown = [base for base in bases if base not in ("ABC", "Protocol", "Enum", "UserWarning")]
    yield f"From `{_door(module, name)}`." + (f" Extends `{shown[0]}`." if shown else "")
    if isinstance(node, ast.FunctionDef):
        yield f"`{_signature(node)}`"
        yield _docstring(node)
    else:
        yield from _class(node)


def _door(module: str, name: str) -> str:
    """Where users import a name from: the outermost package that has it in `__all__`, or else its module."""
    parts = module.split(".")
    packages = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((package for package in packages if name in _offered(package)), module)


@functools.cache
def _offered(package: str) -> frozenset[str]:
    """Return the names in the `__all__` of a package."""
    for each in ast.parse(_file_of(package).read_text(encoding="utf-8")).body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(each.value))
    return frozenset()


def _file_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"


def _definition(module: str, name: str) -> ast.ClassDef | ast.FunctionDef:
    """Where a name is defined: in the module, or where the module imports it from."""
    tree = ast.parse(_file_of(module).read_text(encoding="utf-8"))
    for each in tree.body:
        if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == name:
            return each
    imports = (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom))
    origin = next(each.module for each in imports if name in [alias.name for alias in each.names])
    assert origin is not None
    return _definition(origin, name)


def _class(node: ast.ClassDef) -> Iterator[str]:
    constructor = next((each for each in _methods(node) if each.name == "__init__"), None)
    if constructor is not None:
        yield f"`{_signature(constructor, name=node.name)}`"
    yield _docstring(node)
    if constructor is not None and ast.get_docstring(constructor):
        yield _docstring(constructor)
    fields = list(_fields(node))
    if fields:
        yield "\n".join(["| name | type | default | |", "|---|---|---|---|", *fields])
    members = [
        each for each in ast.walk(node) if isinstance(each, ast.Assign) and "Enum" in map(ast.unparse, node.bases)
    ]
    if members:
        yield "Members: " + ", ".join(f"`{ast.unparse(each.targets[0])}`" for each in members) + "."
    port = PORT_OF.get(node.name)
    if port is not None:
        yield f"It is a [`{port}`]({'spouts' if port == 'Spout' else 'states'}.md#{port.lower()})."
    told = {method.name for method in _methods(_port(port))} | _PARTITIONED_ONLY if port is not None else set()
    yield from (
        part for each in _methods(node) if _is_shown(each) and each.name not in told for part in _method(node, each)
    )


def _port(name: str) -> ast.ClassDef:
    port = _definition("transactional.core.store" if name == "CoordinatorStore" else "transactional.core.ports", name)
    assert isinstance(port, ast.ClassDef)
    return port


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef)]


def _is_shown(method: ast.FunctionDef) -> bool:
    setter = any(ast.unparse(decorator).endswith(".setter") for decorator in method.decorator_list)
    return (
        (not method.name.startswith("_") or method.name == "__call__")
        and ast.get_docstring(method) is not None
        and not setter
    )


def _method(owner: ast.ClassDef, method: ast.FunctionDef) -> Iterator[str]:
    decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
    yield f"### {owner.name}.{method.name}"
    if not {"property", "cached_property", "functools.cached_property"}.isdisjoint(decorators):
        returned = f": {ast.unparse(method.returns)}" if method.returns else ""
        yield f"`{method.name}{returned}`"
    else:
        yield f"`{_signature(method)}`"
    yield _docstring(method)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """The annotated fields of a class as rows of a table; what stands below one as a string says what it is."""
    for each, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(each, ast.AnnAssign) or ast.unparse(each.target).startswith("_"):
            continue
        if node.name == TopologyConfig.__name__ and ast.unparse(each.target) in INTERNAL:
            continue
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = inspect.cleandoc(str(following.value.value)).replace("\n", " ")
        default = f"`{ast.unparse(each.value)}`" if each.value is not None else ""
        yield f"| `{ast.unparse(each.target)}` | `{_cell(ast.unparse(each.annotation))}` | {default} | {text} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _signature(node: ast.FunctionDef, *, name: str | None = None) -> str:
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(node.args))
    arguments = re.sub(r"(?<=[\w\]])=(?=\S)", " = ", arguments)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None and name is None else ""
    return f"{name or node.name}({arguments}){returned}"


def _docstring(node: ast.ClassDef | ast.FunctionDef) -> str:
    """The docstring; lines of the form `WORD: …` as a list."""
    return re.sub(r"^([A-Z]+): ", r"- `\1`: ", ast.get_docstring(node) or "", flags=re.MULTILINE)


# --- what is read from the command line ------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    for name, command in _all_commands():
        yield f"## {name}"
        yield inspect.cleandoc(command.help)
        rows = [_option(parameter) for parameter in command.params]
        yield "\n".join(["| argument or option | default | |", "|---|---|---|", *rows])


def _all_commands() -> Iterator[tuple[str, Any]]:
    sys.path.insert(0, str(ROOT))
    import typer.main

    from transactional.operations.cli.main import app

    return _leaves("transactional", typer.main.get_command(app))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that do something, those of groups with the group's name before theirs."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, each in command.commands.items():
        yield from _leaves(f"{name} {word}", each)


def _option(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = (
        ", ".join(f"`{name}`" for name in parameter.opts)
        if is_option
        else f"`{parameter.metavar or parameter.name.upper()}`"
    )
    default = "" if parameter.required or parameter.default is None else f"`{parameter.default}`"
    variable = f" Or the environment variable `{parameter.envvar}`." if parameter.envvar else ""
    return f"| {names} | {_cell(default)} | {_cell(parameter.help or '')}{variable} |"


def page_of_changes() -> str:
    """docs/howto/change.md with the table of today."""
    text = (ROOT / "docs" / "howto" / "change.md").read_text("utf-8")
    return re.sub(r"(?s)(?<=kinds\.py -->\n\n).*?(?=\n?<!-- end)", lambda _: table(), text)


def main() -> None:
    """Write all pages that are files of the repository."""
    for name in COMMITTED:
        (ROOT / "docs" / "reference" / f"{name}.md").write_text(reference_page(name), encoding="utf-8")
    page = ROOT / "docs" / "state-machine.md"
    drawn = re.sub(r"(?s)(?<=```mermaid\n).*?(?=```)", lambda _: diagram() + "\n", page.read_text("utf-8"))
    page.write_text(drawn, encoding="utf-8")
    (ROOT / "docs" / "howto" / "change.md").write_text(page_of_changes(), encoding="utf-8")
    (ROOT / "docs" / "command-matrix.md").write_text(matrix_page(), encoding="utf-8")
    (ROOT / "docs" / "proof.md").write_text(proof_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
