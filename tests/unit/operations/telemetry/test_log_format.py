"""How a log is written: one line each, for people or as JSON, and never a secret."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from transactional.operations.telemetry.log_format import LogFormat, log_handler

SECRET = "hunter2"


def written(format: LogFormat, message: str, raised: BaseException | None = None, **fields: Any) -> str:
    stream = io.StringIO()
    handler, log = log_handler(stream, format), logging.getLogger("transactional.test")
    log.addHandler(handler)
    log.warning(message, extra=fields, exc_info=raised)
    log.removeHandler(handler)
    return stream.getvalue()


def test_json_is_one_object_a_line_with_the_fields() -> None:
    text = written(LogFormat.JSON, "attempt 3:7\nfailed", _event="attempt_failed", txid=3, error="\u2028ä")
    [line] = text.splitlines()
    told = json.loads(line)
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "event": "attempt_failed",
        "message": "attempt 3:7\nfailed",
        "level": "warning",
        "logger": "transactional.test",
        "txid": 3,
        "error": "\u2028ä",
    }


def test_a_sentence_is_one_line_that_controls_no_terminal() -> None:
    text = written(LogFormat.HUMAN, "attempt\n2026 \x1b[2J failed \r\x9b ä", _event="attempt_failed", txid=3)
    assert text.count("\n") == 1
    assert text.endswith(r" attempt\n2026 \x1b[2J failed \r\x9b ä" + "\n")
    assert " warning  " in text


@pytest.mark.parametrize("format", list(LogFormat))
def test_no_secret_is_written(format: LogFormat) -> None:
    url = f"postgresql://me:{SECRET}@store.example/t?password={SECRET}"
    error = OSError(f"can't reach {url}")
    try:
        raise error
    except OSError:
        text = written(format, f"can't reach {url}", error, store=url, access_token=SECRET, sasl_password=SECRET)
    assert SECRET not in text
    assert "store.example" in text
    assert "Traceback" in text


@pytest.mark.parametrize("format", list(LogFormat))
def test_no_secret_is_written_however_deep_it_lies(format: LogFormat) -> None:
    held: dict[str, Any] = {"of": [{"options": {"sasl.password": SECRET, "hosts": {f"b://me:{SECRET}@h"}, "id": 7}}]}
    held["itself"] = held
    text = written(
        format,
        f"asked https://there/?id=7&token={SECRET}&sig={SECRET}",
        nested=held,
        error=OSError(f"https://me:{SECRET}@there"),
        request=(f"https://there/?access_token={SECRET}", f"Authorization: Bearer {SECRET}.{SECRET}"),
        none=None,
        share=0.5,
    )
    assert SECRET not in text
    assert "https://there/?id=7&token=***&sig=***" in text
    if format is LogFormat.JSON:
        told = json.loads(text)
        assert told["nested"]["of"] == [{"options": {"sasl.password": "***", "hosts": ["b://***@h"], "id": 7}}]
        assert (told["none"], told["share"], told["error"]) == (None, 0.5, "OSError('https://***@there')")


def test_other_libraries_are_written_alike() -> None:
    told = json.loads(written(LogFormat.JSON, "a library warns"))
    assert (told["message"], told["level"]) == ("a library warns", "warning")
