"""The sources of a topology's options, each overriding the previous ones: defaults, a file, the environment, code, the
command line.

    transactional.toml                    [topology]
                                          max_spout_pending = 3
    environment                           TRANSACTIONAL_MAX_SPOUT_PENDING=3
    code                                  builder.build(config={"max_spout_pending": 3})
    command line                          transactional run --set max_spout_pending=3

The file is parsed by the standard library and nothing else is needed: pydantic-settings reads such sources too, but
it neither reports which source a value came from nor suggests the option that was probably meant, it needs a second
class beside `TopologyConfig`, and it ignores an environment variable that matches no option.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from transactional.model.config import (
    FIELDS,
    OPTIONS,
    TopologyConfig,
    check_name,
    check_option,
    checked_options,
    option_hint,
    parse_option,
    shown_value,
    unit_of,
)
from transactional.model.errors import ConfigError
from transactional.model.schema import did_you_mean

CONFIG_FILE: Final = "transactional.toml"
TABLE: Final = "topology"
PREFIX: Final = "TRANSACTIONAL_"
OTHER_VARIABLES: Final = ("TRANSACTIONAL_STORE", "TRANSACTIONAL_LOG")
"""Variables with the prefix of options that are not options."""

DEFAULT: Final = "default"
CODE: Final = "code"


@dataclass(frozen=True, slots=True)
class Given:
    """A value from one source. `source` is its name: `default`, a file, a variable, `code`, an option."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Setting:
    """The effective value of an option, with its source, and the values that it overrides."""

    name: str
    given: Given
    instead_of: tuple[Given, ...] = ()

    @property
    def unit(self) -> str:
        """`ms`, `days` or nothing."""
        return unit_of(self.name)


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A configuration, and where each of its values came from."""

    config: TopologyConfig
    settings: tuple[Setting, ...]

    def shown_sources(self) -> dict[str, list[list[Any]]]:
        """Where the options have their values from, as stored with a run (`RunAbout.sources`)."""
        return {
            setting.name: [
                [each.source, shown_value(setting.name, each.value)] for each in (setting.given, *setting.instead_of)
            ]
            for setting in self.settings
            if setting.given.source != DEFAULT
        }


Layer = Mapping[str, Given]


def load_config(
    code: TopologyConfig | Mapping[str, object] | None = None,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
) -> ResolvedConfig:
    """Read all sources, and combine them.

    `code` is what the program sets: a complete `TopologyConfig` sets every option, a mapping those that it names.
    `file` must exist; None: the file transactional.toml in the working directory, if there is one. `environment`
    defaults to that of the process. `assignments` (`name=value`) and `options` (name → command-line option and value)
    are from the command line. Raises `ConfigError`, which names the source.
    """
    layers = (
        {name: Given(getattr(TopologyConfig(), name), DEFAULT) for name in FIELDS},
        _file_layer(file),
        _environment_layer(os.environ if environment is None else environment),
        _code_layer(code),
        _command_line_layer(assignments, options or {}),
    )
    settings = tuple(_settle(name, layers) for name in FIELDS)
    return ResolvedConfig(_config_of(settings), tuple(setting for setting in settings if setting.name in OPTIONS))


def _settle(name: str, layers: Sequence[Layer]) -> Setting:
    *before, last = (layer[name] for layer in layers if name in layer)
    return Setting(name, last, tuple(reversed(before)))


def _config_of(settings: Sequence[Setting]) -> TopologyConfig:
    try:
        return TopologyConfig(**{setting.name: setting.given.value for setting in settings})
    except ConfigError as error:  # each value is valid by itself: two contradict each other
        named = [
            f"{setting.name} is from {setting.given.source}"
            for setting in settings
            if setting.name in str(error) and setting.given.source != DEFAULT
        ]
        raise ConfigError(f"{error}; {', '.join(named)}") from None


# --- the sources ------------------------------------------------------------------------------------------------


def _file_layer(file: Path | None) -> Layer:
    path = file or Path(CONFIG_FILE)
    if file is None and not path.exists():
        return {}
    table = _table(path, _read(path))
    return {name: _checked(str(path), name, value) for name, value in table.items()}


def _read(path: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, an oversized number or excessive nesting
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from error


def _table(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in content.items():
        if name in OPTIONS:
            raise ConfigError(f"{path}: {name} must be under [{TABLE}]")
        if name != TABLE:
            raise ConfigError(f"{path}: unknown name {name!r}{did_you_mean(name, [TABLE])}")
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {TABLE} must be a table, written as [{TABLE}]")
    table: Mapping[str, Any] = content.get(TABLE, {})
    return table


def _environment_layer(environment: Mapping[str, str]) -> Layer:
    return dict(_variables(environment))


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    known = {f"{PREFIX}{name.upper()}": name for name in OPTIONS}
    for variable, text in sorted(environment.items()):
        if variable in known:
            yield known[variable], _parsed(variable, known[variable], text)
        elif variable.startswith(PREFIX) and variable not in OTHER_VARIABLES:
            meant = option_hint(variable, [*known, *OTHER_VARIABLES])
            raise ConfigError(f"no option is set by the environment variable {variable}{meant}; unset it")


def _code_layer(code: TopologyConfig | Mapping[str, object] | None) -> Layer:
    if isinstance(code, TopologyConfig):
        return {name: Given(getattr(code, name), CODE) for name in FIELDS}
    try:
        return {name: Given(value, CODE) for name, value in checked_options(code or {}).items()}
    except ConfigError as error:
        raise ConfigError(f"{CODE}: {error}") from None


def _command_line_layer(assignments: Sequence[str], options: Mapping[str, tuple[str, Any]]) -> Layer:
    layer = {name: _checked(option, name, value) for name, (option, value) in options.items()}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set takes NAME=VALUE, such as lease_ms=20000, got {assignment!r}")
        layer[name.strip()] = _parsed("--set", name.strip(), text.strip())
    return layer


def _checked(source: str, name: str, value: Any) -> Given:
    try:
        check_name(name)
        check_option(name, value)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return Given(value, source)


def _parsed(source: str, name: str, text: str) -> Given:
    try:
        return Given(parse_option(name, text), source)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
