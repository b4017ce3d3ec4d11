"""How often an open page is made again: for a share of a processor, or of what the run beside it uses of one."""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.02
"""An open page is made again so rarely that it takes no more than this share of a processor."""
DEBT_S_MAX: Final = 0.1
"""What was spent beyond a share, and is not forgotten: however many pages were made while a run was at rest, a few
seconds of its work pay for them."""
_PAUSE_S_MAX: Final = 10.0


def pause_s(look_every_s: float, page_s: float) -> float:
    """How long an open page waits between two looks at the store, if the last page took `page_s` of a processor."""
    return max(look_every_s, min(page_s / SHARE, _PAUSE_S_MAX))


class Pace:
    """Whether it is time for something that a run has to pay for with a `share` of its processor time. It is never made
    more rarely than `at_least_every_s`."""

    def __init__(self, share: float, at_least_every_s: float) -> None:
        self._share, self._at_least_every_s = share, at_least_every_s
        self._debt_s = 0.0
        self._used_s: float | None = None
        self._last_s: float | None = None

    def is_due(self, now_s: float, used_s: float) -> bool:
        """Whether it is time. `used_s` is the processor time that the run itself has used so far."""
        if self._used_s is not None:
            self._debt_s = max(0.0, self._debt_s - self._share * max(0.0, used_s - self._used_s))
        self._used_s = used_s
        return not self._debt_s or self._last_s is None or now_s - self._last_s >= self._at_least_every_s

    def owe(self, cost_s: float) -> None:
        """So much processor time was spent on it."""
        self._debt_s = min(self._debt_s + cost_s, DEBT_S_MAX)

    def note(self, now_s: float) -> None:
        """It was made just now."""
        self._last_s = now_s
