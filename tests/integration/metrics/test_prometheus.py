"""A real daemon's metrics, read by the reference parsers, by promtool and by a Prometheus server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from support.helpers.controllers import Controller, running_controller
from support.helpers.ports import unused_port
from support.helpers.timing import scaled, wait_until

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
DASHBOARD = ROOT / "deploy/grafana/perdure.json"
GUIDE = ROOT / "docs/guides/metrics.md"
TOKEN = "m" * 40
CONFIG = """
listen: {metrics: {token_file: metrics.token}}
local:
  zones:
    local-a: {region: local, capacity: 4}
"""
# Series that Prometheus itself makes, and parts of histograms.
_NAME = re.compile(r"\b(?:perdure|process)_[a-z_]+\b")


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller on which one job has run, been preempted, and finished."""
    home = tmp_path_factory.mktemp("metrics") / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text(CONFIG)
    (home / "metrics.token").write_text(TOKEN)
    task = home.parent / "task.yaml"
    task.write_text("run: sleep 2\nresources: {use_spot: true, infra: local}\n")
    with running_controller(home) as one:
        one.perdure("jobs", "launch", "-y", task)
        yield one


def scrape(controller: Controller, accept: str = "") -> str:
    request = urllib.request.Request(
        f"{controller.client.endpoint.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}", "Accept": accept}
    )
    with urllib.request.urlopen(request, timeout=scaled(10)) as response:
        return str(response.read().decode())


def exposed(text: str) -> set[str]:
    """The names of all samples that a scrape has, or may have: of each metric, also without a sample."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names


def test_scrape__has_what_the_job_did(controller: Controller) -> None:
    text = scrape(controller)
    assert 'perdure_tasks_ended_total{status="SUCCEEDED",reason="completed"} 1' in text
    assert 'perdure_launches_total{cloud="local",market="spot",outcome="launched"} 1' in text
    assert re.search(r'perdure_cloud_calls_total\{cloud="local",call="launch",outcome="launched"\} 1', text)
    assert "perdure_event_loop_lag_seconds_count 0" not in text
    assert re.search(r'perdure_database_seconds_count\{what="commit"\} [1-9]', text)
    assert "perdure_controller_lease 1" in text


def test_both_formats__are_read_by_the_reference_parsers(controller: Controller) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    plain, opened = scrape(controller), scrape(controller, "application/openmetrics-text; version=1.0.0")
    families = [list(parser.text_string_to_metric_families(plain))]
    families.append(list(openmetrics.text_string_to_metric_families(opened)))
    for read in families:
        assert {family.name for family in read} >= {metric.name for metric in DaemonMetrics().registry.metrics}
    assert sum(len(family.samples) for family in families[0]) == plain.count("\n") - plain.count("\n# ") - 1


def test_promtool__finds_nothing_wrong(controller: Controller) -> None:
    promtool = _program("promtool")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=scrape(controller), capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rules = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert rules.returncode == 0, rules.stdout + rules.stderr


def test_alerts_and_dashboard__name_existing_metrics(controller: Controller) -> None:
    names = exposed(scrape(controller))
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [rule["expr"] for rule in rules] + [t["expr"] for p in panels for t in p.get("targets", ())]
    assert len(queries) > 50
    for query in queries:
        used = set(_NAME.findall(query))
        assert used or query.startswith("up{"), query
        assert used <= names, f"{query}: {used - names}"


def test_guide__lists_every_metric(controller: Controller) -> None:
    listed = set(re.findall(r"^\| `((?:perdure|process)_[a-z_]+)", GUIDE.read_text(), re.MULTILINE))
    assert listed == set(re.findall(r"^# TYPE (\S+) ", scrape(controller), re.MULTILINE))


def test_prometheus__scrapes_and_evaluates_the_rules(controller: Controller, tmp_path: Path) -> None:
    """The configuration of deploy/, with this controller's address and token."""
    prometheus = _program("prometheus")
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [urllib.parse.urlsplit(controller.client.endpoint.url).netloc]}]
    job["authorization"]["credentials_file"] = str(controller.home / "metrics.token")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = unused_port()
    command = [prometheus, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        up = wait_until(lambda: _query(url, 'up{job="perdure"} == 1'), "a scrape", 60)
        assert len(up) == 1
        (ended,) = wait_until(lambda: _query(url, "perdure_tasks_ended_total"), "the metric", 30)
        assert ended["metric"]["status"] == "SUCCEEDED"

        def evaluated() -> list[dict[str, Any]] | None:
            groups = _get(f"{url}/api/v1/rules")["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

        rules = wait_until(evaluated, "the rules", 60)
        assert {rule["health"] for rule in rules} == {"ok"}, rules
        firing = {rule["name"] for rule in rules if rule["state"] != "inactive"}
        assert firing <= {"PerdureHomeDiskFull"}, "nothing is wrong with this controller"
    finally:
        server.terminate()
        server.wait(scaled(30))


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing: see scripts/ensure-prometheus.sh")
    return path


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=scaled(10)) as response:
        return json.loads(response.read())["data"]


def _query(url: str, query: str) -> list[Any] | None:
    try:
        return _get(f"{url}/api/v1/query?query={urllib.parse.quote(query)}")["result"] or None
    except OSError:
        return None
