"""The model of the journeys: the sales that were sent, counted plainly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.journeys.sales import EVERY_S, MAX_DELAY_MINUTES, SLIDING_MINUTES, WINDOW_MINUTES, WORDS
from tests.journeys.sources import APP, GARBLED, WEB, Place

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
Window = tuple[str, float]
"""The item, and the minute after noon at which it begins."""
NEVER, ALWAYS = float("-inf"), float("inf")
EVERY = EVERY_S / 60


@dataclass(frozen=True, slots=True, order=True)
class Sale:
    """A record of a partition; `minute` counts from noon."""

    minute: int
    source: Place
    price: str
    is_garbled: bool = False

    @property
    def id(self) -> str:
        """No two sales of a partition are of the same minute."""
        stream, partition = self.source
        return f"{stream}-{partition}-{self.minute}"

    @property
    def item(self) -> str:
        return "tea" if self.minute % 2 else "coffee"

    @property
    def paid(self) -> int:
        return WORDS.get(self.price) or int(self.price)

    @property
    def window(self) -> Window:
        return self.item, self.minute - self.minute % WINDOW_MINUTES

    @property
    def slides(self) -> list[Window]:
        """The sliding windows that it is in."""
        return [(self.item, self.minute - number * EVERY) for number in range(round(SLIDING_MINUTES / EVERY))]

    @property
    def is_wrong(self) -> bool:
        """Whether only a mended release can read it."""
        return self.is_garbled or self.price in WORDS

    def record(self) -> str:
        """The value of the record."""
        at = (NOON + timedelta(minutes=self.minute)).isoformat()
        record = json.dumps({"id": self.id, "item": self.item, "at": at, "price": self.price})
        return GARBLED + record if self.is_garbled else record


@dataclass(frozen=True, slots=True)
class Plain:
    """What the tables have to hold: `read` are all sales, of which `letters` are set aside, and others were once; those
    have the time before which tuples were late when they were replayed. Windows wait for the partitions `awaited`.
    Those that end by `closing` were to close in a transaction committed since: all of them, on request."""

    awaited: frozenset[Place]
    read: frozenset[Sale] = frozenset()
    letters: frozenset[Sale] = frozenset()
    replayed: frozenset[tuple[Sale, float]] = frozenset()
    closing: float = NEVER

    def with_sales(self, sales: Iterable[Sale], *, is_mended: bool, is_drained: bool) -> Plain:
        """Once they were read, by a release that can read all of them, or by one that sets some aside. A run that is
        drained has closed all windows that the watermark has passed; one that goes on closes those of the transactions
        before at least."""
        new = frozenset(sales)
        aside = frozenset(sale for sale in new if sale.is_wrong and not is_mended)
        read = replace(self, read=self.read | new, letters=self.letters | aside)
        if is_drained:
            return replace(read, closing=read.watermark)
        return replace(read, closing=self.watermark) if new else read

    def with_letters(self) -> Plain:
        """Once the letters were replayed: those whose windows must have closed by now are late."""
        replayed = frozenset((sale, self.watermark) for sale in self.letters)
        closing = self.watermark if self.letters else self.closing
        return replace(self, letters=frozenset(), replayed=self.replayed | replayed, closing=closing)

    def with_all_closed(self) -> Plain:
        """Once a run has closed all windows by event time, on request."""
        return replace(self, closing=ALWAYS)

    @property
    def counted(self) -> frozenset[Sale]:
        return self.read - self.letters

    @property
    def watermark(self) -> float:
        """The minute before which tuples are late, which waits for every partition."""
        if self.closing == ALWAYS:
            return ALWAYS
        furthest = dict.fromkeys(self.awaited, NEVER)
        for sale in self.read:
            if not sale.is_garbled:
                furthest[sale.source] = max(furthest[sale.source], sale.minute)
        return min(furthest.values()) - MAX_DELAY_MINUTES

    def in_windows(self, length: int, windows_of: Callable[[Sale], list[Window]]) -> Counter[Window]:
        """How many sales are in each; those replayed only in windows that were open."""
        since = dict(self.replayed)
        both = ((sale, window) for sale in self.counted for window in windows_of(sale))
        return Counter(window for sale, window in both if window[1] + length > since.get(sale, NEVER))

    def tables(self) -> dict[str, Any]:
        """As `Journey.tables` reads them."""
        paid = Counter[str]()
        for sale in self.counted:
            paid[sale.item] += sale.paid
        tumbling = self.in_windows(WINDOW_MINUTES, lambda sale: [sale.window])
        late = [sale for sale, before in self.replayed if sale.window[1] + WINDOW_MINUTES <= before]
        return {
            "ids": {sale.id: 1 for sale in self.counted},
            "sold": {sale.id: 1 for sale in self.counted},
            "wrong records of closings": [],
            "items": {item: (n, paid[item]) for item, n in Counter(sale.item for sale in self.counted).items()},
            "windows": dict(tumbling),
            "open and closed": [],
            "wrong closings": [],
            "late": {sale.id: 1 for sale in late},
            "wrong slides": [],
            "wrong pairs": [],
            "letters": sorted(sale.id for sale in self.letters),
        }

    def wrong_closings(self, closed: Iterable[Window]) -> list[Window]:
        """Which windows should be open, or closed. Which of those that are due have closed depends on how batches were
        cut: one closes with the transaction after."""
        windows = self.in_windows(WINDOW_MINUTES, lambda sale: [sale.window])
        return self._wrong(windows, closed, length=WINDOW_MINUTES)

    def wrong_slides(self, closed: Mapping[Window, int], panes: Mapping[Window, int]) -> list[Any]:
        """The same of sliding windows, the counts of those that have closed, and of parts of those that are open."""
        slides = self.in_windows(SLIDING_MINUTES, lambda sale: sale.slides)
        counted = Counter((sale.item, float(sale.minute)) for sale in self.counted)
        return [
            *self._wrong(slides, closed, length=SLIDING_MINUTES),
            *(("closed", window, n, slides[window]) for window, n in closed.items() if n != slides[window]),
            *(
                ("part", pane, n, panes.get(pane, 0))
                for pane, n in counted.items()
                if pane[1] + SLIDING_MINUTES > self.watermark and panes.get(pane, 0) != n
            ),
        ]

    def wrong_pairs(self, pairs: Mapping[str, int]) -> list[Any]:
        """The same of windows in which sales of the two streams are joined: how many partners each sale has had."""
        since = dict(self.replayed)
        in_time = [sale for sale in self.counted if sale.window[1] + WINDOW_MINUTES > since.get(sale, NEVER)]
        partners = Counter(sale.window for sale in in_time if sale.source[0] == APP)
        windows = {sale.id: sale.window for sale in in_time if sale.source[0] == WEB and partners[sale.window]}
        unknown = [("unknown", each) for each in pairs if each not in windows]
        wrong = [(each, pairs[each], partners[windows[each]]) for each in pairs.keys() & windows.keys()]
        closed = {windows[each] for each in pairs.keys() & windows.keys()}
        apart = [each for each, window in windows.items() if window in closed and each not in pairs]
        return [
            *unknown,
            *(each for each in wrong if each[1] != each[2]),
            *(("alone", each) for each in apart),
            *self._wrong(windows.values(), closed, length=WINDOW_MINUTES),
        ]

    def _wrong(self, windows: Iterable[Window], closed: Iterable[Window], *, length: int) -> list[Any]:
        closed = set(closed)
        early = [("early", window) for window in closed if window[1] + length > self.watermark]
        open = [window for window in windows if window not in closed]
        return early + [("open", window) for window in open if window[1] + length <= self.closing]
