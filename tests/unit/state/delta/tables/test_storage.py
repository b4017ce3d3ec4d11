"""Files of a table in an object store: as delta-rs has them, and never while holding what other threads need.

The store is a thread of this process. A call that holds the interpreter's lock while it waits keeps the store from
answering, and fails when its time is up.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from obstore.exceptions import GenericError
from pyarrow import parquet
from pyarrow.fs import FileSelector, FileSystem, PyFileSystem

from state.delta.doctor import ExaminedDelta
from state.delta.log.log import table_exists
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.tables.storage import (
    REQUESTS_AT_ONCE,
    _ObjectStoreHandler,
    create_object,
    open_file_system,
    open_parquet,
)
from state.delta.tables.table import DeltaLocation, load_table
from state.delta.write.creating import create_table
from state.fence import TableWrite, WriteRefused
from state.rows.columns import StateColumns
from tests.contract.states import OWNER, Place, content, counts, write_by_files
from tests.standing_s3 import BUCKET, FIRST_S, StandingS3
from transactional.errors import ConfigError, OperatingError, SchemaMismatch
from transactional.model.attempt import TxId
from transactional.model.schema import Schema


def rows_of_a_file() -> bytes:
    """A Parquet file of two rows."""
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"a": [1, 2]}), sink)
    return bytes(sink.getvalue())


TABLE = f"s3://{BUCKET}/words"
ROWS = rows_of_a_file()
IN_TIME = {"timeout": "5s", "max_retries": "0"}


@pytest.fixture
def store() -> Iterator[StandingS3]:
    with StandingS3().serving() as store:
        yield store


@pytest.fixture
def options(store: StandingS3) -> dict[str, str]:
    return {**store.options, **IN_TIME}


def opened(table: str, place: Place, layout: Any, options: dict[str, str] | None = None) -> DeltaMapState:
    words = DeltaMapState(table, "word string", "count long", layout=layout, storage_options=options)
    words.open(OWNER, place.txids.__getitem__)
    place.fence(words, max(place.txids.values(), default=0), max(place.txids, default=0) + 1)
    return words


def counted(words: DeltaMapState, place: Place, txids: Sequence[int]) -> None:
    for txid in txids:
        words.merge(place.attempt(txid, max(place.txids) + 1), counts({"cat": 1, f"w{txid}": 1}))
        words.parts.maintenance.maintain(TxId(txid), lambda: True)


@pytest.mark.parametrize(
    ("layout", "is_large"),
    [("merge", False), ("merge", True), (LogLayout(compact_after=2), False)],
    ids=["merge", "file by file", "log"],
)
def test_a_table_lives_in_a_store_that_needs_the_same_interpreter(
    store: StandingS3,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: Any,
    *,
    is_large: bool,
) -> None:
    """Fenced, written, read, compacted, shortened, read as of then, examined."""
    if is_large:
        write_by_files(monkeypatch)
    monkeypatch.setattr("state.delta.upkeep.merged_upkeep.COMPACTION_INTERVAL", 1)
    monkeypatch.setattr("state.delta.upkeep.merged_upkeep.FILES_MAX", 1)
    monkeypatch.setattr("state.delta.read.table_reader.CACHED_ROWS_MAX", -1)
    place = Place("delta-rs", tmp_path)
    # The first transaction of a log declares its properties, for which delta-rs holds the lock.
    begun = opened(str(tmp_path / "words"), place, layout)
    counted(begun, place, [1])
    begun.close()
    store.holds(tmp_path / "words", "words")

    words = opened(TABLE, place, layout, options)
    counted(words, place, range(2, 7))
    words.open_table.loaded.refresh()
    words.open_table.upkeep.delete_old_files()
    assert content(words)["cat"] == 6
    reader = words.reader(OWNER)
    reader.pin(TxId(4))
    assert {row["word"]: row["count"] for row in reader.rows(TxId(4)).to_pylist()}["cat"] == 4
    reader.close()
    words.close()
    assert list(ExaminedDelta(DeltaLocation.parse(TABLE, options), *OWNER.split("/")).diagnoses()) == []


def test_an_entry_whose_answer_is_lost_counts_once(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are kept: they are the table's by then."""
    place = Place("delta-rs", tmp_path)
    words = opened(TABLE, place, "merge", options)
    counted(words, place, [1])
    put = obstore.put

    def lost(*given: Any, **named: Any) -> None:
        put(*given, **named)
        monkeypatch.undo()
        raise GenericError("no answer")

    monkeypatch.setattr(obstore, "put", lost)
    counted(words, place, [2, 3])
    assert content(words) == {"cat": 3, "w1": 1, "w2": 1, "w3": 1}


def test_an_entry_that_somebody_else_has_made_leaves_no_file(
    store: StandingS3, options: dict[str, str], tmp_path: Path
) -> None:
    place = Place("delta-rs", tmp_path)
    words = opened(TABLE, place, "merge", options)
    counted(words, place, [1])
    table = words.open_table
    foreign = DeltaTable(TABLE, storage_options=dict(options))
    foreign.create_write_transaction([], "append", foreign.schema())
    before = dict(store.stored)
    with pytest.raises(WriteRefused, match="another writer's"):
        table.apply(TableWrite(place.attempt(2, 9), counts({"cat": 1}).table, {"count": "sum"}))
    assert store.stored == before


def test_a_table_is_created_in_a_store_that_needs_the_same_interpreter(options: dict[str, str], tmp_path: Path) -> None:
    place = Place("delta-rs", tmp_path)
    assert not table_exists(DeltaLocation.parse(TABLE, options))
    words = opened(TABLE, place, "merge", options)
    counted(words, place, [1])
    assert content(words) == {"cat": 1, "w1": 1}
    assert table_exists(DeltaLocation.parse(TABLE, options))


def test_a_store_that_fails_while_a_table_is_created_is_an_outage(store: StandingS3, options: dict[str, str]) -> None:
    columns = StateColumns(Schema.parse("word string"), Schema.parse("count long"), {})
    store.refuses = "PUT words"
    with pytest.raises(OperatingError, match=r"Delta table .*/words can.t be (created|looked for): Generic S3"):
        create_table(DeltaLocation.parse(TABLE, options), columns, {})
    store.refuses = ""
    create_table(DeltaLocation.parse(TABLE, options), columns, {})
    assert table_exists(DeltaLocation.parse(TABLE, options))


def test_a_folder_that_nobody_can_write_to_is_no_outage(tmp_path: Path) -> None:
    columns = StateColumns(Schema.parse("word string"), Schema.parse("count long"), {})
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(
        SchemaMismatch, match=r"can't be created: \[Errno 20\] Not a directory.*\. Check that this user may make the"
    ):
        create_table(DeltaLocation.parse(file / "t"), columns, {})


def test_what_was_created_meanwhile_stays_as_it_is(store: StandingS3, options: dict[str, str], tmp_path: Path) -> None:
    """Also if the other creator has looked for it before."""
    columns = StateColumns(Schema.parse("word string"), Schema.parse("count long"), {})
    for place in (DeltaLocation.parse(TABLE, options), DeltaLocation.parse(tmp_path / "words")):
        for name in ("first", "second"):
            create_table(place, columns, {"transactional.storeId": name})
        table = load_table(place)
        assert (table.version(), table.metadata().configuration["transactional.storeId"]) == (0, "first")


ASKED: Mapping[str, Callable[[FileSystem], object]] = {
    "what a file is": lambda files: [info.size for info in files.get_file_info(["a", "b"])],
    "a listing": lambda files: sorted(info.path for info in files.get_file_info(FileSelector("f"))),
    "all below": lambda files: sorted(i.path for i in files.get_file_info(FileSelector("f", recursive=True))),
    "reading": lambda files: files.open_input_file("a").read(),
    "a part": lambda files: files.open_input_file("a").read_at(2, offset=1),
    "streaming": lambda files: files.open_input_stream("a").read(),
    "deleting": lambda files: files.delete_file("a"),
    "writing": lambda files: _write(files, "w", b"rows"),
    "creating": lambda files: create_object(files, "w", b"rows"),
    "a file of rows": lambda files: open_parquet(files, "rows", 4_000).read()["a"].to_pylist(),
    "a large file of rows": lambda files: open_parquet(files, "rows", len(ROWS)).read()["a"].to_pylist(),
}


def _write(files: FileSystem, path: str, data: bytes) -> None:
    with files.open_output_stream(path) as stream:
        stream.write(data)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("what a file is", [3, None]),
        ("a listing", ["f/a"]),
        ("all below", ["f/a", "f/g/b"]),
        ("reading", b"abc"),
        ("a part", b"bc"),
        ("streaming", b"abc"),
        ("deleting", None),
        ("writing", None),
        ("creating", None),
        ("a file of rows", [1, 2]),
        ("a large file of rows", [1, 2]),
    ],
)
def test_others_go_on_while_a_store_does_not(
    store: StandingS3, options: dict[str, str], asked: str, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.stored |= {f"words/{key}": (b"abc", FIRST_S) for key in ("a", "f/a", "f/g/b")}
    store.stored["words/rows"] = (ROWS, FIRST_S)
    if "large" in asked:
        monkeypatch.setattr("state.delta.tables.storage.WHOLE_BYTES_MAX", 0)
    with ThreadPoolExecutor(1) as another:
        store.stand_still()
        waiting = another.submit(ASKED[asked], open_file_system(TABLE, options))
        store.await_request()
        assert not waiting.done()
        store.go_on()
        assert waiting.result() == answer
    assert ("words/w" in store.stored) == (asked in ("writing", "creating"))
    assert ("words/a" not in store.stored) == (asked == "deleting")


def test_many_objects_are_looked_at_side_by_side(
    store: StandingS3, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start looks at each file of a table, which may have thousands."""
    store.stored["words/a"] = (b"abc", FIRST_S)
    head, two = obstore.head, threading.Barrier(2)

    def head_of_two(*given: Any) -> Any:
        two.wait(30)
        return head(*given)

    monkeypatch.setattr(obstore, "head", head_of_two)
    infos = open_file_system(TABLE, options).get_file_info(["a", "b"] * REQUESTS_AT_ONCE)
    assert [info.size for info in infos] == [3, None] * REQUESTS_AT_ONCE
    store.refuses = "words"
    with pytest.raises(OSError, match="S3 error"):
        open_file_system(TABLE, options).get_file_info(["a", "b"] * REQUESTS_AT_ONCE)


@pytest.mark.parametrize("asked", [each for each in ASKED if each not in ("a listing", "deleting")])
def test_an_outage_is_an_error_of_the_system_in_one_line(
    store: StandingS3, options: dict[str, str], asked: str
) -> None:
    store.refuses = "words"
    with pytest.raises(OSError, match="S3 error") as raised:
        ASKED[asked](open_file_system(TABLE, options))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("http://127.0.0.1:1", "error sending request: Connection refused (os error 111)"),
        ("", "error sending request: operation timed out"),
    ],
)
def test_the_reason_of_an_outage_is_named(
    store: StandingS3, options: dict[str, str], endpoint: str, reason: str
) -> None:
    store.stand_still()
    there = {"aws_endpoint_url": endpoint} if endpoint else {}
    with pytest.raises(OSError, match=rf"{re.escape(reason)}$"):
        open_file_system(TABLE, {**options, **there, "timeout": "100ms"}).get_file_info(["a"])


def test_what_is_created_takes_the_place_of_nothing(
    store: StandingS3, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = open_file_system(TABLE, options)
    create_object(files, "entry", b"first")
    with pytest.raises(FileExistsError):
        create_object(files, "entry", b"second")
    assert store.stored["words/entry"][0] == b"first"
    # A request whose answer was lost is sent again by the client: then it finds what it has written.
    create_object(files, "entry", b"first")


def test_what_is_not_there_is_not_there(options: dict[str, str]) -> None:
    files = open_file_system(TABLE, options)
    assert files.get_file_info(FileSelector("f", allow_not_found=True)) == []
    with pytest.raises(FileNotFoundError, match="there is nothing in f"):
        files.get_file_info(FileSelector("f"))
    for opens in (files.open_input_file, files.open_input_stream):
        with pytest.raises(FileNotFoundError, match=r"words/a not found"):
            opens("a")


def handler(uri: str, **options: str) -> Any:
    files = open_file_system(uri, options)
    assert isinstance(files, PyFileSystem)
    return files.handler


class TestOptions:
    def test_are_delta_rs_own(self) -> None:
        said = {
            "AWS_ACCESS_KEY_ID": "k",
            "secret_access_key": "s",
            "AWS_Region": "eu-west-1",
            "aws_allow_http": "true",
            "timeout": "3s",
            "max_retries": "2",
            "retry_timeout": "1 minute",
            "backoff_config.base": "3",
            "backoff_config.init_backoff": "50ms",
            "AWS_S3_ADDRESSING_STYLE": "path",
            "of nobody": "x",
        }
        store = handler("s3a://tables/words", **said).store
        assert store.config == {
            "bucket": "tables",
            "access_key_id": "k",
            "secret_access_key": "s",
            "region": "eu-west-1",
        }
        assert store.prefix == "words"
        assert store.client_options == {"allow_http": "true", "timeout": "3s"}
        assert store.retry_config["max_retries"] == 2
        assert store.retry_config["retry_timeout"] == timedelta(minutes=1)
        assert store.retry_config["backoff"]["base"] == 3
        assert store.retry_config["backoff"]["init_backoff"] == timedelta(milliseconds=50)

    def test_of_the_environment_count_less(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "ACCESS_KEY_ID": "k",
            "SECRET_ACCESS_KEY": "s",
            "REGION": "eu-1",
            "ALLOW_HTTP": "1",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        store = handler("s3a://tables/words", region="eu-2", timeout="3s").store
        assert store.config["region"] == "eu-2"
        assert store.client_options == {"allow_http": "1", "timeout": "3s"}

    @pytest.mark.parametrize(
        ("uri", "options"),
        [
            ("gs://tables/words", {"google_skip_signature": "true"}),
            ("gcs://tables/words", {"google_skip_signature": "true"}),
            ("az://tables/words", {"azure_storage_account_name": "a", "azure_storage_account_key": "aGk="}),
            ("abfss://tables@a.dfs.core.windows.net/words", {"azure_storage_use_emulator": "false"}),
        ],
    )
    def test_of_other_stores(self, uri: str, options: dict[str, str]) -> None:
        assert isinstance(handler(uri, **options), _ObjectStoreHandler)

    @pytest.mark.parametrize("option", ["aws_profile", "AWS_IAM_ROLE_ARN"])
    def test_that_only_amazons_library_understands_are_left_to_delta_rs(self, option: str) -> None:
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "aws_region": "eu-1"}
        assert isinstance(handler("s3://tables/words", **keys), _ObjectStoreHandler)
        assert not isinstance(handler("s3://tables/words", **keys, **{option: "x"}), _ObjectStoreHandler)

    def test_a_file_of_keys_is_left_to_delta_rs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        keys = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
        assert isinstance(handler("s3://tables/words", aws_region="eu-1"), _ObjectStoreHandler)
        keys.touch()
        assert not isinstance(handler("s3://tables/words", aws_region="eu-2"), _ObjectStoreHandler)

    @pytest.mark.parametrize(
        ("uri", "options", "said"),
        [
            ("az://c/t", {"account_name": "a", "account_key": "-"}, r".*Invalid Access Key.*AZURE_STORAGE_ACCOUNT_KEY"),
            (
                "s3://b/t",
                {"AWS_ACCESS_KEY_ID": "k"},
                r".*Missing SecretAccessKey; .* AWS_SECRET_ACCESS_KEY and",
            ),
            ("gs://b/t", {"google_service_account_key": "none"}, r".*GCP credential error.* GOOGLE_SERVICE_ACCOUNT, "),
        ],
    )
    def test_options_that_are_no_login_are_refused_in_one_line(
        self, uri: str, options: dict[str, str], said: str
    ) -> None:
        state = DeltaMapState(uri, key="word string", values="n long", storage_options=options)
        with pytest.raises(ConfigError, match=f"^the storage of {uri} can't be opened: {said}") as error:
            state.open("words/count", lambda _: TxId(0))
        text = str(error.value)
        assert "pass storage_options with" in text
        assert "environment variables" in text
        assert "\n" not in text

    @pytest.mark.parametrize(
        ("uri", "name"),
        [("s3://b/t", "AWS_ACCESS_KEY_ID"), ("gs://b/t", "GOOGLE_SERVICE_ACCOUNT"), ("az://c/t", "AZURE_STORAGE_ACC")],
    )
    def test_no_login_is_said_with_the_options(self, uri: str, name: str) -> None:
        error = OSError("Generic error: Error performing PUT http://169.254.169.254/latest/api/token in 2ms - 403")
        said = (
            f"^there is no login, and this machine has none: pass storage_options with {name}.* environment variables"
        )
        assert re.match(said, DeltaLocation.parse(uri).describe_error(error))

    def test_amazons_library_is_not_needed_to_look_for_a_table(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """It looks for a region and a role, at length, and writes to stderr that there is none."""
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
        options = {"aws_metadata_endpoint": "http://127.0.0.1:9", "max_retries": "0"}
        with pytest.raises(OSError, match=r"127\.0\.0\.1:9"):
            open_file_system("s3://b/t", options).get_file_info("_delta_log/0.json")
        assert capfd.readouterr().err == ""
