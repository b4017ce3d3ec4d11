"""One variant after the other: planted in a copy of the repository, and tests of its room run there, tier by tier."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Final, Self

import pytest

from tests import resuming
from tests.mutants.noting import OUTCOMES, failed_tests, passed_tests
from tests.mutants.planting import ROOT, Variant
from tests.mutants.suites import servers_of, suites_of
from tests.processes import keep_to_one_processor
from tests.tidy.files import our_files


class Tier(StrEnum):
    """Which tests a variant is planted under. What one tier has caught goes to no later one."""

    CHECK = "check"
    """What `make check` runs of its room, up to the first that fails."""
    TEST = "test"
    """The files with servers of its room, as `make test` selects cases of them (`--sample`)."""
    ALL = "all"
    """The same files in full."""

    @property
    def has_servers(self) -> bool:
        """Whether its tests start servers and programs."""
        return self is not Tier.CHECK

    @property
    def until(self) -> list[Tier]:
        """The tiers that come before this one, and itself."""
        return list(Tier)[: list(Tier).index(self) + 1]

    def tests_of(self, file: str, root: Path) -> list[str]:
        """The files with tests that are run for a file of the code."""
        return (servers_of if self.has_servers else suites_of)(file, root)


PYTEST: Final = (
    *(sys.executable, "-m", "pytest", "--quiet", "--tb=no", "-p", "tests.mutants.noting"),
    # The same examples each time, and nothing that is remembered of another variant.
    *("--hypothesis-seed=0", "-p", "no:cacheprovider"),
)
# A test that hangs is to fail before the tier is over. Of three that fail one may do so without the variant, too.
WITH_SERVERS: Final = (*PYTEST, "--timeout=100", "--maxfail=3")
COMMANDS: Final = {
    Tier.CHECK: (*PYTEST, "--exitfirst", "--sample", "--hypothesis-profile=check", "--without-servers"),
    Tier.TEST: (*WITH_SERVERS, "--sample", "--hypothesis-profile=check"),
    Tier.ALL: WITH_SERVERS,
}
LIMIT_S: Final = 300
"""How long a variant may take in a tier with servers. What has failed until then has caught it."""
ENDS_WITHIN_S: Final = 30
"""How long tests that are interrupted may take to end their servers."""
SILENT_S: Final = 600
"""Tests of `make check` of which none ends for so long do not end. All of them may take longer: the machine may be a
busy one."""
HANGS: Final = "(the tests did not end)"
"""What has caught a variant that hangs them."""
MEMORY: Final = Path("/dev/shm")  # A folder of its own is made there.
MEMORY_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a variant in a tier, and the digest of what that depends on."""

    name: str
    tier: Tier
    caught_by: tuple[str, ...]
    """The first test of each file that has caught it; only one for `make check`."""
    took_s: float
    digest: str
    tests: tuple[str, ...] = field(default=())
    """The files with the tests that decide about it: that of the test that has caught it in `make check`, or all."""
    is_cut: bool = False
    """Whether the tests were ended before all of them had been run."""

    @property
    def files(self) -> list[str]:
        """The files with a test that has caught it."""
        return [file_of(test) for test in self.caught_by]


def digest_of(variant: Variant, tests: Iterable[str], root: Path = ROOT) -> str:
    """Of the variant, its file and tests: as long as that is the same, so is what becomes of it."""
    return resuming.digest_of(json.dumps(asdict(variant)), (variant.file, *tests), root)


class Results:
    """The results so far, in a file: whoever is interrupted continues there."""

    def __init__(self, file: Path, root: Path = ROOT) -> None:
        self._file, self._root, self._lock = file, root, Lock()
        self._by_key = dict[tuple[str, str], Result]()
        for values in json.loads(file.read_text(encoding="utf-8")) if file.exists() else ():
            lists = {name: tuple(values[name]) for name in ("caught_by", "tests")}
            self._by_key[values["name"], values["tier"]] = Result(**{**values, **lists, "tier": Tier(values["tier"])})

    def of(self, variant: Variant, tier: Tier) -> Result | None:
        """What is known of a variant in a tier, unless something has changed since."""
        result = self._by_key.get((variant.name, tier))
        if result is None or result.digest != digest_of(variant, result.tests, self._root):
            return None
        return result

    def last(self, variant: Variant) -> Result | None:
        """The result of the tier that has caught a variant, or of the last one that is known; None: nothing is."""
        last: Result | None = None
        for tier in Tier:
            result = self.of(variant, tier)
            if result is None:
                break
            last = result
            if result.caught_by:
                break
        return last

    def next_tier(self, variant: Variant) -> Tier | None:
        """The tier in which a variant is to be tried next; None: it is caught, or no tier is left."""
        last = self.last(variant)
        if last is None:
            return Tier.CHECK
        return None if last.caught_by else {Tier.CHECK: Tier.TEST, Tier.TEST: Tier.ALL}.get(last.tier)

    def add(self, result: Result) -> None:
        """Note a result, at once."""
        with self._lock:
            self._by_key[result.name, result.tier] = result
            kept = [asdict(each) for each in self._by_key.values()]
            resuming.write_whole(self._file, json.dumps(kept, indent=1))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tests have shown: those that have failed, in their order, and those that have passed."""

    failed: tuple[str, ...] = ()
    passed: frozenset[str] = frozenset()
    is_cut: bool = False


class Clean:
    """The tests of a tier that are known to pass, or to fail, without a variant."""

    def __init__(self) -> None:
        self._passes, self._lock = dict[str, bool](), Lock()

    def passing(self, copy: Copy, tier: Tier, tests: Sequence[str]) -> set[str]:
        """Those of the tests that pass in a copy without a variant; each is run once."""
        with self._lock:
            unknown = [test for test in tests if test not in self._passes]
        passed = copy.outcome(tier, unknown).passed if unknown else frozenset[str]()
        with self._lock:
            self._passes |= {test: test in passed for test in unknown}
            return {test for test in tests if self._passes[test]}


class Copy:
    """A copy of the repository's files, in which variants are planted; the checkout is not touched. `number` is that of
    the processor that the tests of `make check` are kept to."""

    def __init__(self, number: int, is_over: Event, root: Path = ROOT) -> None:
        has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
        self._number, self._is_over = number, is_over
        # Short names: servers make sockets below, whose paths have 107 bytes at most.
        self._folder = tempfile.TemporaryDirectory(prefix="m-", dir=MEMORY if has_room else None)
        Path(self._folder.name).chmod(0o755)  # PostgreSQL is another user
        self.root, self._scratch = Path(self._folder.name) / "copy", Path(self._folder.name) / "t"
        for path in our_files(root):
            target = self.root / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._folder.cleanup()

    def tried(self, variant: Variant, tier: Tier, clean: Clean) -> Result | None:
        """Plant a variant and run its tests; None: it was interrupted.

        A test with servers that fails without the variant, too, or passes with it at a second try, has caught nothing.
        Raises `RuntimeError` where one of `make check` fails without it.
        """
        began_s, tests = time.monotonic(), tier.tests_of(variant.file, self.root)
        outcome = self._outcome_with(variant, tier, tests)
        caught_by = outcome.failed if outcome.failed == (HANGS,) else self._confirmed(outcome.failed, tier, clean)
        if caught_by and tier.has_servers:  # on a busy machine one fails now and then, with a variant or without
            passed = self._outcome_with(variant, tier, caught_by).passed
            caught_by = tuple(test for test in caught_by if test not in passed)
        if self._is_over.is_set():
            return None
        if outcome.failed and not caught_by and tier is Tier.CHECK:
            raise RuntimeError(f"{outcome.failed[0]} fails without {variant.name}, too: `make check` has to pass first")
        decide = [file_of(caught_by[0])] if tier is Tier.CHECK and caught_by not in ((), (HANGS,)) else tests
        took_s, digest = round(time.monotonic() - began_s, 1), digest_of(variant, decide, self.root)
        return Result(variant.name, tier, caught_by, took_s, digest, tuple(decide), outcome.is_cut)

    def _outcome_with(self, variant: Variant, tier: Tier, tests: Iterable[str]) -> Outcome:
        """What tests show while the variant is planted."""
        path = self.root / variant.file
        text = path.read_text(encoding="utf-8")
        try:
            self._write(path, variant.planted(text))
            return self.outcome(tier, tests)
        finally:
            self._write(path, text)

    def _confirmed(self, failed: Sequence[str], tier: Tier, clean: Clean) -> tuple[str, ...]:
        """The first test of each file that passes without the variant."""
        left, first = dict[str, list[str]](), dict[str, str]()
        for test in failed:
            left.setdefault(file_of(test), []).append(test)
        while left:
            passing = clean.passing(self, tier, [tests[0] for tests in left.values()])
            for file, tests in list(left.items()):
                test = tests.pop(0)
                if test in passing:
                    first[file] = test
                if test in passing or not tests:
                    del left[file]
        return tuple(first[file] for file in dict.fromkeys(map(file_of, failed)) if file in first)

    def outcome(self, tier: Tier, tests: Iterable[str]) -> Outcome:
        """What tests show. Raises `RuntimeError` where pytest can't run them."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        noted = self._scratch.with_name("outcomes")
        noted.write_text("", encoding="utf-8")
        surroundings = {**os.environ, "PYTHONPATH": str(self.root), "TMPDIR": str(self._scratch), OUTCOMES: str(noted)}
        surroundings["PYTHONUNBUFFERED"] = "1"
        surroundings.pop("PYTHONDONTWRITEBYTECODE", None)
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
            process = subprocess.Popen(
                [*COMMANDS[tier], *tests],
                cwd=self.root,
                env=surroundings,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            if not tier.has_servers:
                keep_to_one_processor(self._number, process.pid)
            try:
                code = self._wait(process, printed.fileno(), LIMIT_S if tier.has_servers else float("inf"))
            finally:
                self._end_others()
            printed.seek(0)
            text, outcomes = printed.read(), noted.read_text(encoding="utf-8")
        failed, passed = failed_tests(outcomes), frozenset(passed_tests(outcomes))
        if code is None:
            return Outcome(failed, passed, is_cut=True) if tier.has_servers else Outcome((HANGS,))
        if code != pytest.ExitCode.OK and not failed and not self._is_over.is_set():
            raise RuntimeError(f"pytest ended with code {code}:\n{text[-2_000:]}")
        return Outcome(failed, passed)

    def _wait(self, process: subprocess.Popen[bytes], printed: int, limit_s: float) -> int | None:
        """The exit code; None: its time is over, or it prints nothing any more, as it does for each test that ends, or
        it has to end."""
        began_s = since_s = time.monotonic()
        size = 0
        while time.monotonic() < min(since_s + SILENT_S, began_s + limit_s) and not self._is_over.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.2)
            if (now := os.fstat(printed).st_size) > size:
                size, since_s = now, time.monotonic()
        process.send_signal(signal.SIGINT)  # so that fixtures end the servers that they have started
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None

    def _end_others(self) -> None:
        """End what tests have left behind, as variants have them do: all that has this copy's folder for its files."""
        ours = f"TMPDIR={self._scratch}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if ours in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    def _write(self, path: Path, text: str) -> None:
        """Nothing that was compiled of another text is left."""
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def file_of(test: str) -> str:
    """The file of a test, by its id."""
    return test.partition("::")[0]
