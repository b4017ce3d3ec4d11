"""How often an open page is loaded again: all open pages together take only a small share of a processor."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.02
"""The share of one processor that loading open pages may take. A run beside the console needs the rest."""
_PAUSE_S_MAX: Final = 10.0


def pause_s(look_every_s: float, page_s: float, open_pages: int = 1) -> float:
    """Return how long an open page waits between two looks at the store, if the last page took `page_s` of a processor
    and each of the open pages is loaded again after every look."""
    return max(look_every_s, min(open_pages * page_s / SHARE, _PAUSE_S_MAX))
