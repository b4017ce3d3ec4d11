"""Starts Spark's JVM as PySpark does, without the warning that Java prints of a module that Spark asks for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

WARNING = "WARNING: Using incubator modules"
# A process of its own, so that what the JVM says last still comes; it ends when the JVM has ended. `-I -S`: in 20 ms.
_PASS_ON = f"""
import sys
for line in sys.stdin.buffer:
    if not line.startswith({WARNING.encode()!r}):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process with Spark's settings, unless there is one. What it says goes to stderr.

    Java prints that warning itself, before any option or logger could keep it from doing so.
    """
    if SparkContext._gateway is not None:
        return
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    # In a session of its own: Ctrl-C in a terminal is not for it, as it is not for the JVM.
    command = [sys.executable, "-I", "-S", "-c", _PASS_ON]
    passing_on = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert passing_on.stdin is not None
    with passing_on.stdin as heard:  # afterwards the JVM alone holds that end
        gateway: Any = launch_gateway(conf, {"stderr": heard})  # type: ignore[no-untyped-call]
    gateway.passing_on = passing_on  # it ends with the JVM
    SparkContext._ensure_initialized(gateway=gateway)
