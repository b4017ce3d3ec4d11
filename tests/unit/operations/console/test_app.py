"""Every page over a store alone: what it shows, what it links to, what it does when something is not there."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.unit.operations.console.browsing import BASE, TOKEN, browser
from tests.unit.operations.console.stores import HOSTILE, START_MS, Past
from transactional.core.store.history import EndedHow, RunEnd
from transactional.core.store.outbox import SinkRecords
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import CorruptRecord, StoreUnavailable
from transactional.model.attempt import TxId
from transactional.model.batch import PartitionId
from transactional.model.drawing.formats import format_date_time, format_iso, format_time_of_day
from transactional.model.facts import Listed, Listing
from transactional.operations.console.data.reading import add_later_commits
from transactional.operations.console.slugs import slug_of

PAGES = (
    *("", "?charts=hour", "attempts", "attempts?phase=failed", "transactions/7", "partitions", "states"),
    *("letters", "runs", "configuration", "doctor", "doctor?examine=1"),
)
VOID = {"meta", "link", "input", "br", "img", "hr", "rect", "line", "path", "circle"}


IDLE = Listed(0, Listing.EMPTY, is_awaited=False)


class Reader(HTMLParser):
    """The elements of a page, whether they are nested well, and its links."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], "these elements were not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action", "data-changes")]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


@pytest.fixture
def past() -> Past:
    """Transaction 7 failed once; after 10 another process has taken over; 15 is in flight."""
    past = Past().begin().committed(6).retried().committed(3).taken_over().committed(4)
    past.issue()
    return past


@pytest.fixture
def client(past: Past) -> TestClient:
    return browser(past)


def of(client: TestClient, path: str, topology_id: str = "words") -> str:
    answer = client.get(f"/t/{slug_of(topology_id)}/{path}")
    assert answer.status_code == 200, answer.text
    return str(answer.text)


# --- what they show -----------------------------------------------------------------------------------------------


def scripts_of(path: str) -> int:
    """A page with charts loads what draws them, too; the text of a script is nowhere in a page."""
    return 3 if path in ("", "?charts=hour") else 1


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_and_needs_no_inline_script(client: TestClient, path: str) -> None:
    page = Reader(of(client, path))
    assert page.handlers == []
    assert page.tags.count("script") == scripts_of(path)
    assert page.tags.count("h1") == page.tags.count("main") == 1


def test_each_link_of_each_page_leads_somewhere_of_ours(client: TestClient) -> None:
    waiting, seen = ["/"], set[str]()
    while waiting and len(seen) < 80:
        link = waiting.pop().partition("#")[0]
        if link in seen or not link or link == "data:," or link.endswith("/changes"):
            continue
        assert link.startswith("/"), link
        seen.add(link)
        answer = client.get(link)
        assert answer.status_code == 200, link
        if answer.headers["content-type"].startswith("text/html"):
            waiting += Reader(answer.text).links
    assert {f"/t/words/{path}" for path in PAGES} <= seen


def test_the_home_page_lists_all_topologies_with_how_they_are(past: Past) -> None:
    Past("orders", store=past.store, clock=past.clock).begin().committed(2).end(RunEnd(EndedHow.DRAINED))
    failing = Past("late", store=past.store, clock=past.clock).begin()
    failing.fail(failing.issue(), "OSError: gone")
    told = text_of(browser(past).get("/").text)
    assert "3 in this store" in told
    assert re.search(r"late failing .* failing at transaction 1: processing: OSError: gone orders drained ", told)


def test_an_overview_has_the_figures_of_the_topology(client: TestClient) -> None:
    told = text_of(of(client, ""))
    assert re.search(r"committed transactions 14 ", told)
    assert re.search(r"latency, median 205 ms", told)
    assert re.search(r"failed attempts 0 of 5 in run 2", told)
    assert re.search(r"lag 1,933", told)
    assert "component-2" in told
    assert "words[1] \u2013 1,400 100" in told
    assert "table /tables/" in told


def test_a_transaction_has_a_page_with_its_attempts(client: TestClient) -> None:
    told = text_of(of(client, "transactions/7"))
    assert re.search(r"Attempt 9 committed .* issued .* committed .* in all 205 ms .* words\[0\] 600 700 100", told)
    assert re.search(r"Attempt 8 failed .* Error processing: ValueError: no Traceback", told)


def test_attempts_are_filtered_and_turned_over() -> None:
    client = browser(Past().begin().committed(6).retried().committed(40))
    first = of(client, "attempts")
    older = re.search(r'rel="next" href="([^"]+)"', first)
    assert older is not None
    second = client.get(older.group(1).replace("&amp;", "&")).text
    numbers = [re.findall(r'attempts?#|transactions/\d+#attempt-(\d+)"', page) for page in (first, second)]
    assert len(numbers[0]) == 40
    assert [int(number) for page in numbers for number in page] == list(range(49, 1, -1))
    assert 'rel="next"' not in second
    failed = of(client, "attempts?phase=failed")
    assert re.findall(r"#attempt-(\d+)", failed) == ["8"]
    assert of(client, "attempts?phase=nonsense&before=x").count("#attempt-") == 40


def test_a_transaction_is_found_by_its_number(client: TestClient) -> None:
    answer = client.get("/t/words/attempts?txid=7")
    assert answer.url.path == "/t/words/transactions/7"


def test_each_option_has_its_source_and_what_it_overrides() -> None:
    sources = {"lease_ms": [["--set", 20_000], ["transactional.toml", 12_000], ["default", 10_000]]}
    past = Past().begin(settings={"lease_ms": 20_000, "attempts_max": 5}, sources=sources)
    told = text_of(of(browser(past), "configuration"))
    assert re.search(r"lease_ms 20000 ms --set instead of 12000 of transactional.toml ", told), told
    assert "of default" not in told


def test_runs_tell_the_takeover_and_configurations_what_changed(client: TestClient) -> None:
    told = text_of(of(client, "runs"))
    assert re.search(r"2 running .* worker-2:97 .* 1 lost .* 10 worker-1:4411 .* no end was recorded", told)
    told = text_of(of(client, "configuration"))
    assert re.search(r"as of run 2.* lease_ms 20000 ms .* 15000", told)
    assert "run before was" not in text_of(of(client, "configuration?run=1"))


def test_partitions_come_in_pages_those_furthest_behind_first() -> None:
    past = Past(partitions=120).begin()
    past.commit(past.issue(), {"lag": 9, "lags": [["words", 77, 5], ["words", 3, 4]]})
    client = browser(past)
    rows = [
        re.findall(r'<th scope="row">([^<]+)</th>', of(client, f"partitions?page={page}")) for page in (1, 2, 3, 99)
    ]
    assert [len(each) for each in rows] == [50, 50, 20, 20]
    assert rows[0][:3] == ["words[77]", "words[3]", "words[0]"]
    assert rows[2] == rows[3]


def test_partitions_without_a_record_that_windows_wait_for_are_named() -> None:
    past = Past(listed={PartitionId("words", 7): Listed(0, Listing.AWAY), PartitionId("words", 8): IDLE}).begin()
    past.committed()
    for page in ("", "partitions"):
        assert "Windows wait for words[7] (no answer), no record yet." in text_of(of(browser(past), page))
    assert "Windows wait" not in of(browser(Past().begin().committed()), "")


def test_each_time_is_an_element_that_says_it_is_utc_without_a_script(client: TestClient) -> None:
    at_ms, number = START_MS + 5, 0
    for path in (*PAGES, "transactions/1"):
        page = of(client, path)
        elements = re.findall(r"<time [^>]*>[^<]*</time>", page)
        number += len(elements)
        for element in elements:
            found = re.fullmatch(r'<time datetime="([^"]*)Z" title="([^"]*) UTC">([^<]*)</time>', element)
            assert found is not None, element
            assert found[2] == found[1][:19].replace("T", " ")
            assert found[3] in (found[2], found[1].partition("T")[2])
        assert not re.search(r"(?<!\") \d{4}-\d\d-\d\d ", re.sub(r"<time.*?</time>|<svg.*?</svg>", "", page)), path
    assert number > 50
    issued = (
        f'<time datetime="{format_iso(at_ms)}" title="{format_date_time(at_ms)} UTC">{format_time_of_day(at_ms)}</time>'
    )
    assert issued in of(client, "transactions/1")


def test_the_id_in_a_partition_of_kafka_is_explained_where_it_stands() -> None:
    past = Past(name="#AbCd-_12").begin()
    spout = {"orders.kind": "KafkaSpout", "orders.topics": "words"}
    past.store.record_start(past.held, {"spout": spout, "committers": {}})
    past.committed(2)
    for path in ("", "partitions", "transactions/1"):
        told = text_of(of(browser(past), path))
        assert told.count("words#AbCd-_12[0] is a partition of the topic words . What follows the # is") == 1, path
    other = Past(name="#AbCd-_12").begin().committed(1)
    assert "of the topic" not in of(browser(other), ""), "not of Kafka: nobody knows what it is"


def test_a_transaction_says_where_it_ran() -> None:
    past = Past().begin()
    past.commit(past.issue(), {"processing": "in workers"})
    steps = {"count": "driver: all steps do", "late": "job: about 90 ms in the driver, 20 ms as a job", "x": "driver"}
    past.commit(past.issue(), {"processing": "on Spark: about 104 ms in workers, 52 ms on Spark", "steps": steps})
    client = browser(past)
    assert "Where Why there processing in workers" in text_of(of(client, "transactions/1"))
    told = text_of(of(client, "transactions/2"))
    assert "processing on Spark about 104 ms in workers, 52 ms on Spark commit count in the driver all steps do" in told
    assert "commit late as a job about 90 ms in the driver, 20 ms as a job commit x in the driver" in told
    told = text_of(of(client, ""))
    assert "The last transaction was processed on Spark: about 104 ms in workers, 52 ms on Spark." in told
    assert "Where it ran" not in of(browser(Past().begin().committed()), ""), "an older version has not recorded it"


def test_windows_of_a_state_are_shown_in_units_and_stored_as_they_were() -> None:
    past = Past().begin()
    stored = {"windows": "300000000 us every 60000000 us by event time", "window_time": "at"}
    past.store.record_start(past.held, {"spout": {"kind": "memory"}, "committers": {"fives": stored}})
    for path in ("", "states"):
        text = text_of(of(browser(past), path))
        assert "windows 5 minutes every 1 minute by event time" in text
        assert "300000000" not in text
    assert past.store.status("words")[0].fingerprint["committers"]["fives"] == stored


def test_a_sink_shows_what_waits_and_since_when() -> None:
    past = Past().begin()
    assert "Sinks" not in text_of(of(browser(past), "")), "there is none"
    past.commit(past.issue())
    past.commit(past.issue(), outbox={"alerts": SinkRecords(b"12345", 7)})
    since = format_time_of_day(past.clock.wall_ms())
    past.commit(past.issue(), outbox={"alerts": SinkRecords(b"123", 1)})
    text = text_of(of(browser(past), ""))
    assert "alerts 1 2 8 8 B" in text
    assert since[:8] in text.partition("alerts 1 2 8 8 B")[2].partition("Attempts")[0]
    [row] = past.store.outbox("words", "alerts", last=TxId(2), limit=1)
    past.store.settle_sink(past.held, "alerts", row.publication)
    assert "alerts 2 1 1 3 B" in text_of(of(browser(past), ""))


# --- texts of others ----------------------------------------------------------------------------------------------


@pytest.fixture
def hostile() -> Past:
    past = Past(HOSTILE, name=HOSTILE).begin().committed(6).retried().taken_over().committed(2)
    past.commit(past.issue(), {"lag": 1, "edges": [[HOSTILE, HOSTILE, HOSTILE, 7]], "lags": [[HOSTILE, 0, 1]]})
    past.fail(past.issue())
    return past.end(RunEnd(EndedHow.FAILED, HOSTILE, HOSTILE))


@pytest.mark.parametrize("path", [*PAGES, "transactions/11", "transactions/10"])
def test_no_text_of_the_store_becomes_an_element(hostile: Past, path: str) -> None:
    harmless = Past("words").begin().committed(6).retried().taken_over().committed(3)
    harmless.fail(harmless.issue())
    answer = of(browser(hostile), path, HOSTILE)
    page = Reader(answer)
    assert page.handlers == []
    assert set(page.tags).isdisjoint({"img", "iframe", "object"})
    assert page.tags.count("script") == scripts_of(path)
    assert "&lt;img src=x" in answer
    assert "49" not in answer.replace("&#34;", "").replace("7*7", "") or "{{7*7}}" in answer


def test_users_and_passwords_in_urls_are_not_shown() -> None:
    past = Past().begin()
    past.fail(past.issue(), "OSError: https://user:hunter2@storage/table")
    client = browser(past)
    for path in ("", "attempts", "transactions/1"):
        page = of(client, path)
        assert "hunter2" not in page
        assert "https://***@storage" in page or path == ""


def test_an_owner_has_no_password_in_a_diagram_either() -> None:
    past = Past().begin().committed(2).taken_over("postgresql://user:hunter2@there").committed(2)
    page = of(browser(past), "")
    assert "hunter2" not in page
    assert "run 2 began" in page


def test_an_option_that_holds_a_secret_is_shown_as_of_no_run() -> None:
    sources = {"my_token": [["--set", "hunter1"], ["code", "hunter0"]]}
    past = Past().begin(settings={"my_token": "hunter1", "lease_ms": 15_000}, sources=sources)
    assert "hunter" not in of(browser(past), "configuration")
    past.clock.advance(70_000)
    past.begin(settings={"my_token": "hunter2", "lease_ms": 15_000})
    page = of(browser(past), "configuration")
    assert "hunter" not in page
    assert page.count('<span class="pill inactive">***</span>') == 1, "that it has changed is no secret"


def test_the_token_is_on_no_page(client: TestClient) -> None:
    assert not [path for path in PAGES if TOKEN in of(client, path)]


# --- what is not there --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/t/none/", "no topology &#39;none&#39;"),
        ("/t/~/", "no topology"),
        ("/t/words/transactions/999", "has no attempt at transaction 999"),
        ("/t/words/transactions/99999999999999999999999", "has no attempt"),
        pytest.param("/t/words/transactions/" + 5_000 * "9", "has no attempt", id="thousands of digits"),
        ("/t/words/transactions/0", "numbered 1, 2, 3"),
        ("/t/words/transactions/-1", "numbered 1, 2, 3"),
        ("/t/~7aCA/", "no topology"),
        ("/nothing", "no such page"),
        ("/static/../app.py", "no such page"),
    ],
)
def test_what_is_not_there_is_told(client: TestClient, path: str, told: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert told in answer.text


def test_an_empty_store_says_what_to_do() -> None:
    assert "transactional run" in browser(Past()).get("/").text


def test_a_topology_that_has_committed_nothing_has_its_pages() -> None:
    client = browser(Past().begin())
    for path in ("", "attempts", "partitions", "states", "letters", "runs", "configuration", "doctor"):
        Reader(of(client, path))
    assert "No transaction has been issued yet" in of(client, "")


def test_a_transaction_leads_to_the_next_one_if_there_is_one() -> None:
    past = Past().begin().committed(2)
    client = browser(past)
    assert ["the next one" in of(client, f"transactions/{txid}") for txid in (1, 2)] == [True, False]
    past.issue()
    assert ["the next one" in of(client, f"transactions/{txid}") for txid in (2, 3)] == [True, False]


def test_what_bolts_have_counted_is_on_the_page_of_their_transaction() -> None:
    past = Past().begin()
    past.commit(past.issue(), {"counters": [["parse", "unreadable", 1_234]]})
    assert "Counted by bolts Bolt Counter Count parse unreadable 1,234" in text_of(of(browser(past), "transactions/1"))


def test_event_time_is_there_if_the_topology_has_some_and_of_the_present_run() -> None:
    past = Past().begin()
    assert "Event time" not in of(browser(past.committed(2)), "")
    at_us = 1_000 * past.clock.wall_ms()
    reached = {"newest_us": at_us, "watermark_us": at_us - 9_000_000, "open": {"minutes": 2, "visits": None}}
    reached["open_until"] = {"minutes": [at_us - 9_000_000, at_us + 60_000_000, False]}
    past.commit(past.issue(), {"event_time": reached, "late": {"minutes": 5}})
    assert "late tuples 5 last 3 transactions" in text_of(of(browser(past), ""))
    past.taken_over().commit(past.issue(), {"event_time": reached})
    told = text_of(of(browser(past), ""))
    assert "watermark lag 9 s behind the newest event open windows 2 of sessions not known" in told
    assert "late tuples 0 last 1 transactions" in told
    last_end = format_date_time(at_us // 1_000 + 60_000)
    assert f"minutes 2 {last_end} later events 0 visits \u2013 \u2013 0" in told


def test_codes_of_errors_lead_to_what_to_do() -> None:
    past = Past().begin().committed()
    past.fail(past.issue(), "TX302 BoltFailed: no <b>")
    client = browser(past.end(RunEnd(EndedHow.FAILED, "TX401", "TX999 is none, TX403 is")))
    for path in ("", "attempts", "transactions/2"):
        assert '<a href="/errors#tx302-boltfailed">TX302</a> BoltFailed: no &lt;b&gt;' in of(client, path)
    runs = of(client, "runs")
    assert '<a href="/errors#tx401-fenced">TX401</a>' in runs
    assert 'TX999 is none, <a href="/errors#tx403-topologychanged">TX403</a> is' in runs
    page = client.get("/errors").text
    for code in ("tx302-boltfailed", "tx401-fenced", "tx403-topologychanged"):
        assert f'<section id="{code}"' in page


def test_a_topology_too_large_for_boxes_has_rows() -> None:
    page = of(browser(Past(components=31).begin().committed()), "")
    assert "component-30" in page
    assert 'class="graph rows wide"' in page
    assert 'class="graph wide"' in of(browser(Past(components=4).begin().committed()), "")


@pytest.mark.parametrize(
    ("error", "status"), [(StoreUnavailable("it is away"), 503), (CorruptRecord("a bad row"), 500)]
)
def test_a_store_that_fails_is_told_with_its_code(
    past: Past, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    client = browser(past)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(past.store, "times", fail)
    answer = client.get("/t/words/")
    assert answer.status_code == status
    assert str(error) in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_record_that_nobody_understands_costs_its_page_alone() -> None:
    past = Past().begin()
    past.commit(past.issue(), {"edges": ["no edge"]})
    admitted = browser(past)
    client = TestClient(admitted.app, base_url=BASE, cookies=admitted.cookies, raise_server_exceptions=False)
    answer = client.get("/t/words/")
    assert answer.status_code == 500
    assert "ValueError" in answer.text
    assert "This page can&#39;t be made; the topology is not affected" in answer.text
    assert client.get("/t/words/runs").status_code == 200


def test_the_pages_are_the_same_from_a_database(tmp_path: Path) -> None:
    store = SqlCoordinatorStore(f"sqlite:///{tmp_path}/store.db")
    in_sql = Past(store=store).begin().committed(6).retried().committed(3)
    client = browser(in_sql)
    for path in PAGES:
        Reader(of(client, path))
    assert "Attempt 8" in of(client, "transactions/7")
    store.close()


# --- live ---------------------------------------------------------------------------------------------------------


def test_a_version_differs_when_anything_is_new() -> None:
    past = Past().begin().committed()
    from transactional.operations.console.views import read_version

    now_ms = past.clock.wall_ms
    seen = [read_version(past.store, "words", now_ms())]
    for change in (past.committed, past.retried, lambda: past.fail(past.issue()), past.taken_over, past.end):
        change()
        seen.append(read_version(past.store, "words", now_ms()))
    assert len({str(each) for each in seen}) == len(seen)
    assert read_version(past.store, "words", now_ms()) == seen[-1]
    assert read_version(past.store, "nobody", now_ms()) is None


def test_a_status_read_earlier_includes_what_was_committed_since() -> None:
    past = Past().begin().committed(2)
    past.fail(past.issue())
    [earlier] = past.store.status("words")
    past.commit(past.issue(past.txid), {"lag": 7})
    [later] = past.store.status("words")
    recent = past.store.times("words", limit=9)
    assert earlier.trouble is not None
    assert add_later_commits(earlier, recent) == replace(later, attempt_id=earlier.attempt_id)
    assert add_later_commits(later, recent) is later
    assert add_later_commits(earlier, []) is earlier
