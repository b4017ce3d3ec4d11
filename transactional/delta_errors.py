"""Messages of delta-rs on one line, without colors and without the secrets in storage options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from transactional.redaction import SHOWN_INSTEAD, without

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\s*\n\s*(?:↳\s*)?")
_SECRET = re.compile(r"key|secret|token|passw|sas|credential|bearer", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def reason_of(error: BaseException, options: Mapping[str, str]) -> str:
    """The error's text, safe to display, for a table that was opened with these storage options."""
    text = _STEP.sub(": ", _COLOURS.sub("", str(error)).strip())
    secrets = (value for name, value in options.items() if _SECRET.search(name))
    return _USER.sub(SHOWN_INSTEAD, without(secrets, text))
