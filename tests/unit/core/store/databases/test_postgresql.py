"""What a transaction on PostgreSQL begins with: nothing of it outlives the transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url

from transactional.core.store.databases.postgresql import beginning, connect_arguments, without_search_path

URL = make_url("postgresql+psycopg://me@host/db")


READS = " READ ONLY"
SNAPSHOT = " ISOLATION LEVEL REPEATABLE READ"


@pytest.mark.parametrize("reads", ["", READS])
@pytest.mark.parametrize("level", ["", SNAPSHOT])
def test_all_settings_are_of_one_transaction(reads: str, level: str) -> None:
    assert beginning(3_001, "a,b", only_reads=bool(reads), is_snapshot=bool(level)).split("; ") == [
        f"BEGIN{level}{reads}",
        "SET LOCAL statement_timeout = 3001",
        "SET LOCAL lock_timeout = 3001",
        "SET LOCAL idle_in_transaction_session_timeout = 1500",
        "SELECT set_config('search_path', 'a,b', true)",
    ]


def test_the_shortest_time_that_an_idle_transaction_has_is_a_limit() -> None:
    assert "idle_in_transaction_session_timeout = 1" in beginning(1, "", only_reads=True, is_snapshot=False)


def test_a_connection_neither_begins_nor_prepares_by_itself() -> None:
    given = connect_arguments(URL.update_query_dict({"connect_timeout": "7"}), 3_001)
    assert (given["autocommit"], given["prepare_threshold"]) == (True, None)
    assert (given["tcp_user_timeout"], given["keepalives_idle"], "connect_timeout" in given) == (3_001, 4, False)


@pytest.mark.parametrize(
    ("options", "search_path"),
    [
        ("-csearch_path=one", "one"),
        ("-c search_path=one,two ", "one,two"),
        (r'--search_path="with\ space",b\\c', r'"with space",b\c'),
        ("-csearch_path=one -cgeqo=off", ""),
        ("-cgeqo=off", ""),
    ],
)
def test_schemas_are_taken_out_of_options_with_nothing_else(options: str, search_path: str) -> None:
    given = URL.update_query_dict({"options": options, "sslmode": "require"})
    url, found = without_search_path(given)
    assert found == search_path
    assert dict(url.query) == {**({} if search_path else {"options": options}), "sslmode": "require"}
