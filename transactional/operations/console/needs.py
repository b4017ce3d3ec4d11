"""Checks that the packages of the console are installed, so that a missing one is a one-line error."""

from __future__ import annotations

from transactional.model.errors import ConfigError
from transactional.model.names import DISTRIBUTION


def require_console() -> None:
    """Raise `ConfigError` if a package that the console needs is not installed."""
    try:
        import transactional.operations.console.app
        import transactional.operations.web.server  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: the console needs more packages: pip install '{DISTRIBUTION}[ui]'") from error
