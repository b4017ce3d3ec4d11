"""What commands share that take long, and are continued by the next call: a budget, digests, files that are whole."""

from __future__ import annotations

import argparse
import hashlib
import re
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SECONDS = {"s": 1, "m": 60, "h": 3_600}


def seconds(text: str) -> float:
    """`90s`, `40m` or `2h`."""
    found = re.fullmatch(r"(\d+)([smh])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 40m or 2h")
    return float(found[1]) * _SECONDS[found[2]]


def digest_of(said: str, files: Iterable[str], root: Path = ROOT) -> str:
    """Of what is run, and of the files that it depends on: as long as that is the same, so is what becomes of it."""
    digest = hashlib.sha256(said.encode())
    for name in files:
        path = root / name
        digest.update(f"\0{name}\0".encode())
        digest.update(path.read_bytes() if path.is_file() else b"\0")
    return digest.hexdigest()[:16]


def write_whole(file: Path, text: str) -> None:
    """All of it or nothing, for whoever reads the file meanwhile, or after the process has died."""
    written = file.with_name(f"{file.name}.new")
    written.write_text(text, encoding="utf-8")
    written.replace(file)


def say(text: str) -> None:
    """At once, also where somebody reads it through a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def end_as_ctrl_c_does() -> None:
    """Both signals raise `KeyboardInterrupt`; a shell has what it runs in the background ignore the first."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
