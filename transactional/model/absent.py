"""`ABSENT`: what stands for the value of a key that does not exist."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Absent(Enum):
    """The type of `ABSENT`, which has no other instance."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""There is no value: the key does not exist. None, in contrast, is a value like any other."""
