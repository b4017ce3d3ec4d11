"""`python -m tests.experiment`: the whole experiment, about 35 minutes; `--every 20 --kills 3` is a short look.

Four workers of a standalone cluster, a real broker, PostgreSQL as the store. First both systems work off a backlog,
undisturbed; `--share` of the slower one's throughput is then the load for both, one after the other, offered whether
they keep up or not, while workers and leaders are killed by one and the same plan. At the end both tables are checked
exactly. The picture and the figures go to `--output`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from bench import machine
from spouts.local_broker import LocalBroker
from tests.experiment import load, report
from tests.experiment.machines import Machines, machines
from tests.experiment.schedule import Kind, Plan
from tests.experiment.systems import Ours, Peer, System
from tests.experiment.timeline import Run
from tests.integration.postgres import new_schema, postgres_server
from transactional.runtime.engine.clock import SystemClock

DRAIN_S = 900
WARM = 20_000
"""Messages that are committed before the load begins: nobody starts under fire."""
PLAN = Plan()
Make = Callable[[Path, str, str], System]
"""A system in a folder, on the cluster of this master, that counts this topic."""


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.experiment", description=__doc__)
    parser.add_argument("--kills", type=int, default=PLAN.kills, help="workers killed that come back")
    parser.add_argument("--every", type=float, default=PLAN.every_s, help="seconds from one kill to the next")
    parser.add_argument("--away", type=float, default=PLAN.away_s, help="seconds until a worker is back")
    parser.add_argument("--share", type=float, default=0.6, help="of the slower one's throughput")
    parser.add_argument("--rate", type=float, help="messages a second; otherwise it is measured")
    parser.add_argument("--backlog", type=int, default=2_000_000, help="messages for that measurement")
    parser.add_argument("--output", type=Path, default=Path("docs/performance"), help="where picture and figures go")
    return parser.parse_args(arguments)


def undisturbed(make: Make, folder: Path, workers: int, topic: str, messages: int) -> float:
    """Messages a second while it works off a backlog, from a tenth of it to its end."""
    with machines(folder, workers) as cluster:
        system = make(folder / "run", cluster.master, topic)
        try:
            system.start()
            system.await_positions(load.positions(messages), DRAIN_S)
            commits = [each for each in system.committed(0) if each.messages >= messages / 10]
        finally:
            system.stop()
    return (commits[-1].messages - commits[0].messages) / (commits[-1].at_s - commits[0].at_s)


def under_fire(make: Make, folder: Path, plan: Plan, bootstrap: str, topic: str, rate: float) -> Run:
    """The load and the kills; then the rest is worked off, and the table checked."""
    with machines(folder, plan.workers) as cluster:
        load.backlog(bootstrap, topic, WARM)
        offered = load.OpenLoop(bootstrap, topic, rate, first=WARM)
        system = make(folder / "run", cluster.master, topic)
        try:
            system.start()
            system.await_positions(load.positions(WARM), DRAIN_S)
            with offered:
                disturb(system, cluster, plan, offered)
            took_s = system.await_positions(load.positions(offered.messages), DRAIN_S)
            say(f"{system.name}: {offered.messages:,} messages, all of them committed {took_s:.1f} s after the last")
            since = offered.began_wall_s
            run = Run(system.name, offered.due, system.committed(since), system.failed_at(since))
        finally:
            system.stop()
        found, expected = system.counts(), load.counts(offered.messages)
        wrong = sum(found.get(word, 0) != count for word, count in expected.items()) + len(found.keys() - expected)
        say(f"{system.name}: {'exact' if not wrong else f'WRONG: {wrong} of {len(expected)} words'}")
        if wrong:
            raise SystemExit(1)
    return run


def disturb(system: System, cluster: Machines, plan: Plan, offered: load.OpenLoop) -> None:
    """Do what the plan says, when it says so, until it is over."""
    clock = threading.Event()
    for step in plan.steps():
        clock.wait(max(offered.began_at + step.at_s - time.monotonic(), 0))
        if step.kind is Kind.BACK:
            cluster.start(step.worker)
        else:
            cluster.kill(step.worker)
        if step.kind is Kind.LEADER:
            system.kill_leader()
        behind = max(offered.messages - sum(system.reached()), 0)
        say(f"{step.at_s:>6.0f} s: {step.kind.value} ({step.worker}); {behind:,} messages behind")
    clock.wait(max(offered.began_at + plan.lasts_s - time.monotonic(), 0))


def say(line: str) -> None:
    """A line for who watches."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """All of it."""
    options = options_of(sys.argv[1:])
    plan = Plan(kills=options.kills, every_s=options.every, away_s=options.away)
    with (
        tempfile.TemporaryDirectory(prefix="experiment-") as temporary,
        postgres_server(durable=True) as sockets,
        closing(LocalBroker().start()) as broker,
    ):
        here = Path(temporary)

        def ours(folder: Path, master: str, topic: str) -> System:
            return Ours(folder, master, broker.bootstrap, topic, new_schema(sockets, topic))

        def peer(folder: Path, master: str, topic: str) -> System:
            return Peer(folder, master, broker.bootstrap, topic)

        makers = {"ours": ours, "peer": peer}
        rates = {}
        if options.rate is None:
            load.backlog(broker.bootstrap, "backlog", options.backlog)
            for name, make in makers.items():
                folder = here / f"undisturbed-{name}"
                folder.mkdir()
                rates[name] = undisturbed(make, folder, plan.workers, "backlog", options.backlog)
                say(f"{name}: {rates[name]:,.0f} messages a second, undisturbed")
        rate = options.rate or options.share * min(rates.values())
        say(f"load: {rate:,.0f} messages a second for {plan.lasts_s:.0f} s")
        runs = []
        for name, make in makers.items():
            folder = here / name
            folder.mkdir()
            runs.append(under_fire(make, folder, plan, broker.bootstrap, f"load_{name}", rate))
    facts = {
        "measured_at_ms": SystemClock().wall_ms(),
        "machine": machine.facts(),
        "rate": rate,
        "undisturbed": rates,
        "plan": [[step.at_s, step.kind.value, step.worker] for step in plan.steps()],
    }
    report.save(options.output, plan, runs, facts)
    for run in runs:
        for line in report.lines(run, plan.steps()):
            say(line)


if __name__ == "__main__":
    main()
