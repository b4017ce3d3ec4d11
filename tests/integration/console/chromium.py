"""Where Chromium is: Debian's package, or what CHROMIUM names."""

from __future__ import annotations

import os
import shutil


def chromium() -> str:
    """The program. Fails with what to do if there is none."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "there is no chromium on PATH: run tools/ensure.sh chromium, or name the program in CHROMIUM"
    return found
