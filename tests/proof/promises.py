"""The promises in plain words, and the proof of each: how the names of its parts begin."""

from __future__ import annotations

PROMISES = {
    "After random failures of all kinds every table equals one run without failures": ("test_worlds.py::test_worlds",),
    "So it is when the process dies before or after any durable effect": (
        "test_crash_points.py::test_every_crash_point",
    ),
    "So it is when the power is cut, and what was not on disk yet is lost or torn": (
        "test_power_cuts.py::test_every_power_cut",
    ),
    "So it is when drivers and workers are killed or stopped while data arrives": ("test_soak.py",),
    "So it is when a worker's disk is full, its clock is off, or it does not see a folder": ("test_odd_workers.py",),
    "Of two coordinators one leads, and a late one changes nothing": ("test_two_coordinators.py",),
    "On an object store, too, other writers either do no harm or stop the run": ("test_object_store.py",),
    "Windows, sessions and joins equal plain Python, whatever is late, idle or replayed": (
        "test_worlds.py::test_worlds_of_windows",
        "test_worlds.py::test_worlds_of_joins",
    ),
    "A bolt's state is the one of the transaction before, whatever dead attempts have written": ("test_histories.py",),
    "A rewind leads back to any transaction, also when it dies, and the run continues from there": ("test_rewinds.py",),
    "A program that is changed between two runs continues as if it had not been, or is refused": ("test_changes.py",),
    "Each command works over each source into each kind of table, or is refused in one line": ("test_journeys.py",),
    "At least once loses no message, at most once repeats none": ("test_messages.py",),
    "Hostile JSON and Avro records are read as if each came alone, or are dead letters": (
        "test_avro.py",
        "test_json.py",
    ),
    "These proofs can fail: a crash stops all later effects, a sync that is missing is found": (
        "test_crash_points.py",
        "test_power_cuts.py::test_a_sync_that_is_missing_is_found",
    ),
}


def promise_of(kind: str) -> str:
    """The promise that parts of this kind prove. Raises `KeyError` if there is none."""
    name = kind.removeprefix("tests/proof/")
    for promise, proofs in PROMISES.items():
        if name in proofs or name.partition("::")[0] in proofs:
            return promise
    raise KeyError(f"{kind}: tests/proof/promises.py has no promise that it proves")
