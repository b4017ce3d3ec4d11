"""The parts of the benchmark that run in processes of their own: thousands of transactions, profiles, tables."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.figures import Spread
from bench.results import heading, save
from bench.targets import WHOLE_RUN

PROFILED = ((1_000, 2_000), (20_000, 250), (200_000, 40))
"""Batch sizes, and as many transactions as a profile can take at most."""
SHORT_TRANSACTIONS, TRANSACTIONS = 500, WHOLE_RUN
PROGRAM_S = 600
"""After so long a program is ended: it has hung."""


def steady(options: argparse.Namespace, command: str) -> None:
    """Memory and the coordinator's own work over thousands of transactions."""
    transactions = SHORT_TRANSACTIONS if options.short else TRANSACTIONS
    found = _program(options, ["--transactions", str(transactions), "--minutes", "1" if options.short else "4"])
    save({**heading("steady", command), "others_share": _others([found]), **found}, options.output)


def profile(options: argparse.Namespace, command: str) -> None:
    """Profiles of three batch sizes, where py-spy is to be had; nothing is written where it is not."""
    if not options.py_spy:
        return
    profiles = []
    for batch, transactions in PROFILED:
        asked = ["--transactions", str(transactions), "--batch", str(batch), "--minutes", "1.5"]
        seconds = ["--seconds", "5" if options.short else "10"]
        profiles.append(_program(options, [*asked, *seconds, "--py-spy", options.py_spy]))
        document = {**heading("profile", command), "others_share": _others(profiles), "profiles": profiles}
        save(document, options.output)


def tables(options: argparse.Namespace, command: str) -> None:
    """Transaction commits against size and age of their table, never short; `python -m bench tables` says more."""
    asked = ["--layouts", "log", "--minutes", "4"]
    _run(["-m", "bench", "tables", *asked, "--output", str(options.output / "tables.json")])


def streams(options: argparse.Namespace, command: str) -> None:
    """Operations of streams beside bolts by hand, in processor time; `python -m bench.streams` says more."""
    _small(options, command, "streams", 5 if options.short else 15)


def closing(options: argparse.Namespace, command: str) -> None:
    """Transactions that close windows beside how many are open; `python -m bench.closing` says more."""
    _small(options, command, "closing", 30 if options.short else 110)


def guarantees(options: argparse.Namespace, command: str) -> None:
    """What the three guarantees cost; `python -m bench.guarantees` says more."""
    _small(options, command, "guarantees", 3 if options.short else 9)


def _small(options: argparse.Namespace, command: str, part: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        output = Path(folder) / "found.json"
        _run(["-m", f"bench.{part}", "--rounds", str(rounds), "--output", str(output)])
        found: dict[str, Any] = json.loads(output.read_text("utf-8"))
    save({**heading(part, command), **found}, options.output)


def lookups(options: argparse.Namespace, command: str) -> None:
    """Questions from another process while transactions commit; `python -m bench.lookups` says more."""
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        output = Path(folder) / "found.json"
        _run(["-m", "bench.lookups", "--rounds", "1" if options.short else "3", "--output", str(output)])
        found: dict[str, Any] = json.loads(output.read_text("utf-8"))
    save({**heading("lookups", command), **found}, options.output)


def py_spy() -> str:
    """Where py-spy is: beside this Python or on the path; empty where it is not."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def _program(options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        output = Path(folder) / "found.json"
        _run(["-m", "bench.steady", *arguments, "--directory", folder, "--output", str(output)])
        found: dict[str, Any] = json.loads(output.read_text("utf-8"))
    return found


def _others(found: list[dict[str, Any]]) -> dict[str, float] | None:
    """What others took of the machine, over all programs that were run."""
    shares = [each["others"] for each in found if each["others"] is not None]
    return asdict(Spread.of(shares)) if shares else None


def _run(arguments: list[str]) -> None:
    subprocess.run([sys.executable, *arguments], check=True, timeout=PROGRAM_S)
