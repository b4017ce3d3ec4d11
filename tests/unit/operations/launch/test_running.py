"""`run_topology`: a topology, a store by its URL and a place to run, in one call."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.unit.drivers import DRAINED, Recorder, World
from tests.unit.fakes import WORD_COUNTS, Total, builder, stored, total, words
from transactional.core.machine.protocol import Action, Event, RecordCommit
from transactional.core.store.progress import Progress
from transactional.errors import ConfigError, RetriesExhausted
from transactional.model.config import TopologyConfig
from transactional.operations.launch.running import make_executor, run_topology, start_topology
from transactional.operations.loading import open_store
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.executors.local import LocalExecutor


def test_a_topology_runs_over_a_store_in_a_file(tmp_path: Path) -> None:
    world, recorder, url = World(), Recorder(), f"sqlite:///{tmp_path}/store.db"
    summary = run_topology(world.topology(), store=url, config=DRAINED, master="none", observers=[recorder])
    assert summary == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert stored(world.counts) == WORD_COUNTS
    assert len(recorder.of(RecordCommit)) == 3
    store = open_store(url)
    [status] = store.status()
    assert (status.topology_id, status.committed_txid, status.is_leased) == ("words", 3, False)
    store.close()
    assert run_topology(world.topology(), store=url, config=DRAINED, master="none").transactions == 0


class Started:
    """An observer that keeps how the run began."""

    def __init__(self) -> None:
        self.config = TopologyConfig()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Not looked at."""

    def begin(self, at_ms: int, progress: Progress, config: TopologyConfig, **how: object) -> None:
        self.config = config


def configured_run(config: TopologyConfig | dict[str, int | bool] | None) -> TopologyConfig:
    """The configuration that a run takes, of a topology whose code says something, beside a file that does, too."""
    Path("transactional.toml").write_text(
        "[topology]\nkeep_attempts_days = 3\ndead_letters_max = 3\nretry_pause_ms = 3\n", "utf-8"
    )
    started, topology = (
        Started(),
        replace(World().topology(), config={"dead_letters_max": 4, "stop_when_drained": True}),
    )
    run_topology(topology, config=config, master="none", observers=[started], name="deploy-7")
    return started.config


def test_a_mapping_goes_before_the_topologys_own_options_the_environment_and_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSACTIONAL_KEEP_ATTEMPTS_DAYS", "5")
    config = configured_run({"max_spout_pending": 6})
    assert (config.retry_pause_ms, config.dead_letters_max, config.keep_attempts_days) == (3, 4, 5)
    assert config.max_spout_pending == 6
    store = open_store("sqlite:///transactional.db")
    assert store.status()[0].name == "deploy-7"
    store.close()


def test_without_a_config_there_is_what_the_other_places_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert configured_run(None) == TopologyConfig(
        keep_attempts_days=3, dead_letters_max=4, retry_pause_ms=3, stop_when_drained=True
    )


def test_a_whole_config_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSACTIONAL_TICK", "no option, and nobody looks")
    assert configured_run(DRAINED) == DRAINED


def test_a_wrong_option_of_the_code_is_reported_when_the_topology_is_built() -> None:
    """Storm finds out when the topology is submitted, if ever."""
    made = builder(words())
    with pytest.raises(
        ConfigError, match=r"^there is no option 'max_spout_pendign' — did you mean 'max_spout_pending'"
    ):
        made.build(config={"max_spout_pendign": 3})
    with pytest.raises(ConfigError, match=r"^lease_ms takes a whole number, got '5s' — did you mean 5000"):
        made.build(config={"lease_ms": "5s"})


def test_without_spark_bolts_run_in_this_process() -> None:
    assert isinstance(make_executor(World().topology(), master="none"), LocalExecutor)


def test_a_store_that_nobody_knows_is_reported() -> None:
    with pytest.raises(
        ConfigError, match=r"^no store for 'redis' URLs; known: postgresql, sqlite.*Pass sqlite:///FILE or "
    ):
        run_topology(World().topology(), store="redis://localhost", master="none")
    with pytest.raises(ConfigError, match=r"^the store 'words\.db' is no URL: did you mean sqlite:///words\.db\?"):
        run_topology(World().topology(), store="words.db", master="none")


class OtherKey(Total):
    """A committer that puts a key of two values into a state whose key is one."""

    def finish_batch(self) -> None:
        self.state.put(("cat", 1), 1)


def test_an_error_of_ours_names_the_line_that_raised_it_in_the_commit_phase() -> None:
    made = builder(words([[("cat",)]]))
    made.set_committer_bolt("total", OtherKey(), state=total()).global_grouping("spout")
    config = {"attempts_max": 1}
    with pytest.raises(RetriesExhausted, match=rf"used key \('cat', 1\);.* \({os.path.relpath(__file__)}:\d+\)"):
        run_topology(made.build(), store="sqlite://?name=other-key", config=config, master="none")


@pytest.mark.parametrize("run", [run_topology, start_topology])
def test_what_is_no_topology_is_named(run: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"^the topology to run is the function make_executor, not .*: call it, make"):
        run(make_executor, master="none")


class Looks:
    """An observer that opens the console that was reported, in the middle of the run."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.page = capsys, ""

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Look at the first transaction commit."""
        if not self.page and any(isinstance(action, RecordCommit) for action in actions):
            found = re.search(r"the console is at (http://\S+/)(\?token=\S+)", self.capsys.readouterr().err)
            assert found is not None
            opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))
            opener.open(found[1] + found[2], timeout=30).close()
            with opener.open(found[1] + "t/words/", timeout=30) as answer:
                self.page = answer.read().decode()


def test_a_run_in_code_has_its_console_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looks = Looks(capsys)
    url = f"sqlite:///{tmp_path}/store.db"
    run_topology(World().topology(), store=url, config=DRAINED, master="none", observers=[looks], ui=":0")
    assert "Timeline of transactions" in looks.page
    assert "Dead letters" in looks.page


class Scrapes(Looks):
    """An observer that scrapes the metrics that were reported, in the middle of the run."""

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        if not self.page and any(isinstance(action, RecordCommit) for action in actions):
            found = re.search(r"metrics are at (http://\S+)\n", self.capsys.readouterr().err)
            assert found is not None
            with build_opener(ProxyHandler({})).open(found[1], timeout=30) as answer:
                self.page = answer.read().decode()


def test_a_run_in_code_has_metrics_and_makes_the_traces_that_the_environment_wants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = InMemorySpanExporter()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "memory")
    monkeypatch.setattr("transactional.operations.telemetry.tracing.make_exporter", lambda name, environ: exported)
    scrapes, url = Scrapes(capsys), f"sqlite:///{tmp_path}/store.db"
    run_topology(
        World().topology(), store=url, config=DRAINED, master="none", observers=[scrapes], metrics="127.0.0.1:0"
    )
    assert 'transactional_leading{topology="words"} 1.0' in scrapes.page
    assert "commit counts" in {span.name for span in exported.get_finished_spans()}


@pytest.mark.parametrize("address", ["8787", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "0.0.0.0:0"])
def test_an_address_for_the_console_that_can_not_be_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match=r"is no address for the console|reachable by others"):
        run_topology(World().topology(), store=f"sqlite:///{tmp_path}/s.db", master="none", ui=address)
