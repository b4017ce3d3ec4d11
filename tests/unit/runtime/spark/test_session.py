"""What is said before Spark starts, which takes seconds: nothing, but to somebody who looks at it."""

from __future__ import annotations

import io

import pytest

from transactional.runtime.spark import session as spark_session


class Screen(io.StringIO):
    """What goes to stderr; a terminal or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        """As it was said."""
        return self.is_terminal


class StartedError(Exception):
    """Instead of a JVM."""


@pytest.mark.parametrize(
    ("is_terminal", "is_running", "said"),
    [(True, False, "starting Spark …\n"), (False, False, ""), (True, True, "")],
    ids=["a terminal", "a file", "it runs"],
)
def test_a_terminal_is_told_that_spark_starts(
    monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, is_running: bool, said: str
) -> None:
    screen = Screen(is_terminal=is_terminal)

    def start(*_: object) -> None:
        assert screen.getvalue() == said, "it is said before"
        raise StartedError

    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(spark_session, "is_running", lambda: is_running)
    monkeypatch.setattr(spark_session, "find_java", lambda: None)
    monkeypatch.setattr(spark_session, "defaults", lambda *_: {})  # A new machine has yet to download their jars.
    monkeypatch.setattr(spark_session, "start_jvm", start)
    monkeypatch.setattr(spark_session, "require_classic", start)
    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", lambda _: None)
    with pytest.raises(StartedError):
        spark_session.spark_session()
    assert screen.getvalue() == said
