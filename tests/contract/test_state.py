"""What every state promises, wherever it is kept: in memory, SQLite, PostgreSQL, Delta."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.places import ENGINES, prepare, url_in
from tests.contract.states import AnyState, Place, content, counts
from tests.examples import examples
from transactional.attempt import AttemptId, TxId
from transactional.errors import Fenced, ProtocolError, SchemaMismatch, StoreMismatch, TableConflict
from transactional.execution.map_state import MapStateView
from transactional.ports import Partials, StateKind

pytestmark = pytest.mark.sampled(7)
"""Tests are rows, engines columns: every test meets half of the engines, every engine half of the tests."""
KINDS = [StateKind.OPAQUE, StateKind.TRANSACTIONAL]


@pytest.fixture
def state(place: Place) -> Iterator[AnyState]:
    """An opaque state word → count, opened."""
    state = place.state()
    yield state
    state.close()


class TestOneTransactionAfterTheOther:
    def test_starts_empty_and_without_a_version(self, state: AnyState) -> None:
        assert content(state) == {}
        assert state.version() is None

    @pytest.mark.parametrize("kind", KINDS)
    def test_adds_up(self, place: Place, kind: StateKind) -> None:
        state = place.state(kind=kind)
        state.merge(place.attempt(1, 1), counts({"cat": 2, "dog": 1}))
        state.merge(place.attempt(2, 2), counts({"cat": 1, "bird": 5}))
        assert content(state) == {"cat": 3, "dog": 1, "bird": 5}
        assert state.version() == 2
        assert state.kind is kind

    def test_writes_the_version_also_with_an_empty_batch(self, place: Place, state: AnyState) -> None:
        state.merge(place.attempt(1, 1), counts({}))
        assert state.version() == 1
        state.merge(place.attempt(2, 2), counts({"cat": 1}))
        state.put(place.attempt(3, 3), {})
        assert state.version() == 3
        assert content(state) == {"cat": 1}

    def test_reads_and_puts(self, place: Place, state: AnyState) -> None:
        """Storm row R22."""
        first = place.attempt(1, 1)
        assert state.get(first, [("cat",)]) == {}
        state.put(first, {("cat",): (1,), ("dog",): (None,)})
        second = place.attempt(2, 2)
        assert state.get(second, [("cat",), ("dog",), ("bird",)]) == {("cat",): (1,), ("dog",): (None,)}
        state.put(second, {("cat",): (7,)})
        assert content(state) == {"cat": 7, "dog": None}

    def test_is_there_for_the_next_process(self, place: Place, state: AnyState) -> None:
        state.merge(place.attempt(1, 1), counts({"cat": 2}))
        state.close()
        again = place.state()
        again.merge(place.attempt(2, 2), counts({"cat": 1}))
        assert content(again) == {"cat": 3}

    def test_null_partials_change_nothing_and_nulls_count_as_nothing(self, place: Place, state: AnyState) -> None:
        state.merge(place.attempt(1, 1), counts({"cat": 2, "dog": None}))
        state.merge(place.attempt(2, 2), counts({"cat": None, "dog": 3}))
        assert content(state) == {"cat": 2, "dog": 3}

    def test_several_values_meet_in_their_own_way(self, place: Place) -> None:
        state = place.state("word string", "total decimal(10,2), least double, most date, newest string")
        combine = {"total": "sum", "least": "min", "most": "max", "newest": "last"}

        def partials(total: str, least: float | None, most: datetime.date, newest: str | None) -> Partials:
            columns = {
                "word": pa.array(["cat"]),
                "total": pa.array([Decimal(total)], pa.decimal128(10, 2)),
                "least": pa.array([least], pa.float64()),
                "most": pa.array([most]),
                "newest": pa.array([newest], pa.string()),
            }
            return Partials(combine, pa.table(columns))

        state.merge(place.attempt(1, 1), partials("1.25", 0.5, datetime.date(2020, 1, 1), "a"))
        state.merge(place.attempt(2, 2), partials("1.50", -0.5, datetime.date(2019, 1, 1), None))
        assert content(state) == {"cat": (Decimal("2.75"), -0.5, datetime.date(2020, 1, 1), None)}
        state.merge(place.attempt(2, 3), partials("0.25", None, datetime.date(2021, 1, 1), "b"))
        assert content(state) == {"cat": (Decimal("1.50"), 0.5, datetime.date(2021, 1, 1), "b")}

    def test_not_a_number_is_no_null(self, place: Place) -> None:
        state = place.state("word string", "measure double, single float")
        state.put(place.attempt(1, 1), {("a",): (float("nan"), float("-inf")), ("b",): (None, 0.5)})
        assert repr(sorted(content(state).items())) == "[('a', (nan, -inf)), ('b', (None, 0.5))]"

    def test_not_a_number_is_the_greatest_number(self, place: Place) -> None:
        """As in Spark, in whatever order partial values, folds and readers meet it."""
        nan, inf = float("nan"), float("inf")
        histories: dict[str, list[float | None]] = {
            "nan": [nan, nan, None],
            "first": [nan, 1.0, 2.0],
            "last": [1.0, 2.0, nan],
            "between": [-1.0, nan, -2.0],
            "inf": [inf, inf, inf],
            "-inf": [-inf, None, -inf],
            "both": [inf, -inf, nan],
        }
        state = place.state("word string", "least double, most double")
        for txid in (1, 2, 3):
            numbers = pa.array([history[txid - 1] for history in histories.values()], pa.float64())
            table = pa.table({"word": list(histories), "least": numbers, "most": numbers})
            state.merge(place.attempt(txid, txid), Partials({"least": "min", "most": "max"}, table))
        expected = {
            "nan": (nan, nan),
            "first": (1.0, nan),
            "last": (1.0, nan),
            "between": (-2.0, nan),
            "inf": (inf, inf),
            "-inf": (-inf, -inf),
            "both": (-inf, nan),
        }
        assert repr(dict(sorted(content(state).items()))) == repr(dict(sorted(expected.items())))
        found = state.get(place.attempt(4, 4), [(word,) for word in histories])
        assert repr(sorted(found.items())) == repr(sorted(((word,), values) for word, values in expected.items()))

    def test_refuses_two_rows_for_one_key(self, place: Place, state: AnyState) -> None:
        """Storm row R26: the last one would silently win."""
        table = pa.table({"word": ["cat", "cat"], "count": [1, 2]})
        with pytest.raises(ProtocolError, match="2 rows with 1 different keys"):
            state.merge(place.attempt(1, 1), Partials({"count": "sum"}, table))
        assert state.version() is None

    def test_refuses_values_of_another_type(self, place: Place, state: AnyState) -> None:
        with pytest.raises(SchemaMismatch, match="do not match"):
            state.put(place.attempt(1, 1), {("cat",): ("many",)})

    def test_says_what_it_refuses_without_writing(self, place: Place, state: AnyState) -> None:
        before = content(state)
        state.check_put({("cat",): (1,)})
        with pytest.raises(SchemaMismatch, match="do not match"):
            state.check_put({("cat",): (1,), ("dog",): (10**30,)})
        assert content(state) == before

    def test_refuses_to_combine_columns_it_does_not_have(self, place: Place, state: AnyState) -> None:
        with pytest.raises(ProtocolError, match="value columns"):
            state.merge(place.attempt(1, 1), Partials({"total": "sum"}, pa.table({"word": ["a"], "total": [1]})))

    @pytest.mark.parametrize("kind", KINDS)
    def test_reads_all_that_was_put_in_transaction_after_transaction(self, place: Place, kind: StateKind) -> None:
        """Whatever the state does between them; one process reads and writes all the time."""
        state, expected = place.state(kind=kind), dict[tuple[Any, ...], tuple[Any, ...]]()
        asked = [("cat",), (None,), *((f"word {number}",) for number in range(12))]
        for txid in range(1, 12):
            attempt = place.attempt(txid, txid)
            assert state.get(attempt, asked) == expected
            rows: dict[tuple[Any, ...], tuple[Any, ...]] = {("cat",): (txid,), (f"word {txid}",): (txid,)}
            if txid == 2:
                rows[None,] = (7,)
            state.put(attempt, rows)
            expected |= rows
        assert state.get(place.attempt(12, 12), asked) == expected


class TestReplays:
    def test_opaque_starts_again_from_the_previous_values(self, place: Place, state: AnyState) -> None:
        """Storm rows R24 and T60: also of keys that only the dead attempt has touched."""
        state.merge(place.attempt(1, 1), counts({"a": 1, "b": 1}))
        state.merge(place.attempt(2, 2), counts({"a": 3, "b": 4, "c": 7}))
        state.merge(place.attempt(2, 3), counts({"a": 1}))
        assert content(state) == {"a": 2, "b": 1}
        assert state.version() == 3

    @pytest.mark.parametrize("kind", KINDS)
    def test_seed_004_man_dog_apple(self, place: Place, kind: StateKind) -> None:
        state = place.state(kind=kind)
        state.merge(place.attempt(1, 1), counts({"man": 3, "dog": 3}))
        state.merge(place.attempt(2, 2), counts({"apple": 10}))
        if kind is StateKind.OPAQUE:
            # A dead attempt of the third transaction has counted the dog only: dog 4 of transaction 3, as in the seed.
            state.merge(place.attempt(3, 3), counts({"dog": 1}))
        for attempt_id in (4, 5):
            state.merge(place.attempt(3, attempt_id), counts({"man": 2, "dog": 1}))
        assert content(state) == {"man": 5, "dog": 4, "apple": 10}
        assert content(state, committed_txid=2) == {"man": 3, "dog": 3, "apple": 10}

    def test_opaque_replays_an_empty_batch(self, place: Place, state: AnyState) -> None:
        state.merge(place.attempt(1, 1), counts({"a": 1}))
        state.merge(place.attempt(2, 2), counts({"a": 3, "c": 7}))
        state.merge(place.attempt(2, 3), counts({}))
        assert content(state) == {"a": 1}
        state.merge(place.attempt(2, 4), counts({"a": 5}))
        assert content(state) == {"a": 6}
        state.merge(place.attempt(3, 5), counts({"a": 1}))
        assert content(state) == {"a": 7}

    def test_opaque_reads_what_was_before_the_transaction(self, place: Place, state: AnyState) -> None:
        state.put(place.attempt(1, 1), {("a",): (1,)})
        state.put(place.attempt(2, 2), {("a",): (5,), ("c",): (7,)})
        assert state.get(place.attempt(2, 3), [("a",), ("c",)]) == {("a",): (1,)}

    def test_transactional_skips_the_whole_transaction(self, place: Place) -> None:
        """Storm rows R23 and T39."""
        state = place.state(kind=StateKind.TRANSACTIONAL)
        state.merge(place.attempt(1, 1), counts({"a": 1}))
        state.merge(place.attempt(2, 2), counts({"a": 3}))
        # By the table's txid, not key by key: key z would be counted by a state that looks at its rows.
        state.merge(place.attempt(2, 3), counts({"a": 3, "z": 1}))
        assert content(state) == {"a": 4}
        assert state.version() == 3

    def test_transactional_skips_what_was_empty_at_first(self, place: Place) -> None:
        state = place.state(kind=StateKind.TRANSACTIONAL)
        state.merge(place.attempt(1, 1), counts({}))
        state.merge(place.attempt(1, 2), counts({"a": 1}))
        assert content(state) == {}

    def test_an_own_earlier_write_of_unknown_outcome_is_not_repeated(self, place: Place, state: AnyState) -> None:
        attempt = place.attempt(1, 1)
        state.merge(attempt, counts({"a": 1}))
        state.merge(attempt, counts({"a": 100}))
        place.state().merge(attempt, counts({"a": 100}))
        assert content(state) == {"a": 1}

    def test_a_reader_may_look_at_what_is_committed_only(self, place: Place, state: AnyState) -> None:
        state.merge(place.attempt(1, 1), counts({"a": 1, "b": 1}))
        state.merge(place.attempt(2, 2), counts({"a": 3, "c": 7}))
        assert content(state, committed_txid=1) == {"a": 1, "b": 1}
        assert content(state, committed_txid=2) == {"a": 4, "b": 1, "c": 7}

    def test_a_fenced_coordinator_that_reads_is_reported(self, place: Place, state: AnyState) -> None:
        """Not that store and table do not belong together: what it reads are another coordinator's transactions."""
        state.put(place.attempt(1, 1), {("a",): (1,)})
        state.put(place.attempt(2, 3), {("a",): (2,)})
        state.put(place.attempt(3, 4), {("a",): (3,)})
        with pytest.raises(Fenced, match="another coordinator has taken over"):
            state.get(place.attempt(2, 2), [("a",)])
        assert content(state) == {"a": 3}

    @pytest.mark.parametrize("txid", [1, 4])
    def test_refuses_a_transaction_that_does_not_follow(self, place: Place, state: AnyState, txid: int) -> None:
        """Storm row T56."""
        state.merge(place.attempt(2, 1), counts({"a": 1}))
        with pytest.raises(StoreMismatch, match=f"at transaction 2, but transaction {txid} arrived"):
            state.merge(place.attempt(txid, 2), counts({"a": 1}))
        assert content(state) == {"a": 1}


class TestFence:
    def test_raises_the_version_and_changes_no_row(self, place: Place, state: AnyState) -> None:
        state.merge(place.attempt(1, 1), counts({"a": 1}))
        place.fence(state, 1, 5)
        assert state.version() == 5
        assert content(state) == {"a": 1}

    def test_an_earlier_attempt_changes_nothing_any_more(self, place: Place, state: AnyState) -> None:
        zombie = place.state()
        place.fence(state, 0, 5)
        with pytest.raises(Fenced, match="another coordinator has taken over"):
            zombie.merge(place.attempt(1, 4), counts({"a": 1}))
        with pytest.raises(Fenced):
            zombie.put(place.attempt(1, 4), {})
        assert (state.version(), content(state)) == (5, {})

    def test_a_later_attempt_goes_on(self, place: Place, state: AnyState) -> None:
        state.merge(place.attempt(1, 1), counts({"a": 1}))
        place.fence(state, 1, 5)
        state.merge(place.attempt(2, 6), counts({"a": 1}))
        assert content(state) == {"a": 2}

    def test_a_transactional_state_knows_its_transaction_over_a_fence(self, place: Place) -> None:
        state = place.state(kind=StateKind.TRANSACTIONAL)
        state.merge(place.attempt(1, 1), counts({"a": 1}))
        place.fence(state, 1, 5)
        state.merge(place.attempt(1, 6), counts({"a": 1}))
        assert content(state) == {"a": 1}

    def test_is_refused_when_the_table_has_moved_since_it_was_read(self, place: Place, state: AnyState) -> None:
        late = place.state()
        late.version()
        state.merge(place.attempt(1, 3), counts({"a": 1}))
        with pytest.raises(TableConflict):
            late.fence(AttemptId(5))
        assert late.version() == 3
        late.fence(AttemptId(5))
        assert late.version() == 5

    def test_is_refused_below_the_version(self, place: Place, state: AnyState) -> None:
        late = place.state()
        late.version()
        place.fence(state, 0, 7)
        with pytest.raises(Fenced):
            late.fence(AttemptId(5))
        late.version()
        with pytest.raises(Fenced):
            late.fence(AttemptId(6))
        assert state.version() == 7

    def test_can_be_repeated_when_its_outcome_was_not_known(self, place: Place, state: AnyState) -> None:
        place.fence(state, 0, 5)
        place.fence(state, 0, 5)
        assert state.version() == 5


UTC = datetime.UTC
KEYS: dict[str, list[Any]] = {
    "string": ["a", "", "b'\"`\\", "ä"],
    "long": [1, -1, 2**62],
    "int": [1, -1],
    "short": [1, -1],
    "byte": [1, -1],
    "boolean": [True, False],
    "date": [datetime.date(2020, 2, 29), datetime.date(1960, 1, 1)],
    "timestamp": [datetime.datetime(2020, 1, 1, 1, 2, 3, 456, tzinfo=UTC), datetime.datetime(1960, 1, 1, tzinfo=UTC)],
    "decimal(10,2)": [Decimal("1.10"), Decimal("-3.00")],
    "binary": [b"\x00a", b""],
}


class TestKeys:
    @pytest.mark.sampled(6)
    @pytest.mark.parametrize("type_", KEYS)
    def test_of_every_type_are_reported_apart_and_found_again(self, place: Place, type_: str) -> None:
        key, words = f"K {type_}", [*KEYS[type_], None]
        state = place.state(key)
        state.merge(place.attempt(1, 1), counts(dict.fromkeys(words, 1), key))
        state.merge(place.attempt(2, 2), counts(dict.fromkeys(words[1:], 1), key))
        expected = {words[0]: 1, **dict.fromkeys(words[1:], 2)}
        assert content(state) == expected
        found = state.get(place.attempt(3, 3), [(word,) for word in words])
        assert found == {(word,): (count,) for word, count in expected.items()}

    def test_of_all_types_together(self, place: Place) -> None:
        key = ", ".join(f"K{number} {type_}" for number, type_ in enumerate(KEYS))
        some, others = (tuple(values[number] for values in KEYS.values()) for number in range(2))
        nothing = (None,) * len(KEYS)
        state = place.state(key)
        state.merge(place.attempt(1, 1), counts({some: 1, others: 1, nothing: 1}, key))
        state.merge(place.attempt(2, 2), counts({others: 1, nothing: 1}, key))
        assert content(state) == {some: 1, others: 2, nothing: 2}

    def test_of_one_instant_are_one_key_in_whatever_zone_they_are_given(self, place: Place) -> None:
        """Without a zone it is UTC. A batch reads what it has written: Storm row R25."""
        aware = datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)
        naive = aware.replace(tzinfo=None)
        there = aware.astimezone(datetime.timezone(datetime.timedelta(hours=5)))
        state = place.state("at timestamp, word string")
        state.put(place.attempt(1, 1), {(naive, "a"): (1,)})
        second = place.attempt(2, 2)
        asked = [(naive, "a"), (aware, "a"), (there, "a")]
        assert state.get(second, asked) == dict.fromkeys(asked, (1,))
        view = MapStateView("it", state, second)
        assert view.multi_get(asked) == [1, 1, 1]
        assert (view.get(naive, "a"), view.get((there, "a"))) == (1, 1)
        assert view.multi_update(asked, lambda value: value + 1) == [2, 3, 4]
        state.put(second, view.written)
        assert content(state) == {(aware, "a"): 4}

    def test_of_several_columns(self, place: Place) -> None:
        key = "Word string, `as` int"
        state = place.state(key)
        state.merge(place.attempt(1, 1), counts({("a", 1): 1, ("a", None): 1, (None, None): 1}, key))
        state.merge(place.attempt(2, 2), counts({("a", None): 1, ("a", 2): 1}, key))
        assert content(state) == {("a", 1): 1, ("a", None): 2, (None, None): 1, ("a", 2): 1}
        found = state.get(place.attempt(3, 3), [("a", None), ("b", 1)])
        assert found == {("a", None): (2,)}

    def test_none_is_a_state_of_one_row(self, place: Place) -> None:
        state = place.state((), "count long")

        def count(number: int) -> Partials:
            return Partials({"count": "sum"}, pa.table({"count": [number]}))

        state.merge(place.attempt(1, 1), Partials({"count": "sum"}, pa.table({"count": pa.array([], pa.int64())})))
        assert content(state) == {}
        state.merge(place.attempt(2, 2), count(3))
        state.merge(place.attempt(3, 3), count(4))
        state.merge(place.attempt(3, 4), count(5))
        assert content(state) == {(): 8}
        assert state.get(place.attempt(3, 5), [()]) == {(): (3,)}


HISTORY = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abc"), st.integers(-3, 3)), st.sampled_from(["commit", "replay", "crash"])
    ),
    max_size=6,
)


EVERY_WORD = [("a",), ("b",), ("c",)]


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if isinstance(engine, str)])
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HISTORY)
def test_random_histories_count_every_committed_batch_once(
    tmp_path_factory: pytest.TempPathFactory, engine: str, history: list[tuple[dict[str, int], str]]
) -> None:
    folder = tmp_path_factory.mktemp("history")
    place = Place(engine, folder, url=url_in(folder, engine))
    with pytest.MonkeyPatch.context() as monkeypatch:
        prepare(engine, monkeypatch)
        state, total, txid = place.state(), dict[str, int](), 1
        for attempt_id, (words, what) in enumerate(history, 1):
            attempt = place.attempt(txid, attempt_id)
            assert state.get(attempt, EVERY_WORD) == {(word,): (count,) for word, count in total.items()}
            state.merge(attempt, counts(words))
            if what == "crash":
                state = place.state()
            if what == "commit":
                txid += 1
                total = {word: total.get(word, 0) + words.get(word, 0) for word in {*total, *words}}
                assert content(state) == total
            assert content(state, txid - 1) == total
        assert state.read(TxId(txid - 1)).num_rows == len(total)
        place.close()
