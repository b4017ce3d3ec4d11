"""From Python 3.11 on a traceback parses the line of each of its frames, to point at what of it has failed. Errors that
tests expect are logged by the thousand, and out of the same lines: of all that is parsed, two thirds are these."""

from __future__ import annotations

import functools
import traceback

PARSES = "_extract_caret_anchors_from_line_segment"


def keep_anchors() -> None:
    """Parse each line once in this process: a traceback says what it says without that."""
    parse = getattr(traceback, PARSES, None)
    if parse is not None and not hasattr(parse, "cache_info"):
        setattr(traceback, PARSES, functools.cache(parse))
