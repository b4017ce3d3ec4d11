"""The packages that the console is made with may be missing: then whoever wants it gets one line."""

from __future__ import annotations

from transactional.model.errors import ConfigError
from transactional.model.names import DISTRIBUTION


def require_console() -> None:
    """Raise `ConfigError` if what the console is made with is not installed."""
    try:
        import transactional.operations.console.app
        import transactional.operations.web.server  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: the console needs more packages: pip install '{DISTRIBUTION}[ui]'") from error
