"""The local registry is a real one: the client reads from it what was registered, also after it was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from spouts.local_registry import REGISTRY_ARCHIVE, LocalRegistry
from spouts.registry import client
from spouts.registry.client import Registry
from spouts.registry.schemas import RegisteredSchema
from transactional.errors import ConfigError

pytestmark = pytest.mark.registry

INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
OUTER = {"type": "record", "name": "Outer", "fields": [{"name": "inner", "type": "Inner"}]}
OBJECT = '{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}'
PROTO = 'syntax = "proto3";\nmessage Order {\n  int64 id = 1;\n}\n'


@pytest.fixture
def registry() -> Iterator[LocalRegistry]:
    """One of its own: it is killed."""
    with LocalRegistry() as registry:
        yield registry


@pytest.mark.long("tests/integration/registry/test_runs.py")
def test_it_gives_what_was_registered_also_after_it_was_killed(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = registry.register("inner", json.dumps(INNER))
    outer = registry.register("outer", json.dumps(OUTER), references=[("Inner", "inner", 1)])
    plain = registry.register("plain", OBJECT, kind="JSON")
    proto = registry.register("proto", PROTO, kind="PROTOBUF")
    reader = Registry(registry.url)
    registry.kill()
    with pytest.raises(ConfigError, match="is not running"):
        registry.pid  # noqa: B018 - it raises
    registry.start()
    with pytest.raises(ConfigError, match="already running"):
        registry.start()
    monkeypatch.setattr(client, "_memories", {})
    found = reader.schema(outer)
    assert found is not None
    assert (found.kind, json.loads(found.text)) == ("AVRO", OUTER)
    [reference] = found.references
    assert (reference.name, reference.id, json.loads(reference.text)) == ("Inner", inner, INNER)
    assert reader.schema(plain) == RegisteredSchema(plain, "JSON", OBJECT)
    of_proto = reader.schema(proto)
    assert of_proto is not None
    assert (of_proto.kind, "int64 id = 1" in of_proto.text) == ("PROTOBUF", True)
    assert reader.schema(10_000) is None


def test_its_archive_is_pinned() -> None:
    [archive] = REGISTRY_ARCHIVE.jars()
    assert archive.file_name == "apicurio-registry-app-3.0.9-all.tar.gz"
    assert len(bytes.fromhex(archive.sha256)) == 32
