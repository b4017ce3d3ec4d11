"""Somebody who has the console open while leaders die: every page is served, and the pages show the kills."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import Counter
from contextlib import ExitStack, closing
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from tests.integration.programs import CLI, Program
from tests.proof.watcher import Watcher
from transactional.core.store.history import EndedHow
from transactional.operations.loading import open_for_reading

PAGES = ("", "t/{id}/", "t/{id}/?charts=hour", "t/{id}/attempts", "t/{id}/runs", "t/{id}/doctor", "t/{id}/letters")
PAUSE_S = 0.1


class Onlooker(Watcher):
    """`transactional ui` over the store in a folder, and a thread that loads its pages again and again."""

    def __init__(self, folder: Path, topology_id: str) -> None:
        super().__init__()
        self.folder, self.topology_id = folder, topology_id
        self.answers: Counter[int] = Counter()
        self._programs = ExitStack()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        )

    def __exit__(self, *given: Any) -> None:
        super().__exit__(*given)
        self._programs.close()

    def check(self) -> str:
        """Nothing but pages was answered, and the runs on theirs are those of the store, with how each ended."""
        self._end()
        assert set(self.answers) == {200}, self.answers
        page = self._fetched(f"t/{self.topology_id}/runs")
        with closing(open_for_reading(f"sqlite:///{self.folder}/store.db")) as store:
            runs = store.runs(self.topology_id, limit=100)
        ended = Counter(run.end.how for run in runs if run.end is not None)
        shown = Counter(re.findall(r'<tr>.*?<span class="pill (\w+)">', page))
        assert ended[EndedHow.LOST] > 0
        assert shown == {how.value: number for how, number in ended.items()}
        return f"the console was open: {self.answers[200]} pages, {ended[EndedHow.LOST]} lost runs on the last one"

    def _look(self) -> None:
        while not (self.folder / "store.db").exists() and not self._ended.wait(PAUSE_S):
            pass
        while not self._ended.is_set() and not self._opened():
            self._ended.wait(1)
        while not self._ended.wait(PAUSE_S):
            for path in PAGES:
                self._fetched(path.format(id=self.topology_id))

    def _opened(self) -> bool:
        """Start the console; False: there is no topology in the store yet."""
        with closing(open_for_reading(f"sqlite:///{self.folder}/store.db")) as store:
            try:
                if not store.status(self.topology_id):
                    return False
            except Exception:  # its tables are just being made
                return False
        program = self._programs.enter_context(
            Program([*CLI, "ui", "--store", "sqlite:///store.db", "--port", "0"], self.folder)
        )
        self.base, token = program.await_line(r"(http://\S+/)(\?token=\S+)").groups()
        self._fetched(token)
        return True

    def _fetched(self, path: str) -> str:
        try:
            with self._opener.open(self.base + path, timeout=240) as answer:
                self.answers[answer.status] += 1
                text: str = answer.read().decode()
                return text
        except urllib.error.HTTPError as error:
            self.answers[error.code] += 1
            return error.read().decode()
