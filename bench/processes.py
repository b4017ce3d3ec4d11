"""The processes of a run by their part in it, what memory they took at most, and how much processor time: from /proc.

Where there is no /proc, as on macOS, nothing is known, and nothing is reported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER, JVM, WORKERS = "driver", "jvm", "workers"
_PROC = Path("/proc")
_RESET_PEAK = "5"
_KIB_PER_MIB = 1024


def by_part(session: SparkSession) -> dict[str, list[int]]:
    """Process ids: this Python process, the driver's JVM (in local mode with the executor), and Python workers."""
    gateway = session.sparkContext._gateway
    jvm = gateway.proc.pid if gateway is not None and hasattr(gateway, "proc") else 0
    parents = parents_of_all()
    below = [pid for pid in parents if _is_below(pid, jvm, parents) and _is_python(pid)] if jvm else []
    return {DRIVER: [os.getpid()], JVM: [jvm] if jvm else [], WORKERS: below}


def below() -> tuple[list[int], list[int]]:
    """Process ids of this process with all Python below it, and of every Java below it."""
    parents = parents_of_all()
    under = [pid for pid in parents if _is_below(pid, os.getpid(), parents)]
    return [os.getpid(), *(pid for pid in under if _is_python(pid))], [pid for pid in under if _name(pid) == "java"]


def threads(pids: Sequence[int]) -> int:
    """How many threads these processes have together."""
    return sum(int(_stat(pid)[17]) for pid in pids if (_PROC / str(pid)).exists())


def reset_peaks(parts: Mapping[str, list[int]]) -> None:
    """Let the kernel forget the largest memory of each process so far."""
    for pid in (pid for pids in parts.values() for pid in pids):
        with suppress(OSError):
            (_PROC / str(pid) / "clear_refs").write_text(_RESET_PEAK)


def peaks_mib(parts: Mapping[str, list[int]]) -> dict[str, float]:
    """The largest resident memory since the reset, in MiB, by part; of several processes the sum."""
    return {part: round(sum(map(_peak_kib, pids)) / _KIB_PER_MIB, 1) for part, pids in parts.items()}


def cpu_seconds(parts: Mapping[str, list[int]]) -> dict[str, float]:
    """Processor time so far, in seconds, by part; of the workers with those that have ended."""
    second = os.sysconf("SC_CLK_TCK")
    return {part: sum(_ticks(pid, ended=part == WORKERS) for pid in pids) / second for part, pids in parts.items()}


def parents_of_all() -> dict[int, int]:
    """Parent by process, of all there are."""
    found = {}
    for entry in _PROC.iterdir() if _PROC.exists() else ():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = int(_stat(int(entry.name))[1])
    return found


def _is_below(pid: int, above: int, parents: Mapping[int, int]) -> bool:
    while pid > 1:
        pid = parents.get(pid, 0)
        if pid == above:
            return True
    return False


def _is_python(pid: int) -> bool:
    return "python" in _name(pid)


def _name(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text().strip()
    return ""


def _peak_kib(pid: int) -> int:
    with suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def _ticks(pid: int, *, ended: bool) -> int:
    """Ticks of one process, with those of its children that have ended where they are requested."""
    with suppress(OSError):
        return sum(map(int, _stat(pid)[11 : 15 if ended else 13]))
    return 0


def _stat(pid: int) -> list[str]:
    """The fields of a process's stat from its state on: its name, before them, may hold anything."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
