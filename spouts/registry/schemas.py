"""A schema as a registry holds it, and the ids by which records name one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

SchemaId = int | uuid.UUID
"""A number of the registry's, or a GUID, which is the same in every registry."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema: it never changes. `kind` is `"AVRO"`, `"JSON"` or `"PROTOBUF"`.

    `references` are all the schemas that it needs, each once; what one of them refers to stands before it. A reference
    has the `name` by which it is referred to, and the id that the registry gives for it.
    """

    id: SchemaId
    kind: str
    text: str
    references: tuple[RegisteredSchema, ...] = ()
    name: str = ""
