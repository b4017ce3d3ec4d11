"""What an operator does on each journey of the matrix, one command after the other, and what each has to say."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from starlette.testclient import TestClient

from sinks.kafka.control import control_topic
from spouts.kafka_admin import create_topic, delete_topic
from tests.journeys.journey import BUILD, MENDED, SINK_PARTITIONS, SWAPPED, Journey
from tests.journeys.matrix import COMMANDS, KAFKA_SINK, Outcome, cell
from tests.journeys.sales import CLOSINGS, SOLD, TOPOLOGY
from tests.journeys.sources import topic_of
from tests.unit.command_line import Command
from transactional.core.machine.protocol import Action, Event
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import OperatingError
from transactional.operations.console.app import Console, application
from transactional.operations.launch.running import metrics_of_run, run_topology
from transactional.operations.loading import load_topology, open_for_reading
from transactional.operations.web.guard import Access
from transactional.runtime.engine.history.journal import JournalWriter
from transactional.runtime.engine.history.observing import Committed, Notice

STORE = "sqlite:///transactional.db"
JOURNAL = "journal.jsonl"
TOKEN = "a-token-of-the-tests"
PAGES = ("", "attempts", "transactions/1", "partitions", "states", "letters", "runs", "configuration")
RUN = ("run", "--master", "none", "--until-drained")
KEPT = ("--journal", JOURNAL)


class Killed(BaseException):
    """The process is gone."""


@dataclass
class MatrixJourney(Journey):
    """`states` are the kinds of its tables, `sink` is the kind of its sinks, or empty. `covered` are the commands that
    it has tried, `noted` is the transaction of its savepoint."""

    states: Sequence[str] = field(kw_only=True)
    sink: str = ""
    covered: set[str] = field(default_factory=set)
    noted: int = 0
    id: str = TOPOLOGY
    options: ClassVar[tuple[str, ...]] = KEPT

    @property
    def accepting(self) -> Sequence[str]:
        """What a rewind needs besides, if a sink can take nothing back."""
        return ("--accept-sent",) if self.sink == KAFKA_SINK else ()

    def go(self) -> None:
        """All steps; after each that changes something the tables are those of the model."""
        for number, does in enumerate(STEPS, start=1):
            try:
                does(self)
                if does not in READS:
                    self.holds()
            except BaseException as error:
                error.add_note(f"in step {number}, {does.__name__}")
                raise
        assert self.covered == {
            each for each in COMMANDS if cell(each, self.name, self.states, self.sink).outcome is not Outcome.NONE
        }

    def covers(self, command: str) -> bool:
        """Whether a command works here; one that does not apply is not to be tried."""
        self.covered.add(command)
        found = cell(command, self.name, self.states, self.sink)
        assert found.outcome is not Outcome.NONE, command
        return found.outcome is Outcome.WORKS

    def tries_cell(self, command: str, *arguments: str) -> str | None:
        """What a command prints that works here; None for one that is refused, in the one line that its cell has."""
        if self.covers(command):
            return self.does(*arguments)
        self.is_refused(cell(command, self.name, self.states, self.sink).why, *arguments)
        return None

    def is_refused(self, why: str, *arguments: str) -> None:
        """A command ends with one line, which has this reason."""
        done = self.tries(*arguments)
        assert done.code, f"{arguments} did not fail:\n{done.out}"
        [line] = done.err.splitlines()
        assert why in line, line

    @property
    def committed(self) -> int:
        """The last transaction."""
        txid: int = json.loads(self.command("status", self.id, "--json").out)["committed_txid"]
        return txid


@contextmanager
def dying(at: str, number: int = 1) -> Iterator[None]:
    """In this block whoever runs a topology dies, as by kill -9, at a write to the store: it is not made, and nothing
    is written after it."""
    with pytest.MonkeyPatch.context() as patch:
        left, write = [number], getattr(SqlCoordinatorStore, at)

        def die(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] > 0:
                return write(*given, **named)
            patch.setattr(SqlCoordinatorStore, "release", die)
            raise Killed

        patch.setattr(SqlCoordinatorStore, at, die)
        with pytest.raises(Killed):
            yield


def run(journey: MatrixJourney) -> None:
    journey.covers("run")
    journey.sell(range(12), words=[2], garbled=[3])
    printed = journey.run()
    assert f"{journey.committed} transactions committed" in printed
    waits = "windows wait" in journey.command("status", TOPOLOGY).out
    assert waits is bool(journey.source.idle)


def look(journey: MatrixJourney) -> None:
    """All that only reads: nothing is changed by it."""
    for command in ("status, txns, describe", "savepoint", "read"):
        assert journey.covers(command)
    lines = journey.command("txns", TOPOLOGY, "--json", "--limit", "1000").out.splitlines()
    committed = [each["txid"] for each in map(json.loads, lines) if each["phase"] == "committed"]
    assert committed == list(range(journey.committed, 0, -1))
    components = {each["id"] for each in json.loads(journey.does("describe", "--json"))["components"]}
    assert {each.id for each in load_topology(journey.target).components} <= components
    journey.does("savepoint", "before")
    journey.savepoint, journey.noted = journey.plain, journey.committed
    items = journey.plain.tables()["items"]
    assert items_read(journey.does("read", "--table", "items")) == items
    if cell("query", journey.name).outcome is not Outcome.NONE:
        assert journey.covers("query")
        asked = journey.tries("query", "count_of", "tea")
        assert json.loads(asked.out) == {"item": "tea", "count": items["tea"][0], "paid": items["tea"][1]}
        assert asked.err == f"as of transaction {journey.noted}\n"


def items_read(printed: str) -> dict[str, Any]:
    rows = [json.loads(line) for line in printed.splitlines()]
    return {row["item"]: (row["count"], row["paid"]) for row in rows}


def log_and_scrape(journey: MatrixJourney) -> None:
    """A run with `--log json`, and one of which metrics are scraped after each transaction."""
    assert journey.covers("--log json")
    before = journey.committed
    journey.sell([12, 13])
    done = journey.tries(*RUN, *journey.options, "--log", "json")
    assert done.code == 0, done.err
    journey.read()
    events = {each.get("event"): each for each in map(json.loads, done.err.splitlines())}
    assert (events["started"]["next_txid"], events["ended"]["committed_txid"]) == (before + 1, journey.committed)
    assert journey.covers("metrics")
    journey.sell(range(14, 21))
    first, *_, last = samples_of_run(journey)
    journey.read()
    assert last["committed_txid"] == journey.committed
    lags, behind = ({k: v for k, v in each.items() if "partition_lag" in k} for each in (last, first))
    if cell("lag", journey.name).outcome is Outcome.NONE:
        assert not lags
        return
    assert journey.covers("lag")
    assert (set(lags.values()), last["lag_records"], len(lags)) == ({0}, 0, len(journey.source.places))
    assert sum(map(bool, behind.values())) == len(journey.source.places) - len(journey.source.idle)
    assert sum(behind.values()) == first["lag_records"]


def samples_of_run(journey: MatrixJourney) -> list[dict[str, float]]:
    """What is scraped after each transaction of a run."""
    said, samples = list[str](), list[dict[str, float]]()

    class Scraping:
        def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
            """Nothing."""

        def notice(self, at_ms: int, notice: Notice) -> None:
            if isinstance(notice, Committed):
                with urllib.request.urlopen(said[0].rpartition(" ")[2]) as page:
                    lines = page.read().decode().replace(f'{{topology="{topology.id}"}}', "").splitlines()
                found = (line.removeprefix("transactional_").rpartition(" ") for line in lines if line[0] != "#")
                samples.append({name: float(value) for name, _, value in found})

    topology = load_topology(journey.target)
    with (
        metrics_of_run(topology, "127.0.0.1:0", said.append) as observers,
        closing(JournalWriter(Path(JOURNAL))) as journal,
    ):
        observers = [*observers, Scraping(), journal]
        run_topology(topology, master="none", config={"stop_when_drained": True}, observers=observers)
    return samples


def restart(journey: MatrixJourney) -> None:
    """After kill -9 when all tables have a transaction that the store does not have: a run is refused as long as the
    lease is not over, then makes the transaction once more."""
    assert journey.covers("restart after kill -9")
    journey.sell(range(21, 24), words=[22])
    with dying("record_commit"):
        journey.tries(*RUN, *journey.options)
    journey.is_refused("TX402", *RUN)
    journey.await_end_of_lease()
    journey.run()


def take_over(journey: MatrixJourney) -> None:
    """A standby with its streams in the other order waits for the end of a lease of one that has died."""
    assert journey.covers("standby takes over")
    journey.sell(range(24, 30), garbled=[25])
    with dying("record_commit", 2):
        journey.tries(*RUN, *journey.options)
    journey.await_end_of_lease(in_ms=300)
    journey.target = SWAPPED
    assert "standing by" in journey.run("--standby")
    journey.target = BUILD


def replay(journey: MatrixJourney) -> None:
    """The letters of a bolt, and of the source, by a release that can read them."""
    assert journey.covers("deadletters --replay, of a bolt")
    assert any(not sale.is_garbled for sale in journey.plain.letters)
    if journey.source.sets_records_aside:
        assert journey.covers("deadletters --replay, of the source")
        assert any(sale.is_garbled for sale in journey.plain.letters)
    journey.target = MENDED
    journey.replay(*KEPT)
    journey.target = BUILD


def pages(journey: MatrixJourney) -> None:
    assert journey.covers("console")
    assert journey.covers("examine")
    with closing(open_for_reading(STORE)) as store:
        topology = load_topology(journey.target)
        console = Console(store, Access(TOKEN), topologies={TOPOLOGY: topology}, store_url=STORE)
        with TestClient(application(console), base_url="http://127.0.0.1:8787") as client:
            assert client.get(f"/?token={TOKEN}").status_code == 200
            shown = {page: client.get(f"/t/{TOPOLOGY}/{page}") for page in (*PAGES, "doctor?examine=1")}
    assert {page: answer.status_code for page, answer in shown.items()} == dict.fromkeys(shown, 200)
    assert all(component.id in shown["states"].text for component in topology.committers)
    assert "Nothing is wrong." in shown["doctor?examine=1"].text


def rewind(journey: MatrixJourney) -> None:
    """By the newest transaction, which every table can go back by; then once more, by one too many for some."""
    assert journey.covers("rewind by a transaction")
    kept, before, committed = journey.savepoint, journey.plain, journey.committed
    journey.sell([30, 31], words=[30], garbled=[31])
    sales = [*journey.unread]
    journey.run()
    last = journey.committed
    assert last - committed in (1, 2), "one with the sales, and one that closes the windows that they have ended"
    read = before.with_sales(sales, is_mended=journey.is_mended, is_drained=False)
    journey.savepoint = before if last == committed + 1 else read
    journey.go_back("--to-txid", str(last - 1), *journey.accepting, *KEPT)
    journey.savepoint = kept


def rewind_further(journey: MatrixJourney) -> None:
    """To the savepoint, and what can be read as of it."""
    asked = journey.tries_cell("read --as-of", "read", "--table", "items", "--as-of", str(journey.noted))
    assert asked is None or items_read(asked) == journey.savepoint.tables()["items"]
    back = ("rewind", "--to-savepoint", "before", "--yes", *journey.accepting, *KEPT)
    if (
        journey.accepting
        and cell("rewind further", journey.name, journey.states, journey.sink).outcome is Outcome.WORKS
    ):
        journey.is_refused("pass --accept-sent", "rewind", "--to-savepoint", "before", "--yes")
    if journey.tries_cell("rewind further", *back) is not None:
        journey.has_gone_back()
        found, expected = journey.compared()
        assert found == expected
    journey.run()


def reset_and_repair(journey: MatrixJourney) -> None:
    """A store that is lost is restored from the journal of the runs.

    If a sink has not published the tables' last transaction, the repair goes back further, or is refused.
    """
    assert journey.covers("reset")
    committed, backup = journey.committed, journey.store_files()
    journey.command("reset", TOPOLOGY, "--yes")
    journey.is_refused("TX404", *RUN)
    assert journey.covers("doctor --repair")
    repair = journey.tries("doctor", "--repair", *KEPT)
    if journey.sink and repair.code:
        assert "only the lost store had its records" in repair.out + repair.err
        journey.replace_store(backup)
    else:
        assert "repaired: the store" in repair.out, repair.out + repair.err
    assert journey.committed == committed or "went back to transaction" in repair.out
    journey.sell([32, 33], words=[32])
    journey.run()
    for command in ("verify", "verify --sinks"):
        assert journey.covers(command)
    journey.tries_cell("verify --count-records", "verify", "--count-records")


def close(journey: MatrixJourney) -> None:
    """The windows, also those that no later event ends."""
    assert journey.covers("run --close-windows")
    journey.sell([34])
    journey.run("--close-windows")
    journey.plain = journey.plain.with_all_closed()
    assert json.loads(journey.command("status", TOPOLOGY, "--json").out)["open_windows"] == {}


STEPS: Sequence[Callable[[MatrixJourney], None]] = (
    *(
        run,
        look,
        log_and_scrape,
        restart,
        take_over,
        replay,
        pages,
        rewind,
        rewind_further,
        replay,
        reset_and_repair,
        close,
    ),
)
READS = (look, pages)
"""After them everything is as it was."""


def travel(
    name: str,
    states: Sequence[str],
    given: Mapping[str, str],
    master: str,
    folder: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    sink: str = "",
) -> None:
    """One journey, through all its steps."""
    for variable, value in {"SOURCE": name, "STATES": ",".join(states), "SINK": sink, **given}.items():
        monkeypatch.setenv(variable, value)
    journey = MatrixJourney(name, folder, command, master=master, states=states, sink=sink)
    journey.source.create()
    if sink == KAFKA_SINK:
        with suppress(OperatingError):  # of an earlier journey, whose topology had this id and another store
            delete_topic(given["BOOTSTRAP"], control_topic(TOPOLOGY))
        for topic in (SOLD, CLOSINGS):
            create_topic(given["BOOTSTRAP"], topic_of(topic), SINK_PARTITIONS)
    journey.go()
