"""The parts of the proof, and the digests of what each of them stands on."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.resuming import ROOT, digest_of
from tests.standing import Sources

LOCK = "requirements.lock"


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that are run together: a long one by itself, others with the other cases of their function.

    `fixtures` are those that the tests have. A part that has servers needs more than a processor, and the disk.
    """

    name: str
    tests: tuple[str, ...]
    fixtures: frozenset[str] = field(default=frozenset())
    has_servers: bool = False

    @property
    def module(self) -> str:
        """The file that has its tests."""
        return self.name.partition("::")[0]

    def file(self, folder: Path) -> Path:
        """What it has printed when it passed."""
        digest = hashlib.sha256("\n".join(self.tests).encode()).hexdigest()[:8]
        words = "".join(letter if letter.isalnum() else "-" for letter in self.name.removeprefix("tests/proof/"))
        return folder / f"{words[:120]}-{digest}.txt"


class Collected:
    """A plugin that keeps what pytest has collected."""

    items: Sequence[pytest.Item] = ()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = list(session.items)


def parts() -> list[Part]:
    """All that there is to run."""
    collected = Collected()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = pytest.main(["--proof", "--collect-only", "--quiet", "tests/proof"], plugins=[collected])
    if code:
        raise SystemExit(printed.getvalue())
    return grouped(map(test_of, collected.items))


def test_of(item: pytest.Item) -> Part:
    """What is known of a test, as a part of its own; one that is not long has the name of its function."""
    is_long = all(map(item.get_closest_marker, ("proof", "timeout")))
    name = item.nodeid if is_long else item.nodeid.partition("[")[0]
    fixtures = frozenset(item.fixturenames) if isinstance(item, pytest.Function) else frozenset[str]()
    return Part(name, (item.nodeid,), fixtures, has_servers=item.get_closest_marker("kafka") is not None)


def grouped(tests: Iterable[Part]) -> list[Part]:
    """Those of one name together."""
    found = dict[str, Part]()
    for test in tests:
        same = found.get(test.name, Part(test.name, ()))
        found[test.name] = Part(
            test.name,
            same.tests + test.tests,
            same.fixtures | test.fixtures,
            has_servers=same.has_servers or test.has_servers,
        )
    return list(found.values())


class Digests:
    """Of what parts stand on, as it is when they are asked for."""

    def __init__(self, sources: Sources, root: Path = ROOT) -> None:
        self._files, self._root = cache(sources.under), root

    def of(self, part: Part) -> str:
        return self.of_all([part])[part.name]

    def of_all(self, every: Iterable[Part]) -> dict[str, str]:
        """By the names of parts. What is common to several is read once."""

        @cache
        def stood_on(module: str, fixtures: frozenset[str]) -> str:
            return digest_of("", [LOCK, *self._files(module, fixtures)], self._root)

        return {
            part.name: digest_of("\n".join((*part.tests, stood_on(part.module, part.fixtures))), ()) for part in every
        }
