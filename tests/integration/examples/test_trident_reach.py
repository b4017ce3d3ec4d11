"""Storm's reach as users run it, against plain Python: on the command line, and as a program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from examples.trident_reach import FOLLOWERS, POSTED
from tests.integration.programs import CLI, finished

REACH = {
    address: len({follower for person in people for follower in FOLLOWERS.get(person, [])})
    for address, people in POSTED.items()
}


def test_the_reach_of_each_address(tmp_path: Path) -> None:
    lines = finished([sys.executable, "-m", "examples.trident_reach"], tmp_path).lines
    assert lines[-len(REACH) - 1 :] == [*(f"{a}: {n}" for a, n in REACH.items()), "nobody.com/blog/0: 0"]
    assert REACH["foo.com/blog/1"] == 16, "as in Storm's example"
    store = f"sqlite:///{tmp_path}/data/trident-reach/store.db"
    command = [*CLI, "query", "examples.trident_reach:build", "reach", "engineering.twitter.com/blog/5"]
    answer, txid = finished([*command, "--store", store], tmp_path).lines
    assert json.loads(answer) == {"reach": 14}
    assert txid.startswith("as of transaction ")
