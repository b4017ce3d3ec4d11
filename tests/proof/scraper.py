"""Somebody who scrapes the metrics of every leader and standby while they die."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import Counter
from http.client import HTTPException

from tests.proof.soak import Soak
from tests.proof.watcher import Watcher

PAUSE_S = 0.2
PATHS = ("metrics", "readyz", "livez")
_URL = re.compile(r"metrics are at (http://\S+/)metrics")


class Scraper(Watcher):
    """Scrapes all processes of a soak again and again. A process that is stopped, or just killed, does not answer;
    nobody gives a wrong answer."""

    def __init__(self, soak: Soak) -> None:
        super().__init__()
        self.soak = soak
        self.answers, self.leaders, self.committed = Counter[tuple[str, int]](), set[str](), 0
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def check(self) -> str:
        """Every leader was seen leading, none was ahead of what is committed, and only a process that starts, or has
        stood still, was not ready or alive."""
        self._end()
        assert {status for (path, status) in self.answers if path == "metrics"} == {200}, self.answers
        assert {status for _, status in self.answers} <= {200, 503}, self.answers
        assert 0 < self.committed <= self.soak.committed()
        assert len(self.leaders) > 1, self.leaders
        scraped = self.answers["metrics", 200]
        return f"metrics were scraped: {scraped} times, {len(self.leaders)} processes seen leading"

    def _look(self) -> None:
        while not self._ended.wait(PAUSE_S):
            for program in self.soak.running:
                if (found := _URL.search(program.text)) is not None:
                    for path in PATHS:
                        self._one(found[1], path)

    def _one(self, base: str, path: str) -> None:
        try:
            with self._opener.open(base + path, timeout=2) as answer:
                text = answer.read().decode()
            self.answers[path, answer.status] += 1
        except urllib.error.HTTPError as error:
            self.answers[path, error.code] += 1
            return
        except (OSError, HTTPException):
            return  # killed, perhaps in the middle of its answer, or stopped
        if path == "metrics" and re.search(r"^transactional_leading\{.*\} 1\.0$", text, re.MULTILINE):
            self.leaders.add(base)
            if found := re.search(r"^transactional_committed_txid\{.*\} (\S+)$", text, re.MULTILINE):
                self.committed = max(self.committed, int(float(found[1])))
