"""What garbage collection looks through, which it does in the middle of whatever makes garbage."""

from __future__ import annotations

import gc


def keep_what_is_loaded() -> None:
    """Collect garbage once more, then leave what is there out of all later collections. For a process that is set up,
    and does one thing until it ends: to look through all of Spark's and Arrow's modules takes 50 ms and more."""
    gc.collect()
    gc.freeze()
