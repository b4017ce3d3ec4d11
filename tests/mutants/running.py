"""One variant after the other: planted in a copy of the repository, and the tests of its room run there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Final, Self

import pytest

from tests import resuming
from tests.mutants.planting import ROOT, Variant
from tests.mutants.suites import suites_of
from tests.processes import keep_to_one_processor
from tests.tidy.files import our_files

MARKS: Final = " and ".join(
    f"not {mark}" for mark in ("spark", "kafka", "postgres", "redis", "registry", "browser", "promtool")
)
COMMAND: Final = (
    *(sys.executable, "-m", "pytest", "--quiet", "--exitfirst", "--sample", "--hypothesis-profile=check"),
    # The same examples each time, and nothing that is remembered of another variant.
    *("--hypothesis-seed=0", "-p", "no:cacheprovider", "--tb=no", "-rfE", "-m", MARKS),
)
SILENT_S: Final = 600
"""Tests of which none ends for so long do not end. All of them may take longer: the machine may be a busy one."""
HANGS: Final = "(the tests did not end)"
"""What has caught a variant that hangs them."""
MEMORY: Final = Path("/dev/shm")  # A folder of its own is made there.
MEMORY_BYTES: Final = 2 << 30
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a variant: the test that has caught it, if one has, and the digest of what that depends on."""

    name: str
    caught_by: str | None
    took_s: float
    digest: str
    tests: tuple[str, ...] = field(default=())
    """The files with the tests that decide about it: that of the test that has caught it, or all that have not."""


def digest_of(variant: Variant, tests: Iterable[str], root: Path = ROOT) -> str:
    """Of the variant, its file and tests: as long as that is the same, so is what becomes of it."""
    return resuming.digest_of(json.dumps(asdict(variant)), (variant.file, *tests), root)


class Results:
    """The results so far, in a file: whoever is interrupted continues there."""

    def __init__(self, file: Path, root: Path = ROOT) -> None:
        self._file, self._root, self._lock = file, root, Lock()
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        self._of = {each["name"]: Result(**{**each, "tests": tuple(each["tests"])}) for each in kept}

    def of(self, variant: Variant) -> Result | None:
        """What is known of a variant, unless something has changed since."""
        result = self._of.get(variant.name)
        if result is None or result.digest != digest_of(variant, result.tests, self._root):
            return None
        return result

    def add(self, result: Result) -> None:
        """Note a result, at once."""
        with self._lock:
            self._of[result.name] = result
            resuming.write_whole(self._file, json.dumps([asdict(each) for each in self._of.values()], indent=1))


class Clean:
    """The tests that are known to pass without a variant."""

    def __init__(self) -> None:
        self._passed, self._lock = set[str](), Lock()

    def passes(self, copy: Copy, test: str) -> bool:
        """Whether a test passes in a copy without a variant; it is run once."""
        with self._lock:
            if test in self._passed:
                return True
        if copy.failing([test]) is not None:
            return False
        with self._lock:
            self._passed.add(test)
        return True


class Copy:
    """A copy of the repository's files, in which variants are planted; the checkout is not touched. `number` is that of
    the processor that its tests are kept to."""

    def __init__(self, number: int, is_over: Event, root: Path = ROOT) -> None:
        has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
        self._number, self._is_over = number, is_over
        self._folder = tempfile.TemporaryDirectory(prefix="mutants-", dir=MEMORY if has_room else None)
        self.root, self._scratch = Path(self._folder.name) / "copy", Path(self._folder.name) / "scratch"
        for path in our_files(root):
            target = self.root / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._folder.cleanup()

    def tried(self, variant: Variant, clean: Clean) -> Result | None:
        """Plant a variant and run its tests; None: it was interrupted. Raises `RuntimeError` where the tests fail
        without it, too."""
        began_s, tests = time.monotonic(), suites_of(variant.file, self.root)
        path = self.root / variant.file
        text = path.read_text(encoding="utf-8")
        try:
            self._write(path, variant.planted(text))
            test = self.failing(tests)
        finally:
            self._write(path, text)
        if self._is_over.is_set():
            return None
        if test is not None and test != HANGS and not clean.passes(self, test):
            raise RuntimeError(f"{test} fails without {variant.name}, too: `make check` has to pass first")
        decide = tests if test in (None, HANGS) else [str(test).partition("::")[0]]
        digest = digest_of(variant, decide, self.root)
        return Result(variant.name, test, round(time.monotonic() - began_s, 1), digest, tuple(decide))

    def failing(self, tests: Iterable[str]) -> str | None:
        """The first of the tests that fails; None: all pass. Raises `RuntimeError` where pytest can't run them."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        surroundings = {**os.environ, "PYTHONPATH": str(self.root), "TMPDIR": str(self._scratch)}
        surroundings["PYTHONUNBUFFERED"] = "1"
        surroundings.pop("PYTHONDONTWRITEBYTECODE", None)
        with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
            process = subprocess.Popen(
                [*COMMAND, *tests],
                cwd=self.root,
                env=surroundings,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            keep_to_one_processor(self._number, process.pid)
            code = self._wait(process, printed.fileno())
            printed.seek(0)
            text = printed.read()
        if self._is_over.is_set() or code == pytest.ExitCode.OK:
            return None
        if code is None:
            return HANGS
        if (found := _FAILED.search(text)) is None:
            raise RuntimeError(f"pytest ended with code {code}:\n{text[-2_000:]}")
        return found[1]

    def _wait(self, process: subprocess.Popen[bytes], printed: int) -> int | None:
        """The exit code; None: it prints nothing any more, as it does for each test that ends, or has to end."""
        size, since_s = 0, time.monotonic()
        while time.monotonic() < since_s + SILENT_S and not self._is_over.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.2)
            if (now := os.fstat(printed).st_size) > size:
                size, since_s = now, time.monotonic()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None

    def _write(self, path: Path, text: str) -> None:
        """Nothing that was compiled of another text is left."""
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
