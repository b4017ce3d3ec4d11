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
    check_options,
    option_hint,
    option_unit,
    parse_option,
    redacted_value,
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
class SourcedValue:
    """A value with the name of its source: `default`, a file, a variable, `code`, or a command-line option."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Setting:
    """The effective value of an option with its source, and the values that it overrides, the latest source first."""

    name: str
    effective: SourcedValue
    overridden: tuple[SourcedValue, ...] = ()

    @property
    def unit(self) -> str:
        """The unit of the option: `ms`, `days` or "" for none."""
        return option_unit(self.name)


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A configuration with the source of each of its values."""

    config: TopologyConfig
    settings: tuple[Setting, ...]

    def redacted_sources(self) -> dict[str, list[list[Any]]]:
        """Return the sources of all values but defaults, in the form stored with a run (`RunAbout.sources`)."""
        return {
            setting.name: [
                [sourced.source, redacted_value(setting.name, sourced.value)]
                for sourced in (setting.effective, *setting.overridden)
            ]
            for setting in self.settings
            if setting.effective.source != DEFAULT
        }


Layer = Mapping[str, SourcedValue]


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
        {name: SourcedValue(getattr(TopologyConfig(), name), DEFAULT) for name in FIELDS},
        _file_layer(file),
        _environment_layer(os.environ if environment is None else environment),
        _code_layer(code),
        _command_line_layer(assignments, options or {}),
    )
    settings = tuple(_resolve(name, layers) for name in FIELDS)
    return ResolvedConfig(_build_config(settings), tuple(setting for setting in settings if setting.name in OPTIONS))


def _resolve(name: str, layers: Sequence[Layer]) -> Setting:
    *overridden, effective = (layer[name] for layer in layers if name in layer)
    return Setting(name, effective, tuple(reversed(overridden)))


def _build_config(settings: Sequence[Setting]) -> TopologyConfig:
    try:
        return TopologyConfig(**{setting.name: setting.effective.value for setting in settings})
    except ConfigError as error:  # each value is valid by itself: two contradict each other
        origins = [
            f"{setting.name} is from {setting.effective.source}"
            for setting in settings
            if setting.name in str(error) and setting.effective.source != DEFAULT
        ]
        raise ConfigError(f"{error}; {', '.join(origins)}") from None


# --- the sources ------------------------------------------------------------------------------------------------


def _file_layer(file: Path | None) -> Layer:
    path = file or Path(CONFIG_FILE)
    if file is None and not path.exists():
        return {}
    table = _topology_table(path, _read_file(path))
    return {name: _check_value(str(path), name, value) for name, value in table.items()}


def _read_file(path: Path) -> Mapping[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration file {path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, an oversized number or excessive nesting
        raise ConfigError(f"the configuration file {path} is not TOML: {error}") from error


def _topology_table(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
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
    return dict(_parse_variables(environment))


def _parse_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, SourcedValue]]:
    option_by_variable = {f"{PREFIX}{name.upper()}": name for name in OPTIONS}
    for variable, text in sorted(environment.items()):
        if variable in option_by_variable:
            yield option_by_variable[variable], _parse_value(variable, option_by_variable[variable], text)
        elif variable.startswith(PREFIX) and variable not in OTHER_VARIABLES:
            hint = option_hint(variable, [*option_by_variable, *OTHER_VARIABLES])
            raise ConfigError(f"no option is set by the environment variable {variable}{hint}; unset it")


def _code_layer(code: TopologyConfig | Mapping[str, object] | None) -> Layer:
    if isinstance(code, TopologyConfig):
        return {name: SourcedValue(getattr(code, name), CODE) for name in FIELDS}
    try:
        return {name: SourcedValue(value, CODE) for name, value in check_options(code or {}).items()}
    except ConfigError as error:
        raise ConfigError(f"{CODE}: {error}") from None


def _command_line_layer(assignments: Sequence[str], options: Mapping[str, tuple[str, Any]]) -> Layer:
    layer = {name: _check_value(option, name, value) for name, (option, value) in options.items()}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set takes NAME=VALUE, such as lease_ms=20000, got {assignment!r}")
        layer[name.strip()] = _parse_value("--set", name.strip(), text.strip())
    return layer


def _check_value(source: str, name: str, value: Any) -> SourcedValue:
    try:
        check_name(name)
        check_option(name, value)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return SourcedValue(value, source)


def _parse_value(source: str, name: str, text: str) -> SourcedValue:
    try:
        return SourcedValue(parse_option(name, text), source)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
