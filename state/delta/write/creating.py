"""Creating the table of a state, by one of several that do so at once.

delta-rs' own creation looks for a table first, and what comes in between it takes for a commit that it may follow: its
metadata, properties and all, then replace those of the table that is there. So it creates in a scratch folder, and the
entry goes to its place, unless there is one.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from state.delta.log.log import LOG_FOLDER, check_links, entry_name, table_exists
from state.delta.tables.storage import can_create_exclusively, create_object
from state.delta.tables.table import DEFAULT_PROPERTIES, DeltaLocation, check_properties, open_storage
from state.delta.write.entry import write_entry
from state.rows.columns import StateColumns
from transactional.model.errors import OperatingError, SchemaMismatch

_FOR_GOOD = re.compile(r"\(os error (1|13|20|30)\)")
"""The errors of a disk whose folder nobody may write to. Its other errors, and those of an object store, may pass."""


def create_table(
    location: DeltaLocation,
    columns: StateColumns,
    properties: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> None:
    """Create the table of a state, unless there is one. Raises `SchemaMismatch` when it can't be created,
    `OperatingError` while its storage does not answer."""
    configuration = {**DEFAULT_PROPERTIES, **properties}
    check_properties(configuration, str(location))
    creation: dict[str, Any] = {
        "schema": columns.table_schema,
        "partition_by": list(partition_by) or None,
        "configuration": configuration,
        "raise_if_key_not_exists": False,
    }
    try:
        _create(location, creation)
    except (DeltaError, OSError) as error:
        check_links(location)
        # Another creator may have been first; then there is a table now.
        if not table_exists(location):
            is_outage = isinstance(error, OSError) and not _is_for_good(error)
            kind = OperatingError if is_outage else SchemaMismatch
            advice = (
                ". Check that this user may make the folder, and write into it" if isinstance(error, OSError) else ""
            )
            raise kind(f"Delta table {location} can't be created: {location.describe_error(error)}{advice}") from None


def _create(location: DeltaLocation, creation: Mapping[str, Any]) -> None:
    entry = f"{LOG_FOLDER}/{entry_name(0)}"
    with TemporaryDirectory() as scratch:
        DeltaTable.create(scratch, **creation)
        actions = [json.loads(line) for line in Path(scratch, entry).read_text("utf-8").splitlines()]
    actions[0]["commitInfo"]["operationParameters"]["location"] = location.uri
    if location.scheme == "file":
        write_first(Path(location.uri, entry), actions)
    elif can_create_exclusively(storage := open_storage(location)):
        with suppress(FileExistsError):
            create_object(storage, entry, "\n".join(map(json.dumps, actions)).encode())
    else:
        options = dict(location.storage_options)
        DeltaTable.create(location.uri, mode="ignore", storage_options=options, **creation)


def write_first(path: Path, actions: Sequence[Mapping[str, Any]]) -> None:
    """Write the first entry of a log on a disk. Raises `FileExistsError` when there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_entry(path, actions, None)


def _is_for_good(error: OSError) -> bool:
    lasting_errors = (errno.EPERM, errno.EACCES, errno.ENOTDIR, errno.EEXIST, errno.EROFS)
    return error.errno in lasting_errors or _FOR_GOOD.search(str(error)) is not None
