"""Python 3.11 collects the members of a protocol anew at each `isinstance`, later ones once. A simulated run asks
thousands of times, which is a tenth of its time."""

from __future__ import annotations

import functools
import sys
import typing

COLLECTS = "_get_protocol_attrs"


def keep_members() -> None:
    """Collect them once in this process, as later versions do."""
    collect = getattr(typing, COLLECTS, None)
    if sys.version_info < (3, 12) and collect is not None and not hasattr(collect, "cache_info"):
        setattr(typing, COLLECTS, functools.cache(collect))
