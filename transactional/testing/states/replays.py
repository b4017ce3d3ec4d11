"""Cases of repeated attempts: with the same batch, with another one, after the writes of a dead attempt."""

from __future__ import annotations

from typing import Any

from transactional.core.ports import StateKind
from transactional.model.absent import ABSENT
from transactional.model.errors import StoreMismatch
from transactional.testing.cases.register import NotOffered
from transactional.testing.states.opaque_rule import ABSENT as NOTHING
from transactional.testing.states.opaque_rule import DOES, DOES_OR_DELETES, RULE, RULE_WITH_DELETES, TXID
from transactional.testing.states.trial import KINDS, Trial, Writer, case, cases


@case
def replayed_as_another_batch(trial: Trial) -> None:
    """An opaque state starts again from the values before, also of keys that only the dead attempt has brought (Storm
    rows R24 and T60)."""
    words = trial.open()
    words.merge(1, {"a": 1, "b": 1})
    words.merge(2, {"a": 3, "b": 4, "c": 7})
    replay = words.merge(2, {"a": 1})
    words.check_rows({"a": 2, "b": 1})
    words.check_rows({"a": 1, "b": 1}, committed=1)
    words.check_version(replay)


@cases(KINDS)
def replayed_as_the_same_batch(trial: Trial, kind: StateKind) -> None:
    """A replay counts once (seed 004)."""
    words = trial.open(kind=kind)
    words.merge(1, {"man": 3, "dog": 3})
    words.merge(2, {"apple": 10})
    if kind is StateKind.OPAQUE:
        # A dead attempt of the third transaction has counted the dog only: dog 4 of transaction 3, as in the seed.
        words.merge(3, {"dog": 1})
    for _ in range(2):
        words.merge(3, {"man": 2, "dog": 1})
    words.check_rows({"man": 5, "dog": 4, "apple": 10})
    words.check_rows({"man": 3, "dog": 3, "apple": 10}, committed=2)


@case
def replayed_as_an_empty_batch(trial: Trial) -> None:
    """A replay without rows takes back the rows of the dead attempt, too."""
    words = trial.open()
    words.merge(1, {"a": 1})
    words.merge(2, {"a": 3, "c": 7})
    words.merge(2, {})
    words.check_rows({"a": 1})
    words.merge(2, {"a": 5})
    words.check_rows({"a": 6})
    words.merge(3, {"a": 1})
    words.check_rows({"a": 7})


@case
def read_before_a_replay(trial: Trial) -> None:
    """A replay reads what was before its transaction, by whichever writer."""
    words = trial.open()
    words.put(1, {"a": 1})
    words.put(2, {"a": 5, "c": 7})
    words.check_lookup(2, {"a": 1}, ["a", "c"])
    replaying = trial.open()
    attempt = trial.attempt(2)
    trial.check_equal("is_replay()", replaying.state.parts.lookup.is_replay(attempt), True)
    replaying.check_lookup(attempt, {"a": 1}, ["a", "c"])
    replaying.put(attempt, {"a": 2})
    trial.check_equal("is_replay() of transaction 3", replaying.state.parts.lookup.is_replay(trial.attempt(3)), False)
    replaying.check_lookup(3, {"a": 2}, ["a", "c"])


@case
def a_transactional_state_skips_the_transaction(trial: Trial) -> None:
    """Behind a spout whose replays are the same, what is written is not written again: by the table's transaction, not
    row by row (Storm rows R23 and T39)."""
    words = trial.open(kind=StateKind.TRANSACTIONAL)
    words.merge(1, {"a": 1})
    words.merge(2, {"a": 3})
    words.check_version(words.merge(2, {"a": 3, "z": 1}))
    words.check_rows({"a": 4})


@case
def a_transactional_state_skips_what_was_empty(trial: Trial) -> None:
    """A transaction without rows is not written again either."""
    words = trial.open(kind=StateKind.TRANSACTIONAL)
    words.merge(1, {})
    words.merge(1, {"a": 1})
    words.check_rows({})


@case
def the_same_attempt_twice(trial: Trial) -> None:
    """An attempt's own earlier write, whose outcome was not known, is not repeated, nor by another process."""
    words = trial.open()
    attempt = words.merge(1, {"a": 1})
    words.merge(attempt, {"a": 100})
    trial.open().merge(attempt, {"a": 100})
    words.check_rows({"a": 1})


@case
def up_to_a_transaction(trial: Trial) -> None:
    """A reader may look at what is committed only, while the table is a transaction ahead."""
    words = trial.open()
    words.merge(1, {"a": 1, "b": 1})
    words.merge(2, {"a": 3, "c": 7})
    words.check_rows({"a": 1, "b": 1}, committed=1)
    words.check_rows({"a": 4, "b": 1, "c": 7}, committed=2)


@cases((1, 4))
def a_transaction_that_does_not_follow(trial: Trial, txid: int) -> None:
    """A transaction other than the next one, or the same once more, is refused: store and table do not belong together
    (Storm row T56)."""
    words = trial.open()
    words.merge(2, {"a": 1})
    trial.expect_error(StoreMismatch, lambda: words.merge(txid, {"a": 1}))
    words.check_rows({"a": 1})


@cases(("the same attempt", "another batch"))
def a_write_that_breaks_off(trial: Trial, follows: str) -> None:
    """A write that ends in its middle can be repeated by the same attempt, or replayed as another batch."""
    if trial.break_write is None:
        raise NotOffered("check_state was given no break_write=, which lets a write end in its middle")
    words, rows = trial.open(), {"a": 5, "b": 5, "c": 5}
    words.merge(1, {"a": 1, "b": 1})
    trial.break_write(words.state)
    trial.note("the next write ends in its middle")
    broken = trial.attempt(2)
    trial.expect_error(Exception, lambda: words.merge(broken, rows))
    words.close()
    reopened = trial.open()
    reopened.check_rows({"a": 1, "b": 1}, committed=1)
    if follows == "the same attempt":
        reopened.merge(broken, rows)
        reopened.check_rows({"a": 6, "b": 6, "c": 5})
    else:
        reopened.check_lookup(2, {"a": 1, "b": 1}, rows)
        reopened.merge(2, {"a": 1})
        reopened.check_rows({"a": 2, "b": 1})


# --- the table of the rule --------------------------------------------------------------------------------------------


@cases(DOES)
def the_opaque_rule(trial: Trial, does: Any) -> None:
    """A transaction changes a row by the opaque rule, whatever happened to the row before (see `opaque_rule`)."""
    _check_rule(trial, does, deletes=False)


@cases(DOES_OR_DELETES)
def the_opaque_rule_with_deletes(trial: Trial, does: Any) -> None:
    """The same where keys can be deleted."""
    _check_rule(trial, does, deletes=True)


BEFORE: dict[str, tuple[dict[int, Any], Any]] = {
    "no row": ({}, None),
    "an older one": ({2: 7, 4: 10}, None),
    "one that was new": ({4: 10}, None),
    "one that was rolled back": ({4: 10}, (99,)),
    "an older NULL": ({2: 7, 4: None}, None),
    "a dead attempt's": ({4: 10}, 99),
    "a dead attempt's new one": ({}, 99),
    "a dead attempt's over NULL": ({4: None}, 99),
    "an older tombstone": ({2: 10, 4: ABSENT}, None),
    "a dead attempt's tombstone": ({4: 10}, ABSENT),
    "a dead attempt's tombstone of NULL": ({4: None}, ABSENT),
}
"""How each row of the rule comes about: what transactions 2 and 4 put, and what a dead attempt of transaction 5 did;
in a tuple: which another dead attempt has taken back."""


def _check_rule(trial: Trial, does: Any, *, deletes: bool) -> None:
    rule: dict[str, Any] = dict(RULE_WITH_DELETES if deletes else RULE)
    number = (DOES_OR_DELETES if deletes else DOES).index(does)
    values = trial.open(deletes=deletes)
    for txid in range(1, TXID):
        values.put(txid, {key: BEFORE[key][0][txid] for key in rule if txid in BEFORE[key][0]})
    dead = {key: BEFORE[key][1] for key in rule if BEFORE[key][1] is not None}
    values.put(TXID, {key: content[0] if isinstance(content, tuple) else content for key, content in dead.items()})
    values.put(TXID, {key: content for key, content in dead.items() if not isinstance(content, tuple)})
    rows_before = {key: content for key, (_, content, _) in rule.items() if content != NOTHING}
    attempt = trial.attempt(TXID)
    values.check_lookup(attempt, rows_before, rule)
    with trial.allow_refused_mix():
        _apply(values, attempt, does, rule)
    rows_after = {key: rows[number] for key, (_, _, rows) in rule.items()}
    existing_rows = {key: row[0] for key, row in rows_after.items() if row is not None and not any(row[4:])}
    values.check_rows(existing_rows)
    values.check_rows(rows_before, committed=TXID - 1)
    values.check_lookup(TXID, rows_before, rule)
    values.check_lookup(TXID + 1, existing_rows, rule)


def _apply(values: Writer, attempt: Any, does: Any, keys: Any) -> None:
    if does == ("delete", None):
        values.put(attempt, dict.fromkeys(keys, ABSENT))
    elif does is None:
        values.put(attempt, {})
    else:
        values.merge(attempt, dict.fromkeys(keys, does[1]), does[0])
