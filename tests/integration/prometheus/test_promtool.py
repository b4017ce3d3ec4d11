"""The files of deploy/ for Prometheus and Grafana, and the answer of /metrics, as Prometheus' own tool sees them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from tests.unit.drivers import World
from transactional.operations.telemetry.metrics import Metrics

pytestmark = pytest.mark.promtool

ROOT = Path(__file__).parents[3]
RULES, DASHBOARD = ROOT / "deploy/prometheus-rules.yml", ROOT / "deploy/grafana-dashboard.json"
PAGE = ROOT / "docs/howto/operate.md"
ALERTS = ROOT / "tests/integration/prometheus/alerts.yml"


def promtool(*arguments: str, given: str | None = None) -> str:
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def expressions(node: Any) -> list[str]:
    """Every expression of a dashboard, with Grafana's variables filled in."""
    if isinstance(node, list):
        return [found for each in node for found in expressions(each)]
    if not isinstance(node, dict):
        return []
    own = [node["expr"]] if isinstance(node.get("expr"), str) else []
    return own + [found for each in node.values() for found in expressions(each)]


def served() -> str:
    world = World()
    topology = world.topology()
    metrics = Metrics(topology.id)
    world.run(topology, observers=[metrics])
    return generate_latest(metrics.registry).decode()


def named(text: str) -> set[str]:
    """Metrics that a text names, without what Prometheus adds to a histogram's name."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\btransactional_\w+", text)}


def test_the_answer_is_as_prometheus_wants_it() -> None:
    assert promtool("check", "metrics", given=served()) == ""


def test_every_alert_is_right_and_fires_when_it_should() -> None:
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(ALERTS))


def test_every_expression_of_the_dashboard_is_right(tmp_path: Path) -> None:
    found = expressions(json.loads(DASHBOARD.read_text("utf-8")))
    assert len(found) >= 14
    rules = [
        {"record": f"panel:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$topology", ".*")}
        for number, text in enumerate(found)
    ]
    file = tmp_path / "dashboard.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    promtool("check", "rules", str(file))


def test_what_files_and_pages_name_is_served_and_what_is_served_is_on_the_page() -> None:
    there = {line.split()[2] for line in served().splitlines() if line.startswith("# TYPE")}
    there = {name for name in there if not name.endswith("_created")}
    assert named(RULES.read_text("utf-8")) <= there
    assert named(" ".join(expressions(json.loads(DASHBOARD.read_text("utf-8"))))) <= there
    page = PAGE.read_text("utf-8")
    assert set(re.findall(r"^\| `(transactional_\w+)` ", page, re.MULTILINE)) == there
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text("utf-8")))
    assert set(re.findall(r"^\| `(Transactional\w+)` ", page, re.MULTILINE)) == alerts
