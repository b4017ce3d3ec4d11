"""Where options come from: which source goes before which, what is told about each value, and mistakes by source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from transactional.errors import ConfigError
from transactional.model.config import INTERNAL, OPTIONS, TopologyConfig
from transactional.model.config_sources import ResolvedConfig, Setting, load_config


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "transactional.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def loaded(code: TopologyConfig | Mapping[str, Any] | None = None, **given: Any) -> ResolvedConfig:
    return load_config(code, **{"environment": {}, **given})


def setting(resolved: ResolvedConfig, name: str) -> Setting:
    return next(setting for setting in resolved.settings if setting.name == name)


def test_without_any_source_there_are_the_defaults() -> None:
    resolved = loaded()
    assert resolved.config == TopologyConfig()
    assert [each.name for each in resolved.settings] == list(OPTIONS)
    assert {(each.effective.source, each.overridden) for each in resolved.settings} == {("default", ())}


def test_each_source_goes_before_the_ones_above_it() -> None:
    """Storm row T41 and O4: defaults < storm.yaml < the topology's own < `-c`; here the environment is in between."""
    numbers = "keep_attempts_days = 11\nattempts_max = 7\ndead_letters_max = 9\n"
    write(f"[topology]\nmax_spout_pending = 2\nlease_ms = 20000\n{numbers}")
    environment = {
        "TRANSACTIONAL_MAX_SPOUT_PENDING": "3",
        "TRANSACTIONAL_KEEP_ATTEMPTS_DAYS": "12",
        "TRANSACTIONAL_ATTEMPTS_MAX": "none",
        "TRANSACTIONAL_DEAD_LETTERS_MAX": "10",
    }
    resolved = loaded(
        {"max_spout_pending": 4, "keep_attempts_days": 13, "dead_letters_max": 11},
        environment=environment,
        options={"max_spout_pending": ("--max-pending", 5)},
        assignments=["dead_letters_max = 12"],
    )
    assert resolved.config == TopologyConfig(
        max_spout_pending=5, keep_attempts_days=13, lease_ms=20_000, dead_letters_max=12
    )
    sources = {each.name: each.effective.source for each in resolved.settings}
    assert sources["max_spout_pending"] == "--max-pending"
    assert sources["dead_letters_max"] == "--set"
    assert sources["keep_attempts_days"] == "code"
    assert sources["attempts_max"] == "TRANSACTIONAL_ATTEMPTS_MAX"
    assert sources["lease_ms"] == "transactional.toml"
    assert sources["retry_pause_ms"] == "default"
    before = setting(resolved, "max_spout_pending").overridden
    assert [(given.value, given.source) for given in before] == [
        (4, "code"),
        (3, "TRANSACTIONAL_MAX_SPOUT_PENDING"),
        (2, "transactional.toml"),
        (1, "default"),
    ]


def test_a_whole_config_says_every_option() -> None:
    write("[topology]\nlease_ms = 20000\n")
    resolved = loaded(TopologyConfig(max_spout_pending=4))
    assert resolved.config == TopologyConfig(max_spout_pending=4)
    assert {each.effective.source for each in resolved.settings} == {"code"}


def test_the_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSACTIONAL_STORE", "sqlite:///elsewhere.db")
    monkeypatch.setenv("TRANSACTIONAL_STOP_WHEN_DRAINED", "TRUE")
    assert load_config().config == TopologyConfig(stop_when_drained=True)


def test_another_file_takes_the_place_of_the_usual_one() -> None:
    write("[topology]\nkeep_attempts_days = 30\nlease_ms = 5000\n")
    other = write("[topology]\nlease_ms = 6000\n", "production.toml")
    resolved = loaded(file=other)
    assert resolved.config == TopologyConfig(lease_ms=6_000)
    assert setting(resolved, "lease_ms").effective.source == "production.toml"


def test_a_unit_is_reported() -> None:
    units = {each.name: each.unit for each in loaded().settings}
    assert (units["lease_ms"], units["keep_attempts_days"], units["max_spout_pending"]) == ("ms", "days", "")


@pytest.mark.parametrize("text", ["", "[topology]\n"])
def test_a_file_may_say_nothing(text: str) -> None:
    write(text)
    assert loaded().config == TopologyConfig()


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "[topology]\nmax_spout_pendin = 3\n",
            "there is no option 'max_spout_pendin' — did you mean 'max_spout_pending'?; there are: max_",
        ),
        (
            '[topology]\n"topology.max.spout.pending" = 3\n',
            "there is no option 'topology.max.spout.pending': Storm's option of that name is max_spout_pending here",
        ),
        ('[topology]\nlease_ms = "20s"\n', "lease_ms takes a whole number, got '20s' — did you mean 20000?"),
        ("[topology]\nlease_ms = 0\n", "lease_ms must be at least 1, got 0"),
        (
            '[topology]\nstop_when_drained = "yes"\n',
            "stop_when_drained takes True or False, got 'yes' — did you mean t",
        ),
        (
            '[topology]\ndurability = "proces"\n',
            "durability takes 'disk' or 'process', got 'proces' — did you mean 'pr",
        ),
        ("[topologi]\n", "unknown name 'topologi' — did you mean 'topology'?"),
        ("lease_ms = 3\n", "lease_ms must be under [topology]"),
        ("topology = 3\n", "topology must be a table, written as [topology]"),
    ],
)
def test_a_mistake_in_the_file_is_reported(text: str, told: str) -> None:
    write(text)
    with pytest.raises(ConfigError) as caught:
        loaded()
    assert str(caught.value).startswith(f"transactional.toml: {told}")


def test_a_file_that_is_no_toml_is_reported() -> None:
    write("[topology\n")
    with pytest.raises(ConfigError, match=r"^the configuration file transactional\.toml is not TOML: .*line 1"):
        loaded()


def test_a_file_that_was_named_has_to_be_there() -> None:
    with pytest.raises(ConfigError, match=r"^the configuration file none\.toml can't be read: No such file"):
        loaded(file=Path("none.toml"))


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        (
            "TRANSACTIONAL_LEASE",
            "3",
            "no option is set by the environment variable TRANSACTIONAL_LEASE — did you mean 'TRANSACTIONAL_LEASE_MS'?",
        ),
        (
            "TRANSACTIONAL_STOR",
            "x",
            "no option is set by the environment variable TRANSACTIONAL_STOR — did you mean 'TRANSACTIONAL_STORE'?",
        ),
        ("TRANSACTIONAL_LEASE_MS", "3s", "TRANSACTIONAL_LEASE_MS: lease_ms takes a whole number, got '3s' — did you m"),
        ("TRANSACTIONAL_LEASE_MS", "", "TRANSACTIONAL_LEASE_MS: lease_ms takes a whole number, got ''"),
        ("TRANSACTIONAL_DURABILITY", "3", "TRANSACTIONAL_DURABILITY: durability takes 'disk' or 'process', got '3'"),
        ("TRANSACTIONAL_STOP_WHEN_DRAINED", "1", "TRANSACTIONAL_STOP_WHEN_DRAINED: stop_when_drained takes True or F"),
    ],
)
def test_a_mistake_in_the_environment_is_reported(variable: str, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(environment={variable: text, "PATH": "/bin"})
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"code": {"lease": 1}}, "code: there is no option 'lease' — did you mean 'lease_ms'?"),
        ({"code": {"lease_ms": "1"}}, "code: lease_ms takes a whole number, got '1' — did you mean 1?"),
        ({"assignments": ["lease_ms"]}, "--set takes NAME=VALUE, such as lease_ms=20000, got 'lease_ms'"),
        ({"assignments": ["leas_ms=3"]}, "--set: there is no option 'leas_ms' — did you mean 'lease_ms'?"),
        ({"assignments": ["lease_ms=1.5"]}, "--set: lease_ms takes a whole number, got '1.5'"),
        ({"options": {"attempts_max": ("--attempts-max", 0)}}, "--attempts-max: attempts_max must be at least 1, got"),
    ],
)
def test_a_mistake_in_code_or_on_the_command_line_is_reported(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**given)
    assert str(caught.value).startswith(told)


def test_two_values_that_contradict_each_other_are_reported_with_their_sources() -> None:
    write("[topology]\ntarget_latency_ms = 100\n")
    message = (
        r"^target_latency_ms \(100\) must be below attempt_timeout_ms \(50\), .*; attempt_timeout_ms is from "
        "TRANSACTIONAL_ATTEMPT_TIMEOUT_MS, target_latency_ms is from transactional.toml$"
    )
    with pytest.raises(ConfigError, match=message):
        loaded(environment={"TRANSACTIONAL_ATTEMPT_TIMEOUT_MS": "50"})


@pytest.mark.parametrize("name", INTERNAL)
def test_only_code_sets_an_internal_field(name: str) -> None:
    options: dict[str, Any] = {name: 7}
    config = TopologyConfig(**options)
    assert loaded(options).config == loaded(config).config == config
    assert all(each.name != name for each in loaded(options).settings)
    with pytest.raises(ConfigError, match=f"--set: there is no option '{name}'"):
        loaded(assignments=[f"{name}=7"])
    with pytest.raises(ConfigError, match=f"no option is set by the environment variable TRANSACTIONAL_{name.upper()}"):
        loaded(environment={f"TRANSACTIONAL_{name.upper()}": "7"})
    write(f"[topology]\n{name} = 7\n")
    with pytest.raises(ConfigError, match=f"transactional.toml: there is no option '{name}'"):
        loaded()
