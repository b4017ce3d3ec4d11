"""`TopologyConfig`: defaults, limits, relations, and the pauses between attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from transactional.errors import ConfigError
from transactional.model.config import (
    CHOICES,
    MAY_BE_NONE,
    MAY_BE_ZERO,
    STORM_NAMES,
    SWITCHES,
    TEXTS,
    TopologyConfig,
    check_name,
    check_option,
    check_options,
    parse_option,
)
from transactional.model.config_sources import load_config

OPTIONS = [field.name for field in fields(TopologyConfig)]
NUMBERS = [name for name in OPTIONS if name not in (*SWITCHES, *CHOICES, *TEXTS)]


def with_option(name: str, value: Any) -> TopologyConfig:
    options: dict[str, Any] = {name: value}
    return TopologyConfig(**options)


def test_the_defaults_are_storms_where_it_has_them() -> None:
    """Storm row T41: one transaction in flight, thirty seconds."""
    config = TopologyConfig()
    assert config.max_spout_pending == 1
    assert config.attempt_timeout_ms == 30_000
    assert config.attempts_max is None, "a failure costs a replay, never the process"
    assert not config.stop_when_drained


def test_it_is_a_frozen_value_with_named_options_only() -> None:
    make: Callable[..., TopologyConfig] = TopologyConfig
    with pytest.raises(TypeError):
        make(3)
    with pytest.raises(FrozenInstanceError):
        setattr(TopologyConfig(), OPTIONS[0], 2)
    assert TopologyConfig(max_spout_pending=2) == TopologyConfig(max_spout_pending=2)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("below", [1, 2])
def test_a_number_is_at_least_one_or_none_at_all_where_that_means_something(name: str, below: int) -> None:
    least = 0 if name in MAY_BE_ZERO else 1
    with pytest.raises(ConfigError, match=f"{name} must be at least {least}, got {least - below}"):
        with_option(name, least - below)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["7", 7.0, True, [7]])
def test_a_number_is_a_whole_number(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} takes a whole number, got "):
        with_option(name, value)


@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_a_switch_is_true_or_false(value: object) -> None:
    with pytest.raises(ConfigError, match="stop_when_drained takes True or False, got "):
        with_option("stop_when_drained", value)


@pytest.mark.parametrize("value", ["", "disc", "none", None, 1, True, ["disk"]])
def test_a_choice_is_one_of_its_words(value: object) -> None:
    with pytest.raises(ConfigError, match="durability takes 'disk' or 'process', got "):
        with_option("durability", value)
    assert TopologyConfig().durability == "disk", "nothing that was told as committed is lost"


def test_a_choice_is_reported_with_what_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"got 'proces' — did you mean 'process'\?"):
        parse_option("durability", "proces")


@pytest.mark.parametrize("name", [name for name in NUMBERS if name not in MAY_BE_NONE])
def test_only_the_limit_of_attempts_and_the_target_may_be_left_out(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} takes a whole number, got None"):
        with_option(name, None)


def test_the_least_and_the_large_are_accepted() -> None:
    least = TopologyConfig(max_spout_pending=1, attempts_max=1, tick_ms=1, lease_ms=10, retry_pause_ms=1)
    assert least.retry_pause_after(1) == 1
    assert TopologyConfig(attempt_timeout_ms=10**12).attempt_timeout_ms == 10**12


@pytest.mark.parametrize(("name", "most"), [("attempt_timeout_ms", 10**12), ("keep_attempts_days", 10**9)])
def test_what_nothing_can_wait_for_is_refused(name: str, most: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at most {most}, got a larger number"):
        check_options({name: most + 1})


def test_the_lease_holds_for_ten_ticks_at_least() -> None:
    with pytest.raises(ConfigError, match="lease_ms must be at least 200, got 199"):
        TopologyConfig(lease_ms=199, tick_ms=20)


def test_the_target_is_below_the_time_out() -> None:
    assert TopologyConfig(target_latency_ms=29_999).target_latency_ms == 29_999
    with pytest.raises(ConfigError, match=r"target_latency_ms \(500\) must be below attempt_timeout_ms \(500\), after"):
        TopologyConfig(target_latency_ms=500, attempt_timeout_ms=500)


def test_pauses_double_and_stay_at_the_longest() -> None:
    config = TopologyConfig(retry_pause_ms=100)
    assert [config.retry_pause_after(failures) for failures in range(1, 12)] == [
        *[100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600],
        *[25_600, 25_600],
    ]
    assert config.retry_pause_after(10**6) == 25_600, "a topology may fail for weeks"
    assert TopologyConfig(retry_pause_ms=10**12).retry_pause_after(9) == 10**12


# --- names and texts ----------------------------------------------------------------------------------------------


def test_a_name_that_is_none_is_reported_with_what_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"'atempts_max' — did you mean 'attempts_max'\?; there are: max_spout_pen"):
        check_name("atempts_max")


@pytest.mark.parametrize(("misspelt", "meant"), [("lease", "lease_ms"), ("max-spout-pending", "max_spout_pending")])
def test_a_hint_is_given_for_a_name_that_was_misspelt(misspelt: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"'{misspelt}' — did you mean '{meant}'"):
        check_name(misspelt)


@pytest.mark.parametrize("name", ["tick_ms", "idle_pause_ms", "retry_pause_max_ms", "batch_records_min", "engine"])
def test_no_hint_is_given_for_an_option_that_means_something_else(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^there is no option '{name}'; there are: "):
        check_name(name)
    with pytest.raises(ConfigError, match=rf"TRANSACTIONAL_{name.upper()}; unset it$"):
        load_config({}, environment={f"TRANSACTIONAL_{name.upper()}": "1"})


@pytest.mark.parametrize(("storms", "ours"), STORM_NAMES.items())
def test_storms_names_are_reported_what_they_are_called_here(storms: str, ours: str) -> None:
    """Storm row T41."""
    with pytest.raises(ConfigError) as caught:
        check_name(storms)
    assert str(caught.value) == f"there is no option {storms!r}: Storm's option of that name is {ours} here"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lease_ms", "20_000", 20_000),
        ("attempts_max", "none", None),
        ("attempts_max", "3", 3),
        ("target_latency_ms", "None", None),
        ("target_latency_ms", "800", 800),
        ("stop_when_drained", "True", True),
        ("stop_when_drained", "false", False),
        ("durability", "process", "process"),
        ("durability", "Disk", "disk"),
    ],
)
def test_a_text_becomes_a_value(name: str, text: str, value: object) -> None:
    assert parse_option(name, text) == value


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("lease_ms", "10s", "10000"),
        ("lease_ms", "1.5 min", "90000"),
        ("lease_ms", "250ms", "250"),
        ("keep_attempts_days", "7", "7"),
        ("max_spout_pending", 3.0, "3"),
        ("stop_when_drained", "yes", "true"),
        ("stop_when_drained", 0, "false"),
    ],
)
def test_a_wrong_value_is_reported_with_what_was_meant(name: str, value: object, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf" — did you mean {meant}\?$"):
        check_option(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("lease_ms", "soon"), ("lease_ms", "10 weeks"), ("max_spout_pending", "3s"), ("tick_ms", 0.5), ("tick_ms", None)],
)
def test_nothing_is_suggested_where_nothing_fits(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"takes a whole number, got [^—]*$"):
        check_option(name, value)


def test_some_options_are_checked_by_name() -> None:
    assert check_options({"tick_ms": 3}) == {"tick_ms": 3}
    with pytest.raises(ConfigError, match="'lease' — did you mean 'lease_ms'"):
        check_options({"lease": 3})
    with pytest.raises(ConfigError, match="tick_ms must be at least 1"):
        check_options({"tick_ms": 0})
