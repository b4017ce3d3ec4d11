"""Pictures of the console for the documentation, of a real run: `make screenshots`.

Words are counted in real Delta tables, several transactions at once, and sentences by minute of their event time. Some
attempts fail, some tuples are set aside or late, one process is killed, and another one takes over. Needs Chromium:
CHROMIUM, or Debian's package.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from transactional.operations.loading import open_for_reading

ROOT = Path(__file__).resolve().parents[1]
KILLED_AT, STOPPED_AT = 48, 70
MODULE = """
import random
import threading
from datetime import UTC, datetime, timedelta

from spouts import OpaqueMemoryTransactionalSpout
from state import DeadLetterTable, DeltaMapState
from transactional import TransactionalTopologyBuilder, WindowedBolt, tumbling

BEGIN = datetime.now(UTC) - timedelta(minutes=20)
SENTENCES = [
    [
        (
            f"the cow jumped over moon {n % 50} of {'N/A' if n % 997 == 905 else n % 7}",
            BEGIN + timedelta(seconds=n / 4 - (200 if n % 499 == 7 and n > 999 else partition)),
        )
        for n in range(20_000)
    ]
    for partition in range(4)
]


class ByMinute(WindowedBolt):
    output = "minute timestamp, sentences long"

    def execute(self, window):
        self.collector.emit(window.start, len(window.get()))


def split(tuple):
    if "N/A" in tuple["sentence"]:
        raise ValueError("could not convert string to float: 'N/A'")
    return [(word,) for word in tuple["sentence"].split()]


def measure(tuple):
    if random.random() < 0.00005:
        raise ConnectionError("the dictionary at 10.0.0.7 does not respond")
    if random.random() < 0.002:
        threading.Event().wait(0.05)
    return [(tuple["word"], len(tuple["word"]))]


def build():
    spout = OpaqueMemoryTransactionalSpout(SENTENCES, fields="sentence string, at timestamp", take=60)
    builder = TransactionalTopologyBuilder("sentences", "source", spout, parallelism=4)
    builder.set_bolt("split", split, output="word string", parallelism=4).shuffle_grouping("source")
    lengths = builder.set_bolt("measure", measure, output="word string, length long", parallelism=2)
    lengths.fields_grouping("split", "word")
    builder.set_committer_bolt("count", DeltaMapState("counts", key="word").count()).fields_grouping("split", "word")
    by_length = DeltaMapState("lengths", key="length").count()
    builder.set_committer_bolt("lengths", by_length).fields_grouping("measure", "length")
    builder.set_event_time("at", max_delay="30 seconds")
    minutes = builder.set_windowed_bolt(
        "by-minute", ByMinute(), window=tumbling("1 minute"), time="at", state=DeltaMapState("open-minutes")
    )
    minutes.global_grouping("source")
    closed = builder.set_committer_bolt("sentences-by-minute", DeltaMapState("minutes", key="minute").sum("sentences"))
    closed.fields_grouping("by-minute", "minute")
    builder.set_dead_letters(DeadLetterTable("dead-letters"))
    return builder.build(config={"attempts_max": 2})
"""
DESK, PHONE = 1440, 390
PICTURES = {
    "console": ("", "light", DESK, 1080),
    "console-phone": ("", "light", PHONE, 844),
    "console-phone-dark": ("attempts", "dark", PHONE, 844),
    "console-charts": ("#charts", "dark", DESK, 900),
    "console-transaction": ("transactions/{failed}", "light", DESK, 760),
    "console-configuration": ("configuration", "light", DESK, 700),
    "console-letters": ("letters", "light", DESK, 440),
}
"""By name: the page and the part of it, the scheme, width and height."""


def environment() -> dict[str, str]:
    """That of the programs that are started: they find this copy."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@contextmanager
def program(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`transactional …` in a folder; killed at the end if it still runs."""
    command = [sys.executable, "-m", "transactional.operations.cli.main", *arguments]
    log = (folder / f"{arguments[0]}.log").open("a")
    with (
        log,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def run_and_kill(folder: Path) -> None:
    """A run that is killed, and one that takes over and is stopped: each where it prints that it has come so far."""
    (folder / "sentences.py").write_text(MODULE)
    (folder / "transactional.toml").write_text("[topology]\nlease_ms = 3000\nmax_spout_pending = 2\n")
    given = ("--master", "none", "--max-pending", "4", "--set", "retry_pause_ms=20", "--standby")
    for until, number in ((KILLED_AT, signal.SIGKILL), (STOPPED_AT, signal.SIGTERM)):
        with program(folder, "run", "sentences:build", *given) as process:
            assert process.stdout is not None
            has_come = False
            for line in process.stdout:
                committed = re.match(r"transaction (\d+):\d+ committed", line)
                if committed and int(committed[1]) >= until and not has_come:
                    process.send_signal(number)
                    has_come = True
            if not has_come:
                sys.exit(f"a run has ended by itself, with {process.wait()}")


def take(folder: Path, out: Path) -> None:
    """Serve the store, and take the pictures."""
    url = f"sqlite:///{folder}/transactional.db"
    run_and_kill(folder)
    with closing(open_for_reading(url)) as store:
        [status] = store.status("sentences")
        failed = store.times("sentences", limit=1_000, phases=["failed"])
    failed = [each for each in failed if each.attempt.txid <= status.committed_txid]
    if not failed or status.trouble is not None:
        sys.exit("no attempt has failed, or the last one has: take the pictures again")
    with program(folder, "ui", "--port", "0", "--app", "sentences:build") as process:
        assert process.stdout is not None
        found = re.search(r"(http://\S+/)(\?token=\S+)", process.stdout.readline())
        assert found is not None
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            for name, (path, scheme, width, height) in PICTURES.items():
                dark = "dark" if scheme == "dark" else "light"
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=dark)
                page = context.new_page()
                page.goto(found[1] + found[2])
                path, _, part = path.format(failed=failed[0].attempt.txid).partition("#")
                shoot(page, f"{found[1]}t/sentences/{path}", out / f"{name}.png", part)
                context.close()
            browser.close()


def shoot(page: Page, address: str, file: Path, part: str) -> None:
    """One page as a picture; or a part of it, with the pointer on it."""
    page.goto(address)
    if part:
        page.locator(f"[data-part={part}]").hover(position={"x": 130, "y": 120})
        page.locator(f"[data-part={part}]").screenshot(path=file)
    else:
        page.screenshot(path=file)
    print(f"{file}, {file.stat().st_size // 1024} KB")


def chromium() -> str:
    """Return the path of the browser."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    return found or sys.exit("there is no chromium: run tools/ensure.sh chromium, or name it in CHROMIUM")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "pictures").resolve()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        take(Path(scratch), target)
