"""`Registry`: looks schemas up by the ids that records carry, and remembers them in each process.

A schema never changes, so it is requested once. That an id is unknown may change a moment later, and is never
remembered: it becomes a fact of the batch, recorded with it, so that every attempt treats the batch's records alike.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spouts.registry.connection import RegistryConnection, connection_of, text_of
from spouts.registry.framing import Unframed
from spouts.registry.schemas import RegisteredSchema, SchemaId
from transactional.model.errors import ConfigError, SchemaUnknown, SourceUnavailable
from transactional.model.letters import Exclusion

UNKNOWN_SHARE_MAX, UNKNOWN_MIN = 0.01, 10
"""More of the records that are read at once, and more in number, have unknown ids: the registry is the wrong one."""
_RETRY_S = 0.5
_MISSED_MAX = 10_000


class Registry:
    """A schema registry with Confluent's API: `Registry("https://registry:8081", auth=("user", "…"))`.

    Several URLs are addresses of one registry, tried in turn. `auth` is user and password, `token` a bearer token, `ca`
    a file of certificates (PEM) to trust instead of the system's. An answer may take `timeout_ms`, over all tries; then
    the registry counts as unavailable, and the attempt is repeated. An id that it does not know is requested again for
    `unknown_id_wait_ms`, within an attempt: a schema may be registered, or reach a follower, a moment after its first
    record. Raises `ConfigError` for invalid arguments.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        auth: tuple[str, str] | None = None,
        token: str | None = None,
        ca: str | Path = "",
        timeout_ms: int = 5_000,
        unknown_id_wait_ms: int = 10_000,
    ) -> None:
        urls = [url] if isinstance(url, str) else list(url)
        if not urls:
            raise ConfigError("Registry needs a URL, such as 'https://registry:8081'")
        if timeout_ms < 1 or unknown_id_wait_ms < 0:
            raise ConfigError(
                f"timeout_ms is at least 1 and unknown_id_wait_ms at least 0, not {timeout_ms} and {unknown_id_wait_ms}"
            )
        self.connection = connection_of(urls, auth, token, str(ca), timeout_ms)
        self._wait_s = unknown_id_wait_ms / 1000

    def __repr__(self) -> str:
        return f"{type(self).__name__}({text_of(self.connection)})"

    def schemas(
        self, framed: Unframed, denied: Collection[str] = (), *, records: bool = True
    ) -> Mapping[SchemaId, RegisteredSchema | None]:
        """Return the schemas of records; None for an unknown id, as the batch has recorded it: `denied` are its facts.

        Raises `SourceUnavailable` if the registry does not answer, `ConfigError` if it refuses the credentials, and
        `SchemaUnknown` for ids that have to be recorded as unknown first, or if too many are. Without `records`, for
        who fails on an unknown id, it is None at once, and nothing is recorded.
        """
        facts = {schema_id: _fact(schema_id, framed.description) for schema_id in framed.ids}
        schemas = self._request_for_a_while(schema_id for schema_id, fact in facts.items() if fact not in denied)
        unknown = [schema_id for schema_id, schema in schemas.items() if schema is None]
        if records:
            self._check_share(framed, [schema_id for schema_id in framed.ids if schemas.get(schema_id) is None])
        if records and unknown:
            at_fault = tuple(Exclusion("", facts[schema_id], self.unknown_text(schema_id)) for schema_id in unknown)
            raise SchemaUnknown(
                f"{self.unknown_text(unknown[0])}, which {framed.description} have"
                + (f", nor {len(unknown) - 1} other ids" if len(unknown) > 1 else ""),
                at_fault=at_fault,
            )
        return {schema_id: schemas.get(schema_id) for schema_id in framed.ids}

    def unknown_text(self, schema_id: SchemaId) -> str:
        """Return why a record with this id can't be read."""
        return f"the schema registry at {self.connection.urls[0]} does not know schema id {schema_id}"

    def schema(self, schema_id: SchemaId) -> RegisteredSchema | None:
        """Return one schema; None if the registry does not know it now. Raises `SourceUnavailable`, `ConfigError`."""
        memory = _memory_of(self.connection)
        schema = memory.schemas.get(schema_id)
        if schema is None and (schema := _request(self.connection, schema_id)) is not None:
            memory.schemas[schema_id] = schema
        return schema

    def register(self, subject: str, schema: str) -> int:
        """Register an Avro schema under a subject unless it is registered, and return its id.

        Raises `SourceUnavailable`, and `ConfigError` if the registry refuses it, as one that is not compatible.
        """
        answer = self.connection.post(f"subjects/{quote(subject, safe='')}/versions", {"schema": schema})
        try:
            return int(answer["id"])
        except (KeyError, TypeError, ValueError):
            raise SourceUnavailable(
                f"{self.connection.urls[0]} answers as no schema registry: {answer!r:.100}"
            ) from None

    def _request_for_a_while(self, ids: Iterable[SchemaId]) -> dict[SchemaId, RegisteredSchema | None]:
        """Request schemas, unknown ones again until `unknown_id_wait_ms` is over, counted from when this process first
        missed an id, so that an attempt which times out meanwhile is not for nothing."""
        schemas = {schema_id: self.schema(schema_id) for schema_id in ids}
        memory, started_s = _memory_of(self.connection), time.monotonic()
        missing = {
            schema_id: memory.missed_since(schema_id, started_s)
            for schema_id, schema in schemas.items()
            if schema is None
        }
        while missing:
            remaining_s = self._wait_s - time.monotonic() + max(missing.values())
            if remaining_s <= 0:
                break
            threading.Event().wait(min(_RETRY_S, remaining_s))
            schemas |= {schema_id: self.schema(schema_id) for schema_id in missing}
            missing = {schema_id: since_s for schema_id, since_s in missing.items() if schemas[schema_id] is None}
        return schemas

    def _check_share(self, framed: Unframed, unknown: Sequence[SchemaId]) -> None:
        count, total = sum(len(framed.positions[schema_id]) for schema_id in unknown), len(framed.payloads)
        if count > max(UNKNOWN_MIN, UNKNOWN_SHARE_MAX * total):
            raise SchemaUnknown(
                f"{self.unknown_text(unknown[0])}; {count} of {total} {framed.description} have ids that it does not "
                f"know, more than {UNKNOWN_SHARE_MAX:.0%}: check the registry's URL, and which registry the producers "
                "use"
            )


def registry_of(registry: str | Registry) -> Registry:
    """Return the registry at a URL, or the given one."""
    return Registry(registry) if isinstance(registry, str) else registry


class _Memory:
    """The schemas that this process has from one registry, and when it first missed an id."""

    def __init__(self) -> None:
        self.schemas = dict[SchemaId, RegisteredSchema]()
        self._missed = dict[SchemaId, float]()

    def missed_since(self, schema_id: SchemaId, now_s: float) -> float:
        """Return when an id was first unknown to this process."""
        if len(self._missed) >= _MISSED_MAX:
            self._missed.clear()  # garbage has many ids
        return self._missed.setdefault(schema_id, now_s)


_memories = dict[RegistryConnection, _Memory]()
_lock = threading.Lock()


def _memory_of(connection: RegistryConnection) -> _Memory:
    with _lock:
        return _memories.setdefault(connection, _Memory())


def _fact(schema_id: SchemaId, description: str) -> str:
    return f"schema id {schema_id} of {description}"


def _request(connection: RegistryConnection, schema_id: SchemaId) -> RegisteredSchema | None:
    kind = "guids" if isinstance(schema_id, uuid.UUID) else "ids"
    answer = connection.get(f"schemas/{kind}/{schema_id}")
    if answer is None:
        return None
    with_references = _References(connection, schema_id)
    return with_references.schema(answer, schema_id) if with_references.collect(answer) else None


class _References:
    """The schemas to which one schema refers, directly and through others."""

    def __init__(self, connection: RegistryConnection, schema_id: SchemaId) -> None:
        self._connection, self._schema_id = connection, schema_id
        self._schemas = dict[tuple[str, str, int], RegisteredSchema]()
        self._visited = set[tuple[str, str, int]]()

    def collect(self, answer: Any) -> bool:
        """Request the schemas to which the registry's answer refers; return False if one is unknown."""
        try:
            references = _references(answer)
        except (KeyError, TypeError, ValueError):
            raise self._no_schema(answer) from None
        for reference in references:
            if reference in self._visited:
                continue
            self._visited.add(reference)
            name, subject, version = reference
            answer = self._connection.get(f"subjects/{quote(subject, safe='')}/versions/{version}")
            if answer is None or not self.collect(answer):
                return False
            self._schemas[reference] = self._parse(answer, int(answer.get("id", 0)), (), name)
        return True

    def schema(self, answer: Any, schema_id: SchemaId) -> RegisteredSchema:
        """Return the schema of an answer, with the collected ones that it refers to."""
        return self._parse(answer, schema_id, tuple(self._schemas.values()), "")

    def _parse(
        self, answer: Any, schema_id: SchemaId, references: tuple[RegisteredSchema, ...], name: str
    ) -> RegisteredSchema:
        kind = (answer.get("schemaType") or "AVRO") if isinstance(answer, dict) else None
        if not isinstance(kind, str) or not isinstance(answer.get("schema"), str):
            raise self._no_schema(answer)
        return RegisteredSchema(schema_id, kind, answer["schema"], references, name)

    def _no_schema(self, answer: Any) -> SourceUnavailable:
        return SourceUnavailable(
            f"{self._connection.urls[0]} answers for schema id {self._schema_id} as no schema registry does: "
            f"{str(answer)[:100]!r}"
        )


def _references(answer: Any) -> list[tuple[str, str, int]]:
    references = answer.get("references") or [] if isinstance(answer, dict) else []
    return [(str(reference["name"]), str(reference["subject"]), int(reference["version"])) for reference in references]
