"""Which staged files nobody commits any more, so that they can be deleted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from transactional.model.attempt import AttemptId


class NotedOrphans:
    """Files are noted in one pass and due in a later one, a retention apart, if they are dead both times.

    Dead is what is no part of the table's newest version, and is of an attempt that is not later than the one that
    wrote it: no such attempt commits any more. So the files have to be listed before that version is loaded.
    """

    def __init__(self) -> None:
        self._noted_at_s = dict[str, float]()

    def due(
        self,
        listed: Mapping[str, AttemptId],
        live: Collection[str],
        written: AttemptId,
        *,
        now_s: float,
        retention_s: float,
    ) -> list[str]:
        """The files to delete now, of those that are there with their attempts. Notes the others that are dead."""
        dead = {path for path, attempt_id in listed.items() if attempt_id <= written and path not in live}
        due = [path for path in dead if self._noted_at_s.get(path, now_s) + retention_s < now_s]
        self._noted_at_s = {path: self._noted_at_s.get(path, now_s) for path in dead.difference(due)}
        return due
