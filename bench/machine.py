"""What the figures were measured on, and how much of it others took meanwhile: from /proc, where there is one."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "confluent-kafka", "pyarrow")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Processor time since boot, in clock ticks, over all cores: all there was, what was busy, and what was ours."""

    total: int
    busy: int
    own: int

    def others_share_since(self, before: CpuTime) -> float:
        """The share of the machine, 0 to 1, that processes other than ours took since `before`."""
        total = max(self.total - before.total, 1)
        return max(0.0, (self.busy - before.busy) - (self.own - before.own)) / total

    def own_cores_since(self, before: CpuTime) -> float:
        """The number of cores that this process and all below it have used on average since `before`."""
        return (self.own - before.own) / max(self.total - before.total, 1) * (os.cpu_count() or 1)

    def own_ms_since(self, before: CpuTime) -> float:
        """The milliseconds of a processor that this process and all below it have used since `before`."""
        return 1e3 * (self.own - before.own) / os.sysconf("SC_CLK_TCK")


def cpu_time() -> CpuTime | None:
    """The processor time by now; None where the system does not report it. Ours: this process and all below it."""
    if not (_PROC / "stat").exists():
        return None
    # user nice system idle iowait irq softirq steal; what a hypervisor has stolen was busy for somebody else.
    ticks = [int(word) for word in (_PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    total = sum(ticks)
    return CpuTime(total, total - ticks[3] - ticks[4], _own_ticks())


def facts() -> dict[str, str | int]:
    """The machine and the versions."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory_bytes / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def _own_ticks() -> int:
    """Ticks of the living processes below us, and of those that ended and were waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    return sum(used for process, used in ticks.items() if _is_ours(process, parents))


def _is_ours(process: int, parents: dict[int, int]) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = parents.get(process, 0)
    return False
