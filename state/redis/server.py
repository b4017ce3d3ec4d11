"""A Redis server as a state sees it: its connection, its errors, and whether what it confirms is durable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from state.redis.scripts import TRY
from transactional.model.errors import ConfigError, OperatingError
from transactional.model.names import DISTRIBUTION
from transactional.model.plumbing.redaction import without_login

DURABLE: Final = {"appendonly": "yes", "appendfsync": "always"}
"""The settings with which Redis confirms only what a power failure does not lose."""


REFUSED_IN_SCRIPTS: Final = ("The user executing the script", "ACL failure in script")
"""Redis' messages for a command in a script that its user may not use. Outside scripts such errors have a code."""
TEMPORARY_ERRORS: Final = ("BUSY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY")
"""The first words of errors that are not about a user's rights."""


class WriteFailed(Exception):
    """The server failed during a write, whose outcome is unknown. Raised for the state's table only."""


class Server:
    """A connection to one server, opened on demand. No wait takes longer than `timeout_ms`.

    `state` is what messages call the state. Raises `ConfigError` for a malformed URL, and without redis-py.
    """

    def __init__(self, url: str, state: str, *, timeout_ms: int) -> None:
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise ConfigError(
                f"state {state} needs redis-py: install {DISTRIBUTION}[redis] (pip install '{DISTRIBUTION}[redis]')"
            ) from error
        self.location, self._state, self._errors = without_login(url), state, redis.exceptions
        wait_s = timeout_ms / 1_000
        # redis-py repeats nothing: the table repeats a whole write, once its outcome is known.
        options: dict[str, Any] = {"socket_timeout": wait_s, "socket_connect_timeout": wait_s}
        try:
            self.client: Any = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options)
        except ValueError as error:
            raise ConfigError(
                f"state {state}: {self.location!r} is no URL of a Redis server, such as "
                f"redis://localhost:6379/0: {error}"
            ) from error

    @contextmanager
    def raising_ours(self) -> Iterator[None]:
        """Turn errors of redis-py into `ConfigError` or `OperatingError`."""
        unreachable = (self._errors.ConnectionError, self._errors.TimeoutError, OSError)
        try:
            yield
        except (self._errors.AuthenticationError, self._errors.NoPermissionError) as error:
            raise ConfigError(f"state {self._state}: Redis refuses the login or a command: {error}") from error
        except unreachable as error:
            raise OperatingError(
                f"state {self._state}: Redis does not respond: {error}. Check that it is running and reachable"
            ) from error
        except self._errors.RedisError as error:
            kind = ConfigError if any(words in str(error) for words in REFUSED_IN_SCRIPTS) else OperatingError
            raise kind(f"state {self._state}: Redis reports: {error}") from error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors as `raising_ours` does, and raise `WriteFailed` if the server did not answer.

        A script that answers with an error has not reached its last command, which writes the version.
        """
        try:
            with self.raising_ours():
                yield
        except OperatingError as error:
            if isinstance(error.__cause__, self._errors.ResponseError):
                raise
            raise WriteFailed(str(error)) from error

    def try_commands(self, keys: Sequence[str]) -> None:
        """Raise `ConfigError` if the user may not use each command of the scripts on a state's keys, `OperatingError`
        if nobody can write to the server now."""
        with self.raising_ours():
            refusal = self.client.eval(TRY, len(keys), *keys)
        if refusal:
            command, error = (_decode_reply(part) for part in refusal)
            if error.startswith(TEMPORARY_ERRORS):
                raise OperatingError(f"state {self._state}: Redis refuses the command {command}: {error}")
            user = self.client.connection_pool.connection_kwargs.get("username") or "default"
            raise ConfigError(
                f"state {self._state}: Redis refuses the command {command} on the state's keys to the user {user!r}: "
                f"{error}; allow it: ACL SETUSER {user} +{command.lower()}"
            )

    def check(self, durability: str) -> None:
        """Raise `ConfigError` for a server that may lose what it has confirmed, or evict rows."""
        settings = self._read_settings()
        wrong = {name: settings[name] for name, right in DURABLE.items() if settings[name] != right}
        if durability != "process" and wrong:
            summary = ", ".join(f"{name} is {setting!r}" for name, setting in wrong.items())
            raise ConfigError(
                f"state {self._state}: a power failure could lose what this Redis server has confirmed ({summary}). "
                "Set appendonly yes and appendfsync always in its redis.conf, or run with durability = process if that "
                "may be lost"
            )
        eviction = settings["maxmemory-policy"]
        if settings["maxmemory"] != "0" and eviction.startswith("allkeys"):
            raise ConfigError(
                f"state {self._state}: this Redis server deletes keys when its memory is full (maxmemory-policy "
                f"{eviction}); set maxmemory-policy noeviction, or give the state a server of its own"
            )

    def _read_settings(self) -> dict[str, str]:
        names = (*DURABLE, "maxmemory", "maxmemory-policy")
        try:
            with self.raising_ours():
                replies = {name: dict(self.client.config_get(name)).get(name) for name in names}
        except (ConfigError, OperatingError) as error:
            if isinstance(error.__cause__, self._errors.ResponseError):
                raise ConfigError(
                    f"state {self._state}: Redis does not say whether what it confirms is durable (CONFIG GET): "
                    f"{error.__cause__}; allow the command config|get to the user of the state"
                ) from error
            raise
        return {name: _decode_reply(reply) for name, reply in replies.items()}

    def close(self) -> None:
        """Close the connection; the next use opens another one."""
        self.client.close()


def _decode_reply(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)
