"""A contest: systems that do the same work in turns, A B C A B C …, each over the same messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console

from bench import machine, processes
from bench.results import Results, save
from bench.rounds import CountingSystem, Round, Stage, System, bytes_of_new, check_counts, files_below
from bench.workload import Workload
from bench.works import Work

FILL_BATCH = 200_000
"""Messages per batch while tables are filled: then they hold nearly all keys, and everything is warm."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a contest is: rounds, and batches in each."""

    batch_messages: int
    rounds: int
    batches: int

    @property
    def messages(self) -> int:
        """Messages in one round."""
        return self.batch_messages * self.batches


@dataclass(frozen=True, slots=True)
class Contest:
    """Where rounds go to, and when no further one may start.

    `append` writes the messages of a workload from one number to before another into its topic.
    """

    stage: Stage
    results: Results
    console: Console
    deadline_s: float
    output: Path
    append: Callable[[Workload, int, int], None]

    def hold(self, work: Work, systems: Sequence[System], plan: Plan) -> None:
        """Fill the tables, let all work in turns, check the counts. Raises `WrongResult` for a wrong one.

        A topic has no more messages than the systems are to read: the peers read it to its end.
        """
        workload, done = work.workload, work.workload.fill
        self._append(systems, 0, done)
        for system in systems:
            system.run(workload.until(done), FILL_BATCH)
        for number in range(1, plan.rounds + 1):
            if monotonic() > self.deadline_s:
                self.console.print(f"time is up: {work.name}, {plan.batch_messages:,}: round {number} is left out")
                break
            start, done = done, min(done + plan.messages, workload.messages)
            self._append(systems, start, done)
            for system in systems:
                self._round(work, system, plan, number, workload.until(done))
        expected = work.expected(workload.until(done))
        for system in systems:
            if isinstance(system, CountingSystem):
                check_counts(system, expected)
                formatted = f"{work.name}, {system.name}, batches of {plan.batch_messages}: {len(expected)} keys"
                self.results.checked.append(formatted)

    def _append(self, systems: Sequence[System], start: int, end: int) -> None:
        for workload in {system.work.workload.topic: system.work.workload for system in systems}.values():
            self.append(workload, start, end)

    def _round(self, work: Work, system: System, plan: Plan, number: int, until: Mapping[int, int]) -> None:
        parts, files = processes.by_part(self.stage.session), files_below(system.directory)
        processes.reset_peaks(parts)
        before = machine.cpu_time()
        batches = system.run(until, plan.batch_messages)
        after = machine.cpu_time()
        round_ = Round(
            work=work.name,
            system=system.name,
            batch_messages=plan.batch_messages,
            messages=plan.messages,
            batches=tuple(batches),
            others_share=after.others_share_since(before) if before and after else None,
            bytes_written=bytes_of_new(files, files_below(system.directory)),
            peaks_mib=processes.peaks_mib(processes.by_part(self.stage.session)),
        )
        # At the end of a topic a transaction without records may close windows.
        if len(batches) not in (1, plan.batches, plan.batches + 1):
            raise RuntimeError(f"{system.name}: {len(batches)} batches of {plan.batch_messages}, not {plan.batches}")
        self.results.rounds.append(round_)
        save(self.results.document(), self.output)
        speed = f"{round_.messages_per_second:11,.0f} messages/s"
        self.console.print(f"{work.name:9} {plan.batch_messages:9,} {system.name:9} round {number}: {speed}")
