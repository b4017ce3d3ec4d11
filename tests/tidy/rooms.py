"""The rooms: which stands below which, the order of the folders in each, where third-party packages are at home, and
what stays pure.

`test_layering` holds the source to it.
"""

from __future__ import annotations

PACKAGES = ("transactional", "spouts", "state", "sinks", "verifier", "examples")

ROOMS = {
    "transactional/model": (("plumbing",), (".",), ("drawing", "user_code"), ("arrow",), ("aggregates",)),
    "transactional/core": (("store",), ("store/databases", "ports"), ("machine", "ports/several", "store/sql")),
    "transactional/topology": (
        *(("bolts",), ("windows",), (".",), ("streams/pipelines",), ("streams/aggregates",)),
        *(("reliable", "streams/windows"), ("streams",)),
    ),
    "transactional/runtime": (
        *(
            ("spark", "tasks/failing"),
            ("tasks",),
            ("engine/history", "processing", "publishing", "sending"),
            ("executors",),
        ),
        *(("commit",), ("engine", "executors/spark", "executors/workers"), ("executors/auto",)),
    ),
    "spouts": ((".", "avro", "registry"), ("kafka/clients",), ("kafka",), ("decoding",)),
    "state": (
        *(("rows",), (".",), ("delta/tables", "redis", "sql"), ("delta/log", "delta/segments")),
        *(("delta/write",), ("delta/read",), ("delta/upkeep",), ("delta",)),
    ),
    "sinks": ((".",), ("delta", "kafka")),
    "verifier": (("evidence",), (".",), ("sinks",)),
    "transactional/operations": (
        *((".", "web"), ("telemetry",), ("console/data", "doctor"), ("console/drawing",), ("console",)),
        *(("launch", "queries"), ("cli/output",), ("cli",)),
    ),
    "transactional/testing": (("cases",), ("sinks", "spouts", "states"), (".",)),
    "doors": ((".",),),
    "examples": ((".",),),
}
"""From the lowest to the highest, each with the order of its folders; `.` are the files that lie flat in it.

A file imports from rooms below its own, and within its room from folders below its own. Folders of one place in the
order do not know each other.
"""
FILES_MAX = {"transactional": 15, "sinks": 12, "spouts": 12, "state": 12, "verifier": 12, "examples": 25}
"""A folder of more files, `__init__` not counted, is a hall in which nothing is found; examples are looked through by
name."""
DOORS = {
    *("transactional", "transactional.testing", "sinks", "spouts", "state", "state.dead_letters", "state.providers"),
    *(f"transactional.{name}" for name in ("bolts", "errors", "queries", "reliable", "trident")),
}
"""What users import, and no file of ours: `from transactional import …` and the like."""
FOR_ADAPTERS = {
    *("transactional.model", "transactional.model.aggregates", "transactional.model.arrow"),
    *("transactional.model.plumbing", "transactional.model.user_code", "transactional.core.ports"),
    *("transactional.core.store", "transactional.core.store.databases", "transactional.runtime.spark"),
}
"""What spouts, states and sinks may import of `transactional`."""
FOR_SINKS = {"state.delta.tables", "state.delta.log", "state.delta.write"}
"""What sinks may import of `state`: the lowest pieces of Delta tables, in which nothing knows of states."""
FOR_DOORS = {"transactional.core.store.sql"}
"""What `from state import …` has besides."""
ASK_THE_VERIFIER = ("transactional.operations.doctor", "transactional.operations.cli", "examples")
"""The independent checker is worth something only if it shares nothing with what it checks; these ask it."""

HOMES = {
    "cloudpickle": {
        "transactional.model.user_code.picklable",
        "transactional.runtime.tasks",
        "transactional.runtime.sending",
        "transactional.runtime.executors.workers",
    },
    "confluent_kafka": {
        *("sinks.kafka", "spouts.kafka", "spouts.kafka.clients", "spouts.kafka_admin"),
        *("verifier.source", "verifier.sinks.topics"),
    },
    "delta": {"state.delta.catalog"},
    "deltalake": {
        *("state.delta", "state.delta.log", "state.delta.segments", "state.delta.tables", "state.delta.write"),
        *("state.delta.read", "state.delta.upkeep"),
        "sinks.delta",
        "verifier.evidence.storage",
    },
    "pyarrow": {
        *("transactional.model.aggregates", "transactional.model.arrow"),
        *(f"transactional.topology.{folder}" for folder in ("reliable", "streams", "streams.aggregates")),
        *("transactional.topology.streams.pipelines", "transactional.topology.streams.windows"),
        *(f"transactional.runtime.{folder}" for folder in ("commit", "executors.spark", "processing", "tasks")),
        *("transactional.runtime.tasks.failing", "transactional.operations.queries"),
        *("transactional.testing", "transactional.testing.sinks", "transactional.testing.states"),
        *("sinks.delta", "sinks.kafka", "sinks.keyed", "transactional.runtime.publishing"),
        *("spouts", "spouts.avro", "spouts.decoding", "spouts.kafka", "spouts.kafka.clients", "spouts.registry"),
        *("state", "state.rows", "state.redis", "state.sql", "state.delta", "state.delta.log", "state.delta.segments"),
        *("state.delta.read", "state.delta.tables", "state.delta.upkeep", "state.delta.write"),
        *("verifier", "verifier.evidence"),
    },
    "jinja2": {"transactional.operations.console"},
    "numpy": {"spouts.avro"},
    "obstore": {"state.delta.tables.storage"},
    "opentelemetry": {"transactional.operations.telemetry"},
    "prometheus_client": {"transactional.operations.telemetry"},
    "py4j": {"transactional.runtime.spark.internals"},
    "pyspark": {
        "transactional.runtime.executors.spark",
        "transactional.runtime.spark.jobs",
        "transactional.runtime.spark.session",
        "transactional.runtime.spark.internals",
        "transactional.operations.loading",
        "state.delta.catalog",
    },
    "redis": {"state.redis", "verifier.redis_tables"},
    "rich": {"transactional.operations.cli", "transactional.operations.cli.output"},
    "sqlalchemy": {
        *("state.sql", "transactional.core.store.databases", "transactional.core.store.sql"),
        *("verifier.evidence.store", "verifier.evidence.databases", "verifier.evidence.publications"),
        *("verifier.redis_tables", "verifier.sql_tables"),
    },
    "starlette": {
        "transactional.operations.console",
        "transactional.operations.web",
        "transactional.operations.queries.serving",
    },
    "structlog": {"transactional.operations.telemetry"},
    "typer": {"transactional.operations.cli"},
    "uvicorn": {"transactional.operations.web"},
}
"""The folders, or the single files, that may import a third-party package."""
PURE = {
    *("transactional.core.machine", "transactional.core.store.progress"),
    *(f"transactional.model.{name}" for name in ("attempt", "batch", "config", "errors", "facts", "groupings")),
    *(f"transactional.model.{name}" for name in ("guarantees", "letters", "messages", "names", "schema")),
    "transactional.model.plumbing.redaction",
    *("transactional.topology", "transactional.topology.bolts"),
    *(f"transactional.topology.windows.{name}" for name in ("event_times", "join_bolt", "windows")),
    *("transactional.runtime.engine.cost_estimate", "transactional.runtime.engine.sizing"),
    *("spouts.planning", "state.rows.combining", "state.rows.stored_value"),
}
"""Functions of their arguments: no clock, no chance, no thread, no file, no process, no network."""
ASKS_THE_DISK = {"transactional.topology.locations"}
"""In a pure folder, and yet: two paths are one place only by what lies there."""
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "signal", "subprocess", "sys", "threading"),
    *("datetime", "random", "secrets", "time", "uuid"),
    *("io", "logging", "os", "pathlib", "select", "shutil", "socket", "sqlite3", "tempfile", "urllib"),
}
