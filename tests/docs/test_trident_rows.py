"""Each row of Storm's Trident has the tests that show it, by name; what is not here is argued on the page."""

from __future__ import annotations

import ast
import inspect

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_rows import TRIDENT, answers
from tests.unit.topology.streams.test_compiling import SHAPES
from transactional.trident import GroupedStream, Stream, TridentState, WindowedState, WindowedStream

COMPILING, STREAMS = "tests/unit/topology/streams/test_compiling.py", "tests/unit/topology/streams/test_streams.py"
TRIDENTS = "tests/unit/topology/streams/test_topology.py"
LOOKING = "tests/unit/topology/streams/pipelines/test_looking_up.py"
PIPELINES = "tests/unit/topology/streams/pipelines/test_pipeline.py"
STATES, WINDOWS = "transactional/testing/states", "tests/unit/topology/streams/test_windowed.py"
"""Cases of `check_state`, which `tests/contract/test_check_state.py` tries with every state."""
REPARTITIONS = "tests/unit/topology/streams/test_operations_repartitions.py"
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "R1": (
        "tests/unit/core/ports/several/test_spouts.py::test_every_tuple_of_every_stream_counts_once",
        "tests/unit/operations/queries/test_client.py::test_what_each_query_answers",
        "tests/unit/topology/streams/test_static.py::test_all_attempts_at_a_batch_read_one_version",
        f"{TRIDENTS}::test_what_only_build_can_know",
    ),
    "R2": (f"{COMPILING}::test_a_shape_is_compiled_as_was_read_by_eye",),
    "R3": (
        "tests/unit/topology/streams/pipelines/test_joins.py::test_a_join_is_what_nested_loops_find",
        "tests/unit/topology/streams/pipelines/test_joins.py::test_a_replay_has_the_same_order",
        "tests/unit/topology/streams/pipelines/test_joins.py::test_other_names",
        "tests/windows/test_worlds.py::test_a_world_of_each_kind",
    ),
    "R5": (f"{TRIDENTS}::test_a_mistake_is_reported_at_its_line", f"{LOOKING}::test_a_mistake_is_reported_at_its_line"),
    "R6": (
        "tests/unit/topology/streams/test_operations.py::test_an_operation_means_what_it_means_in_plain_python",
        "tests/unit/topology/streams/test_operations.py::test_rows_and_arrow_do_the_same_in_any_order",
    ),
    "R7": (
        f"{STREAMS}::test_aggregates_of_a_batch",
        f"{STREAMS}::test_an_empty_batch_has_one_row_of_nothing",
        f"{PIPELINES}::test_aggregates_of_a_batch_are_reported_once_even_if_it_is_empty",
    ),
    "R8": (
        f"{STREAMS}::test_aggregates_of_a_batch",
        f"{STREAMS}::test_reducers_and_aggregators_see_the_tuples_in_order",
    ),
    "R9": (f"{STREAMS}::test_tuples_that_come_first",),
    "R10": (f"{STREAMS}::test_aggregates_of_a_batch",),
    "R11": (
        f"{STREAMS}::test_aggregates_in_a_state",
        f"{STREAMS}::test_partition_persist_calls_a_function_with_rows_and_state",
        f"{STREAMS}::test_the_average_is_among_the_new_values",
        f"{STREAMS}::test_persist_keeps_the_last_tuple_of_a_key",
    ),
    "R12": (
        "tests/unit/operations/queries/test_client_streams.py::test_reach",
        f"{LOOKING}::test_a_state_is_seen_after_its_transaction_or_before_it",
        "tests/unit/topology/streams/test_static.py::test_all_attempts_at_a_batch_read_one_version",
    ),
    "R13": (
        f"{COMPILING}::test_a_shape_is_compiled_as_was_read_by_eye",
        f"{REPARTITIONS}::test_a_repartition_moves_tuples_and_changes_none",
        f"{REPARTITIONS}::test_in_one_task_is_everything",
    ),
    "R14": (
        f"{WINDOWS}::test_a_window_is_open_then_closed_once_and_what_comes_after_is_late",
        f"{WINDOWS}::test_a_window_that_slides_keeps_panes_and_closes_as_a_whole",
        f"{WINDOWS}::test_windows_of_the_transactions_own_time_have_no_late_tuples",
        "tests/unit/topology/streams/windows/test_counting.py::test_they_are_what_lists_are",
        "tests/windows/test_worlds.py::test_a_world_of_each_kind",
    ),
    "R15": (f"{WINDOWS}::test_a_window_that_slides_keeps_panes_and_closes_as_a_whole",),
    "R16": (
        "tests/windows/test_worlds.py::test_a_world_of_each_kind",
        "tests/windows/test_worlds.py::test_windows_in_tables_are_the_same",
    ),
    "R17": (f"{COMPILING}::test_a_shape_is_compiled_as_was_read_by_eye",),
    "R18": (
        f"{STREAMS}::test_aggregates_of_a_batch",
        f"{STREAMS}::test_tuples_that_come_first",
        "tests/unit/topology/streams/test_operations.py::test_an_operation_means_what_it_means_in_plain_python",
    ),
    "R19": (
        f"{STREAMS}::test_reducers_and_aggregators_see_the_tuples_in_order",
        f"{STREAMS}::test_reducers_in_a_state",
    ),
    "R20": (
        f"{COMPILING}::test_a_hundred_builds_are_equal",
        f"{COMPILING}::test_an_inserted_step_moves_no_table_to_another_committer",
    ),
    "R21": (
        f"{STATES}/fencing.py::a_fence_over_what_was_not_read",
        f"{STATES}/replays.py::a_transaction_that_does_not_follow",
        f"{STATES}/fencing.py::who_was_taken_over_reads_nothing",
    ),
    "R22": (f"{STATES}/transactions.py::reads_and_puts",),
    "R23": (
        f"{STATES}/replays.py::a_transactional_state_skips_the_transaction",
        f"{STATES}/replays.py::a_transactional_state_skips_what_was_empty",
    ),
    "R24": (
        f"{STATES}/replays.py::replayed_as_another_batch",
        "tests/unit/state/rows/test_stored_value.py::test_a_replay_starts_again_from_the_previous_value",
        "tests/contract/test_opaque_rule.py",
    ),
    "R25": ("tests/unit/runtime/tasks/test_map_state.py::test_keys_of_one_instant_are_one_key",),
    "R26": (f"{STATES}/transactions.py::one_row_for_a_key",),
    "R27": (
        "tests/unit/runtime/tasks/test_map_state.py::test_a_committer_deletes",
        "tests/contract/test_deletes.py::test_readers_do_not_see_tombstones",
    ),
    "R28": (f"{LOOKING}::test_a_mistake_is_reported_at_its_line",),
    "R29": (
        f"{STATES}/values.py::keys_of_all_types_together",
        "tests/contract/test_opaque_rule.py",
    ),
    "R30": (
        f"{STATES}/histories.py::histories_of_merges",
        "tests/contract/test_key_values.py::test_many_histories",
    ),
    "R31": ("tests/integration/delta/test_staged.py::test_a_replay_replaces_exactly_what_the_dead_attempt_had",),
    "R32": (
        "tests/unit/topology/streams/test_operations_repartitions.py::test_a_table_is_continued_with_another_number_of_tasks",
    ),
    "R33": (
        "tests/unit/operations/queries/test_client.py::test_while_transactions_commit_each_answer_is_of_one_that_was_committed",
        "tests/unit/operations/queries/test_serving.py::test_each_part_of_the_address_is_a_value",
    ),
}
MEANT: dict[str, tuple[str, ...]] = {
    "tests/unit/topology/streams/test_operations.py": (
        *("each", "map", "flat_map", "filter", "with_columns", "project", "rename", "arrow", "peek", "apply"),
    ),
    REPARTITIONS: (
        *("shuffle", "partition_by", "broadcast", "partition", "identity_partition", "local_or_shuffle"),
        *("parallelism_hint", "merge", "partition_aggregate"),
    ),
    STREAMS: (
        *("aggregate", "group_by", "min_by", "max_by", "first_n", "persistent_aggregate"),
        *("persist", "partition_persist", "new_values"),
    ),
    LOOKING: ("state_query",),
    WINDOWS: ("window", "closed", "late"),
    "tests/unit/topology/streams/pipelines/test_joins.py": ("join",),
    "tests/integration/sinks/test_kafka_sink.py": ("sink_to",),
}
"""Where operations are compared with what they mean in plain Python; `global_` and `batch_global` are named there."""
MEANT_BY_NAME = {"global_", "batch_global"}
CHANGES_NOTHING = {"named"}
"""What only shows in ids."""
ARGUED = {"R4"}
"""What no test can show: it is not here, and the page says why."""


def test_every_row_is_shown_or_argued() -> None:
    """And none is both."""
    assert sorted([*SHOWN_BY, *ARGUED]) == sorted(TRIDENT)
    assert not any(answers()[row].startswith("built") for row in ARGUED)


@pytest.mark.parametrize("row", SHOWN_BY)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    """By file and name."""
    for named in SHOWN_BY[row]:
        file, _, name = named.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        tests = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        assert name in tests if name else any(each.startswith("test_") for each in tests), named


def operations() -> set[str]:
    """What streams and states offer."""
    found = {
        name
        for kind in (Stream, GroupedStream, TridentState, WindowedStream, WindowedState)
        for name, what in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    return {*found, "join"}


def test_every_operation_is_compared_with_plain_python() -> None:
    """A new one needs its meaning."""
    meant = {name for names in MEANT.values() for name in names}
    assert meant | MEANT_BY_NAME | CHANGES_NOTHING == operations()
    for file, names in MEANT.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert [name for name in names if f".{name}(" not in text] == [], file
    repartitions = (ROOT / REPARTITIONS).read_text(encoding="utf-8")
    assert all(f'"{name}"' in repartitions for name in MEANT_BY_NAME)


def test_twenty_shapes_are_compiled_to_text() -> None:
    """At least; and a hundred builds of each are equal (`test_compiling.py`)."""
    assert len(SHAPES) >= 20
