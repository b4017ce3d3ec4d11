"""The model of the journey: the sales that were sent, counted plainly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.journeys.sales import APP, MAX_DELAY_MINUTES, WEB, WINDOW_MINUTES, WORDS

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
PARTITIONS = ((WEB, 0), (WEB, 1), (APP, 0), (APP, 1))
Window = tuple[str, int]
"""The item, and the minute after noon at which it begins."""


@dataclass(frozen=True, slots=True)
class Sale:
    """A record of a topic; `minute` counts from noon."""

    topic: str
    partition: int
    minute: int
    price: str

    @property
    def id(self) -> str:
        """No two sales of a partition are of the same minute."""
        return f"{self.topic}-{self.partition}-{self.minute}"

    @property
    def source(self) -> tuple[str, int]:
        """Its partition."""
        return self.topic, self.partition

    @property
    def item(self) -> str:
        return "tea" if self.minute % 2 else "coffee"

    @property
    def paid(self) -> int:
        return WORDS.get(self.price) or int(self.price)

    @property
    def window(self) -> Window:
        return self.item, self.minute - self.minute % WINDOW_MINUTES

    def record(self) -> str:
        """The value of the record."""
        at = (NOON + timedelta(minutes=self.minute)).isoformat()
        return json.dumps({"id": self.id, "item": self.item, "at": at, "price": self.price})


@dataclass(frozen=True, slots=True)
class Plain:
    """What the tables have to hold: `read` are all sales, of which `letters` are set aside and `late` in no window."""

    read: frozenset[Sale] = frozenset()
    letters: frozenset[Sale] = frozenset()
    late: frozenset[Sale] = frozenset()

    def with_sales(self, sales: Iterable[Sale], *, knows_words: bool) -> Plain:
        """Once they were read, by a release that knows words for prices, or by one that sets those aside."""
        new = frozenset(sales)
        aside = frozenset(sale for sale in new if sale.price in WORDS and not knows_words)
        return replace(self, read=self.read | new, letters=self.letters | aside)

    def with_letters(self) -> Plain:
        """Once the letters were replayed: those whose windows must have closed by now are late."""
        late = frozenset(sale for sale in self.letters if self._is_due(sale.window))
        return replace(self, letters=frozenset(), late=self.late | late)

    @property
    def counted(self) -> frozenset[Sale]:
        return self.read - self.letters

    def _is_due(self, window: Window) -> bool:
        """Whether its end is not after the time before which tuples are late, which waits for every partition."""
        furthest = dict.fromkeys(PARTITIONS, -1)
        for sale in self.read:
            furthest[sale.source] = max(furthest[sale.source], sale.minute)
        return window[1] + WINDOW_MINUTES <= min(furthest.values()) - MAX_DELAY_MINUTES

    def tables(self) -> dict[str, Any]:
        """As `Journey.tables` reads them. Which of the windows that are due have closed depends on how batches were
        cut: one closes with the transaction after."""
        paid = Counter[str]()
        for sale in self.counted:
            paid[sale.item] += sale.paid
        windows = Counter(sale.window for sale in self.counted - self.late)
        return {
            "ids": {sale.id: 1 for sale in self.counted},
            "items": {item: (n, paid[item]) for item, n in Counter(sale.item for sale in self.counted).items()},
            "windows": dict(windows),
            "open and closed": [],
            "closed too early": [],
            "late": {sale.id: 1 for sale in self.late},
            "letters": sorted(sale.id for sale in self.letters),
        }

    def too_early(self, closed: Iterable[Window]) -> list[Window]:
        """Those of the windows that should be open."""
        return [window for window in closed if not self._is_due(window)]
