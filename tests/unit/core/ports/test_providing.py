"""Stateful bolts whose states the configuration provides: which provider makes what, and every mistake in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.stateful_words import WordCount
from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from state.sql.state import SqlMapState
from tests.unit.fakes import WORD_COUNTS, builder, opaque_words, words
from transactional import StateKind, TopologyConfig, run_topology
from transactional.errors import ConfigError
from transactional.model.config import redacted_options
from transactional.topology.topology import Topology


def counting(provider: str | None, bolt: Any = None) -> Topology:
    made = builder(opaque_words())
    made.set_stateful_bolt("count", bolt or WordCount(), 2).fields_grouping("spout", "word")
    return made.build(strict=True, config={} if provider is None else {"state_provider": provider})


@pytest.mark.parametrize(
    ("provider", "kind", "place"),
    [
        ("memory", MemoryMapState, {"memory": "words/count"}),
        ("sqlite:///{folder}/states.db", SqlMapState, {"sql": "sqlite:///{folder}/states.db", "table": "words_count"}),
        ("sqlite:///{folder}/{component}.db", SqlMapState, {"sql": "sqlite:///{folder}/count.db"}),
        ("delta:{folder}/{topology}/{component}", DeltaMapState, {"delta": "{folder}/words/count"}),
        ("delta+log:{folder}/{component}", DeltaMapState, {"delta": "{folder}/count"}),
        ("postgresql://me:pw@localhost/states", SqlMapState, {"sql": "postgresql://localhost:5432/states"}),
    ],
)
def test_each_provider_makes_its_kind_of_state(provider: str, kind: Any, place: dict[str, str], tmp_path: Path) -> None:
    state: Any = counting(provider.replace("{folder}", str(tmp_path))).component("count").state
    assert isinstance(state, kind)
    expected = {name: text.replace("{folder}", str(tmp_path)) for name, text in place.items()}
    assert {name: state.identity()[name] for name in expected} == expected
    assert (str(state.key), str(state.values), state.declared.kind) == ("word string", "count long", StateKind.OPAQUE)


@pytest.mark.parametrize("provider", ["sqlite:///{folder}/states.db", "delta:{folder}/t", "delta+log:{folder}/t"])
def test_a_run_goes_on_where_the_last_one_ended(provider: str, tmp_path: Path) -> None:
    found: Any = None
    for spout_rows in ([[("cat",)]], [[("cat",), ("cat",), ("dog",)]]):
        made = builder(words(spout_rows))
        made.set_stateful_bolt("count", WordCount()).fields_grouping("spout", "word")
        topology = made.build(config={"state_provider": provider.replace("{folder}", str(tmp_path))})
        config = {"stop_when_drained": True}
        run_topology(topology, store=f"sqlite:///{tmp_path}/store.db", config=config, master="none")
        found = topology.component("count").state
    assert {row["word"]: row["count"] for row in found.read().to_pylist()} == {"cat": 2, "dog": 1}


@pytest.mark.parametrize("where", ["environment", "file"])
def test_it_may_be_set_outside_of_the_code(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if where == "environment":
        monkeypatch.setenv("TRANSACTIONAL_STATE_PROVIDER", "sqlite:///states.db")
    else:
        (tmp_path / "transactional.toml").write_text('[topology]\nstate_provider = "sqlite:///states.db"\n')
    topology = counting(None)
    run_topology(topology, store="sqlite:///store.db", config={"stop_when_drained": True}, master="none")
    counts = SqlMapState("sqlite:///states.db", "words_count", "word string", "count long").read().to_pylist()
    assert {row["word"]: row["count"] for row in counts} == WORD_COUNTS


def test_a_host_in_the_configuration_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "transactional.toml").write_text('[topology]\nstate_provider = "sqlite://states.db"\n')
    with pytest.raises(ConfigError, match="did you mean sqlite:///states"):
        counting(None)


class Undeclared(WordCount):
    state = ""


MISTAKES = [
    (None, WordCount(), "stateful bolt 'count' has no state: pass state=…, .* or set the option state_provider"),
    ("memory", Undeclared(), "stateful bolt 'count' does not declare its state's columns, which the provider needs"),
    ("memry", WordCount(), "stateful bolt 'count': .*there is no provider 'memry'; known: .* did you mean 'memory'"),
    ("memory:x", WordCount(), "stateful bolt 'count': .*takes nothing more; write 'memory'"),
    ("delta:", WordCount(), "names no Delta table: write delta:tables/{component}"),
    ("delta+sql:x", WordCount(), "names no Delta table"),
    ("mysql://me:secret@there/it", WordCount(), r"mysql://\*\*\*@there/it'?: there is no provider 'mysql'"),
    ("sqlite://states.db", WordCount(), "stateful bolt 'count': .* did you mean sqlite:///states.db?"),
    ("", WordCount(), "state_provider takes a text, got ''"),
    (7, WordCount(), "state_provider takes a text, got 7"),
]


@pytest.mark.parametrize(("provider", "bolt", "message"), MISTAKES)
def test_a_mistake_is_one_clear_line(provider: Any, bolt: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        counting(provider, bolt)
    assert "\n" not in str(raised.value)


def test_two_bolts_may_not_share_the_place_that_is_provided(tmp_path: Path) -> None:
    made = builder()
    for name in ("one", "two"):
        made.set_stateful_bolt(name, WordCount()).fields_grouping("spout", "word")
    with pytest.raises(ConfigError, match="'one' and 'two' keep the same table"):
        made.build(config={"state_provider": f"delta:{tmp_path}/it"})


def test_a_run_can_not_choose_another_provider(tmp_path: Path) -> None:
    topology = counting("memory")
    with pytest.raises(ConfigError, match="was built with state_provider 'memory', which a run can't change"):
        run_topology(topology, store=f"sqlite:///{tmp_path}/store.db", config={"state_provider": "delta:t"})


def test_a_login_is_neither_kept_nor_shown() -> None:
    for url in ("postgresql://me:secret@there/it", "postgresql://there/it?user=me&password=secret&sslpassword=secret"):
        shown = redacted_options(TopologyConfig(state_provider=url))
        assert "secret" not in str(shown)
        assert "there/it" in shown["state_provider"]
