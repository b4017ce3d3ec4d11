"""Keeps docs/proof.json and its page while parts of the proof are run."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tests.proof.entries import Entry, Proof, kind_of
from tests.proof.page import page_of
from tests.proof.parts import Digests, Part
from tests.proof.running import Outcome
from tests.resuming import ROOT, write_whole
from transactional.runtime.engine.clock import SystemClock


class Record:
    """The file of how these parts have ended, over the code of these digests, and its page. It is read each time, as it
    may come from another commit meanwhile, and written whole."""

    def __init__(self, file: Path, parts: Sequence[Part], digests: Digests, commit: str) -> None:
        self._parts, self._digests = parts, digests
        self._file, self._commit = file, commit
        self._write({})

    @property
    def proof(self) -> Proof:
        return Proof.read(self._file)

    def waiting(self, every: Sequence[Part], seed: int | None) -> list[Part]:
        """The parts to run, in this order: those that failed, those that never passed, then those that stand on other
        code now, oldest first. With a seed also those that have passed with another one."""
        entries = self.proof.parts

        def rank(part: Part) -> tuple[int, str]:
            entry = entries[part.name]
            if entry is None:
                return 1, ""
            if not entry.passed:
                return 0, entry.at
            if self._is_stale(part, entry):
                return 2, entry.at
            return 4 if seed in (None, entry.seed) else 3, entry.at

        return sorted((part for part in every if rank(part)[0] < 4), key=rank)

    def note(self, outcome: Outcome, seed: int) -> None:
        """How a part has ended. One that failed has not passed before either, as far as the file knows."""
        proved, files = outcome.proved, self._digests.files(outcome.part, outcome.loaded)
        entry = Entry(
            outcome.passed,
            self._digests.of(outcome.part, files),
            self._commit,
            now(),
            seed,
            round(outcome.took_s, 1),
            round(proved.processors_s, 1),
            proved.counts,
            files,
        )
        self._write({outcome.part.name: entry})

    def objection(self, outcome: Outcome) -> str:
        """Why it can't be noted that a part has passed; empty: nothing objects."""
        if outcome.part.module not in outcome.loaded:
            return "its processes have not named the files that they load"
        changed = self._digests.changed(self._digests.files(outcome.part, outcome.loaded))
        return f"{', '.join(changed)}: changed meanwhile" if changed else ""

    def _is_stale(self, part: Part, entry: Entry) -> bool:
        return self._digests.of(part, entry.files) != entry.digest

    def _write(self, ended: Mapping[str, Entry]) -> None:
        """Parts that are no more are left out."""
        before = self.proof
        parts = {part.name: ended.get(part.name, before.parts.get(part.name)) for part in self._parts}
        passed = ((part, entry) for part in self._parts if (entry := parts[part.name]) and entry.passed)
        older = (part.name for part, entry in passed if self._is_stale(part, entry))
        proof = Proof(parts, Counter(map(kind_of, older)), self._commit, now(), before.files)
        write_whole(self._file, proof.text())
        write_whole(self._file.with_suffix(".md"), page_of(proof))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """While nobody else does, who would run the same parts. Raises `SystemExit` if somebody does."""
    held = os.open(folder, os.O_RDONLY)
    with ExitStack() as stack:
        stack.callback(os.close, held)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another run of the proof writes to {folder}") from None
        yield


def now() -> str:
    """To the minute."""
    return datetime.fromtimestamp(SystemClock().wall_ms() / 1_000, UTC).strftime("%Y-%m-%dT%H:%MZ")


def commit_of(root: Path = ROOT) -> str:
    """The commit that is checked out, with a plus if files differ from it; empty where there is no git."""
    head = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", ".", ":(exclude)docs"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return head.stdout.strip() + "+" * bool(changed.stdout.strip())
