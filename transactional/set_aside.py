"""Tuples that a transaction leaves out, or takes in again: what is recorded of them with its batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Exclusion:
    """Tuples that a bolt is not given any more, because it failed on one of them as often as was allowed.

    `fingerprint` stands for the tuple's source, stream and values, so equal tuples go together; `error` is what the
    bolt has raised.
    """

    component: str
    fingerprint: str
    error: str


@dataclass(frozen=True, slots=True, order=True)
class Letter:
    """A dead letter that is given once more to the bolt that it was set aside from.

    `txid` and `number` are its key in the table of dead letters; `values` the tuple as JSON.
    """

    txid: int
    number: int
    component: str
    source: str
    stream: str
    values: str
    error: str
