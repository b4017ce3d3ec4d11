"""How many examples a test asks Hypothesis for: fewer under `make check`, whatever a test has set for itself."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100
"""What Hypothesis tries by itself."""


def examples(number: int) -> int:
    """So many in `make test`; under a profile that tries fewer than usual as small a part of them, three at least."""
    return max(3, min(number, number * settings().max_examples // USUAL))
