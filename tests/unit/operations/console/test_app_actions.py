"""Buttons: only where they are allowed, only from our own form, and they do what the command line does."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from tests.unit.operations.console.browsing import browser
from tests.unit.operations.console.stores import HOSTILE, Past
from transactional.core.store import DesiredState
from transactional.operations.console.slugs import slug_of

OURS = {"sec-fetch-site": "same-origin"}


def key_of(client: TestClient, path: str = "/t/words/") -> str:
    found = re.search(r'name="key" value="([0-9a-f]{64})"', client.get(path).text)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("state", [each for each in DesiredState if each is not DesiredState.KILLED])
def test_a_button_sets_the_desired_state(state: DesiredState) -> None:
    past = Past().begin().committed()
    client = browser(past, acts=True)
    answer = client.post("/t/words/desired", data={"key": key_of(client), "state": state.value}, headers=OURS)
    assert (answer.status_code, answer.url.path) == (200, "/t/words/")
    assert past.store.desired("words").state is state


def test_a_kill_waits_as_long_as_the_form_says() -> None:
    past = Past().begin().committed()
    client = browser(past, acts=True)
    client.post("/t/words/desired", data={"key": key_of(client), "state": "killed", "wait": "12"}, headers=OURS)
    desired = past.store.desired("words")
    assert (desired.state, desired.stop_in_ms) == (DesiredState.KILLED, 12_000)


def test_what_does_not_run_is_not_killed() -> None:
    past = Past().begin().committed().end()
    client = browser(past, acts=True)
    assert 'value="killed"' not in client.get("/t/words/").text
    answer = client.post("/t/words/desired", data={"key": key_of(client), "state": "killed"}, headers=OURS)
    assert answer.status_code == 409
    assert past.store.desired("words").state is DesiredState.ACTIVE


@pytest.mark.parametrize(
    ("form", "headers", "status"),
    [
        ({"state": "inactive"}, OURS, 403),
        ({"state": "inactive", "key": "0" * 64}, OURS, 403),
        ({"state": "inactive", "key": "\udc80é"}, OURS, 403),
        ({"state": "inactive", "key": "KEY"}, {}, 403),
        ({"state": "inactive", "key": "KEY"}, {"sec-fetch-site": "cross-site"}, 403),
        ({"state": "inactive", "key": "KEY", "more": "x" * 5_000}, OURS, 403),
        ({"state": "asleep", "key": "KEY"}, OURS, 400),
        ({"key": "KEY"}, OURS, 400),
    ],
)
def test_what_is_not_our_form_changes_nothing(form: dict[str, str], headers: dict[str, str], status: int) -> None:
    past = Past().begin().committed()
    client = browser(past, acts=True)
    sent = {
        name: key_of(client) if value == "KEY" else value.encode("utf-8", "replace") for name, value in form.items()
    }
    assert client.post("/t/words/desired", data=sent, headers=headers).status_code == status
    assert past.store.desired("words").state is DesiredState.ACTIVE


def test_without_leave_there_are_no_buttons_and_nothing_is_done() -> None:
    past = Past().begin().committed()
    key = key_of(browser(past, acts=True))
    client = browser(past)
    assert "<form" not in client.get("/t/words/").text
    answer = client.post("/t/words/desired", data={"key": key, "state": "inactive"}, headers=OURS)
    assert (answer.status_code, "--allow-actions" in answer.text) == (403, True)
    assert past.store.desired("words").state is DesiredState.ACTIVE


def test_a_topology_of_any_name_can_be_drained_and_one_that_is_not_there_cannot() -> None:
    past = Past(HOSTILE).begin().committed()
    client = browser(past, acts=True)
    path = f"/t/{slug_of(HOSTILE)}/"
    client.post(f"{path}desired", data={"key": key_of(client, path), "state": "draining"}, headers=OURS)
    assert past.store.desired(HOSTILE).state is DesiredState.DRAINING
    answer = client.post("/t/none/desired", data={"key": key_of(client, path), "state": "draining"}, headers=OURS)
    assert answer.status_code == 404
