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

from spouts.registry.connection import RegistryConnection, connection_of, shown
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
        return f"{type(self).__name__}({shown(self.connection)})"

    def schemas(
        self, framed: Unframed, denied: Collection[str] = (), *, records: bool = True
    ) -> Mapping[SchemaId, RegisteredSchema | None]:
        """The schemas of records; None for an unknown id, as the batch has recorded it: `denied` are its facts.

        Raises `SourceUnavailable` if the registry does not answer, `ConfigError` if it refuses the credentials, and
        `SchemaUnknown` for ids that have to be recorded as unknown first, or if too many are. Without `records`, for
        who fails on an unknown id, it is None at once, and nothing is recorded.
        """
        facts = {each: _fact(each, framed.of) for each in framed.ids}
        found = self._known_after_waiting(each for each, fact in facts.items() if fact not in denied)
        unknown = [each for each, schema in found.items() if schema is None]
        if records:
            self._check_share(framed, [each for each in framed.ids if found.get(each) is None])
        if records and unknown:
            at_fault = tuple(Exclusion("", facts[each], self.unknown_text(each)) for each in unknown)
            raise SchemaUnknown(
                f"{self.unknown_text(unknown[0])}, which {framed.of} have"
                + (f", nor {len(unknown) - 1} other ids" if len(unknown) > 1 else ""),
                at_fault=at_fault,
            )
        return {each: found.get(each) for each in framed.ids}

    def unknown_text(self, schema_id: SchemaId) -> str:
        """Why a record with this id can't be read."""
        return f"the schema registry at {self.connection.urls[0]} does not know schema id {schema_id}"

    def schema(self, schema_id: SchemaId) -> RegisteredSchema | None:
        """One schema; None if the registry does not know it now. Raises `SourceUnavailable`, `ConfigError`."""
        memory = _memory_of(self.connection)
        known = memory.schemas.get(schema_id)
        if known is None and (known := _requested(self.connection, schema_id)) is not None:
            memory.schemas[schema_id] = known
        return known

    def _known_after_waiting(self, ids: Iterable[SchemaId]) -> dict[SchemaId, RegisteredSchema | None]:
        """Those that are unknown are requested until the wait is over, which begins when a process first misses one: an
        attempt that times out meanwhile is not for nothing."""
        found = {each: self.schema(each) for each in ids}
        memory, begun = _memory_of(self.connection), time.monotonic()
        missing = {each: memory.missed_since(each, begun) for each, schema in found.items() if schema is None}
        while missing:
            left_s = self._wait_s - time.monotonic() + max(missing.values())
            if left_s <= 0:
                break
            threading.Event().wait(min(_RETRY_S, left_s))
            found |= {each: self.schema(each) for each in missing}
            missing = {each: since for each, since in missing.items() if found[each] is None}
        return found

    def _check_share(self, framed: Unframed, unknown: Sequence[SchemaId]) -> None:
        count, of = sum(len(framed.positions[each]) for each in unknown), len(framed.payloads)
        if count > max(UNKNOWN_MIN, UNKNOWN_SHARE_MAX * of):
            raise SchemaUnknown(
                f"{self.unknown_text(unknown[0])}; {count} of {of} {framed.of} have ids that it does not know, more "
                f"than {UNKNOWN_SHARE_MAX:.0%}: check the registry's URL, and which registry the producers use"
            )


def registry_of(given: str | Registry) -> Registry:
    """The registry of a URL, or the one that is given."""
    return Registry(given) if isinstance(given, str) else given


class _Memory:
    """What a process knows of one registry."""

    def __init__(self) -> None:
        self.schemas = dict[SchemaId, RegisteredSchema]()
        self._missed = dict[SchemaId, float]()

    def missed_since(self, schema_id: SchemaId, now_s: float) -> float:
        """When an id was first found to be unknown."""
        if len(self._missed) >= _MISSED_MAX:
            self._missed.clear()  # garbage has many ids
        return self._missed.setdefault(schema_id, now_s)


_memories = dict[RegistryConnection, _Memory]()
_lock = threading.Lock()


def _memory_of(connection: RegistryConnection) -> _Memory:
    with _lock:
        return _memories.setdefault(connection, _Memory())


def _fact(schema_id: SchemaId, of: str) -> str:
    return f"schema id {schema_id} of {of}"


def _requested(connection: RegistryConnection, schema_id: SchemaId) -> RegisteredSchema | None:
    kind = "guids" if isinstance(schema_id, uuid.UUID) else "ids"
    answer = connection.get(f"schemas/{kind}/{schema_id}")
    if answer is None:
        return None
    with_references = _References(connection, schema_id)
    return with_references.schema(answer, schema_id) if with_references.collect(answer) else None


class _References:
    """The schemas that one refers to, directly and through others."""

    def __init__(self, connection: RegistryConnection, schema_id: SchemaId) -> None:
        self._connection, self._schema_id = connection, schema_id
        self._found = dict[tuple[str, str, int], RegisteredSchema]()
        self._begun = set[tuple[str, str, int]]()

    def collect(self, answer: Any) -> bool:
        """Find those of a schema, as the registry gives it; False if one is unknown."""
        try:
            references = _references(answer)
        except (KeyError, TypeError, ValueError):
            raise self._no_schema(answer) from None
        for each in references:
            if each in self._begun:
                continue
            self._begun.add(each)
            name, subject, version = each
            given = self._connection.get(f"subjects/{quote(subject, safe='')}/versions/{version}")
            if given is None or not self.collect(given):
                return False
            self._found[each] = self._made(given, int(given.get("id", 0)), (), name)
        return True

    def schema(self, answer: Any, schema_id: SchemaId) -> RegisteredSchema:
        """The schema with what was collected."""
        return self._made(answer, schema_id, tuple(self._found.values()), "")

    def _made(
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
    given = answer.get("references") or [] if isinstance(answer, dict) else []
    return [(str(each["name"]), str(each["subject"]), int(each["version"])) for each in given]
