"""The parts of the proof, and the digests of what each of them stands on: the modules that its processes loaded when it
passed, as far as its tests can reach them, and what is installed."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.resuming import ROOT, digest_of
from tests.standing import Sources
from tests.tidy.files import our_files

LOCK = "requirements.lock"


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that are run together: a long one by itself, one with short cases with all of these, other short ones with
    those of their file, so that a part is worth the start of its process.

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
    """What is known of a test, as a part of its own; one that is not long has the name of its function or file."""
    is_long = all(map(item.get_closest_marker, ("proof", "timeout")))
    file, (function, bracket, _) = item.nodeid.partition("::")[0], item.nodeid.partition("[")
    name = item.nodeid if is_long else function if bracket else file
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
    """The digests of what parts stand on, as the files were when this was made."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root, self._sources = root, Sources(root)
        names = [path.relative_to(root).as_posix() for path in our_files(root)]
        self._contents = {name: self._content(name) for name in names}

    def files(self, part: Part, loaded: Collection[str]) -> frozenset[str]:
        """What a part stands on whose processes have loaded these files: what its tests can reach of them, and what is
        installed."""
        return frozenset([LOCK, *self._sources.under(part.module, part.fixtures, loaded)])

    def of(self, part: Part, files: Iterable[str]) -> str:
        """The digest of a part that stands on these files."""
        return digest_of("\n".join([*part.tests, *(self._contents.get(name, "") for name in sorted(files))]), ())

    def changed(self, files: Iterable[str]) -> list[str]:
        """Those of the files that are not what they were any more."""
        return [name for name in sorted(files) if self._contents.get(name) != self._content(name)]

    def _content(self, name: str) -> str:
        return digest_of("", [name], self._root)
