"""What autostop waits for: jobs, sessions of users, traffic of forwarded ports, or nothing."""

from __future__ import annotations

import urllib.request

import pytest

from e2e.enter.conftest import Entered
from perdure.sdk import Resources, clusters
from support.helpers.clusters import Clusters
from support.helpers.ports import unused_port
from support.helpers.timing import scaled

pytestmark = pytest.mark.slow

IDLE_S = 2.0
# It goes on after the command that starts it, which must not end before.
SERVE = """setsid python3 -m http.server --bind 127.0.0.1 {0} >/dev/null 2>&1 &
until (: </dev/tcp/127.0.0.1/{0}) 2>/dev/null; do sleep 0.1; done"""
TINY = Resources(cpus=1)


def until_status(sky: Clusters, name: str, status: str) -> None:
    sky.controller.until(lambda: sky.status(name) == status, f"{name} to be {status}, not {sky.status(name)}")


def set_autostop(sky: Clusters, *words: object) -> None:
    sky.controller.perdure("autostop", *words, "-i", IDLE_S / 60)


def test_sessions_and_traffic__keep_a_cluster_up(sky: Clusters) -> None:
    user, remote, local = Entered(sky.controller, 0), unused_port(), unused_port()
    for name in ("entered", "served", "jobs-only"):
        sky.launch(name, resources=TINY)
    assert user.run("jobs", "exec", "served", "--", SERVE.format(remote)).returncode == 0

    def fetch() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=scaled(10)) as answer:
                return bool(answer.read())
        except OSError:
            return False

    with (
        user.popen("jobs", "exec", "entered", "--", "sleep 600"),
        user.popen("jobs", "exec", "jobs-only", "--", "sleep 600"),
        user.popen("port-forward", "served", f"{local}:{remote}"),
    ):
        sky.controller.until(fetch, "the forwarded port")
        set_autostop(sky, "entered")
        set_autostop(sky, "served")
        fetch()
        set_autostop(sky, "jobs-only", "--wait-for", "jobs")

        def is_stopped_and_others_are_used() -> bool:
            assert fetch(), "the forwarded port has closed"
            return sky.status("jobs-only") == "STOPPED"

        sky.controller.until(is_stopped_and_others_are_used, "the stop of the cluster that waits for jobs alone")
        assert (sky.status("entered"), sky.status("served")) == ("UP", "UP")
        until_status(sky, "served", "STOPPED")  # the port is still forwarded, but no bytes pass
        assert sky.status("entered") == "UP"
    until_status(sky, "entered", "STOPPED")


def test_wait_for_none__stops_a_cluster_whose_job_runs(sky: Clusters) -> None:
    sky.launch("strict", idle_s=600.0, resources=TINY)
    number = sky.exec("strict", "sleep 600", resources=TINY)
    sky.until("strict", number, "RUNNING")
    set_autostop(sky, "strict", "--wait-for", "none")
    assert clusters.clusters(["strict"], client=sky.client)[0]["autostop_wait_for"] == "none"
    until_status(sky, "strict", "STOPPED")
    assert sky.until("strict", number, "PENDING")


def test_wait_for__needs_an_idle_time(sky: Clusters) -> None:
    for words in (("launch", "-c", "none", "--wait-for", "jobs", "-y"), ("start", "none", "--wait-for", "jobs", "-y")):
        done = sky.controller.perdure(*words, check=False)
        assert done.returncode == 2
        assert "--wait-for is an option of autostop" in done.stderr
