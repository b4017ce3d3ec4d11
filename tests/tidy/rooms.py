"""The rooms: which folder stands on which floor, where third-party packages are at home, what stays pure.

`test_layering` holds the source to it.
"""

from __future__ import annotations

PACKAGES = ("transactional", "spouts", "state", "verifier", "examples")

FLOORS = (
    ("transactional.model.plumbing",),
    ("transactional.model",),
    ("transactional.model.user_code", "transactional.model.drawing"),
    ("transactional.model.arrow",),
    ("transactional.core.store", "transactional.runtime.spark", "transactional.operations.web"),
    ("transactional.model.aggregates", "transactional.core.ports", "transactional.core.store.databases"),
    ("transactional.core.machine", "transactional.core.store.sql"),
    ("spouts", "spouts.avro", "spouts.registry", "state.rows"),
    ("transactional.topology.bolts", "transactional.runtime.tasks.failing", "spouts.kafka.clients", "state"),
    ("spouts.kafka",),
    ("transactional.topology.windows",),
    ("transactional.topology",),
    ("transactional.runtime.tasks", "spouts.decoding", "state.delta.tables", "state.redis", "state.sql"),
    (
        *("transactional.runtime.processing", "transactional.runtime.sending", "transactional.runtime.engine.history"),
        *("transactional.topology.streams.pipelines", "state.delta.merging", "state.delta.log"),
    ),
    ("transactional.runtime.executors", "transactional.topology.streams.aggregates", "state.delta.writing"),
    ("transactional.runtime.commit", "transactional.topology.streams.windows", "transactional.topology.reliable"),
    (
        *("transactional.runtime.executors.spark", "transactional.runtime.executors.workers"),
        *("transactional.runtime.engine", "state.delta.segments"),
    ),
    ("transactional.runtime.executors.auto",),
    ("transactional.topology.streams", "state.delta"),
    ("transactional.operations", "transactional.operations.telemetry", "verifier.evidence"),
    ("verifier",),
    ("transactional.operations.doctor", "transactional.operations.console.data"),
    ("transactional.operations.console.drawing",),
    ("transactional.operations.console", "transactional.testing.states"),
    ("transactional.operations.launch", "transactional.operations.queries", "transactional.testing"),
    ("doors", "transactional.operations.cli.output"),
    ("transactional.operations.cli",),
    ("examples",),
)
"""From the lowest to the highest. Folders of one floor do not know each other, but for packages and their folders."""
FILES_MAX = 15
"""A folder of more files, `__init__` not counted, is a hall in which nothing is found."""
ROOMY = {"examples": 25}
"""What users look through by name."""
DOORS = {
    *("transactional", "transactional.testing", "spouts", "state", "state.dead_letters", "state.providers"),
    *(f"transactional.{name}" for name in ("bolts", "errors", "queries", "reliable", "trident")),
}
"""`from transactional import …` and the like; what they need stands below them."""
FOR_ADAPTERS = {
    *("transactional.runtime.spark", "transactional.model", "transactional.core.ports", "transactional.core.store"),
    "transactional.core.store.databases",
    *(f"transactional.model.{room}" for room in ("aggregates", "arrow", "plumbing", "user_code")),
}
"""What spouts and states may import of `transactional`."""
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
    "confluent_kafka": {"spouts.kafka", "spouts.kafka.clients", "spouts.kafka_admin", "verifier.source"},
    "delta": {"state.delta.catalog"},
    "deltalake": {
        *("state.delta", "state.delta.log", "state.delta.merging", "state.delta.segments", "state.delta.tables"),
        "state.delta.writing",
        "verifier.evidence.storage",
    },
    "pyarrow": {
        *("transactional.model.aggregates", "transactional.model.arrow"),
        *("transactional.runtime.tasks", "transactional.runtime.tasks.failing"),
        *("transactional.runtime.processing", "transactional.runtime.commit"),
        *("transactional.runtime.executors.spark", "transactional.testing", "transactional.testing.states"),
        *("transactional.topology.streams", "transactional.topology.streams.aggregates"),
        *(
            "transactional.topology.streams.pipelines",
            "transactional.topology.streams.windows",
            "transactional.topology.reliable",
        ),
        *(
            "transactional.operations.queries",
            "spouts",
            "spouts.avro",
            "spouts.decoding",
            "spouts.kafka",
            "spouts.kafka.clients",
            "spouts.registry",
            "state",
            "state.rows",
        ),
        *("state.delta", "state.delta.log", "state.delta.merging", "state.delta.segments", "state.delta.tables"),
        "state.delta.writing",
        *("state.redis", "state.sql"),
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
        *("verifier.evidence.store", "verifier.evidence.databases"),
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
    *(
        "transactional.core.machine",
        "transactional.topology",
        "transactional.topology.bolts",
        "spouts.planning",
        "state.rows.values",
    ),
    *(f"transactional.topology.windows.{name}" for name in ("event_times", "join_bolt", "windows")),
    *(
        "transactional.model.attempt",
        "transactional.model.batch",
        "transactional.model.config",
        "transactional.model.errors",
    ),
    *("transactional.model.facts", "transactional.model.guarantees", "transactional.model.messages"),
    *("transactional.model.groupings", "transactional.model.letters", "transactional.model.names"),
    "transactional.core.store.progress",
    *("transactional.model.plumbing.redaction", "transactional.model.schema"),
    *("transactional.runtime.engine.cost_estimate", "transactional.runtime.engine.sizing"),
}
"""Functions of their arguments: no clock, no chance, no thread, no file, no process, no network."""
ASKS_THE_DISK = {"transactional.topology.places"}
"""In a pure folder, and yet: two paths are one place only by what lies there."""
IMPURE = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "signal", "subprocess", "sys", "threading"),
    *("datetime", "random", "secrets", "time", "uuid"),
    *("io", "logging", "os", "pathlib", "select", "shutil", "socket", "sqlite3", "tempfile", "urllib"),
}
