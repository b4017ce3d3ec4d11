"""Storm's reach as users run it, against plain Python: on the command line, and as a program."""

from __future__ import annotations

import json
from pathlib import Path

from examples.trident_reach import FOLLOWERS, POSTED
from tests.integration.examples.conftest import Example
from tests.unit.command_line import Command

REACH = {
    address: len({follower for person in people for follower in FOLLOWERS.get(person, [])})
    for address, people in POSTED.items()
}


def test_the_reach_of_each_address(tmp_path: Path, example: Example, command: Command) -> None:
    lines = example("trident_reach")
    assert lines[-len(REACH) - 1 :] == [*(f"{a}: {n}" for a, n in REACH.items()), "nobody.com/blog/0: 0"]
    assert REACH["foo.com/blog/1"] == 16, "as in Storm's example"
    store = f"sqlite:///{tmp_path}/data/trident-reach/store.db"
    question = ("examples.trident_reach:build", "reach", "engineering.twitter.com/blog/5")
    done = command("query", *question, "--store", store)
    assert json.loads(done.out) == {"reach": 14}
    assert done.err.startswith("as of transaction ")
