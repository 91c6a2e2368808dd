"""Launches with refusals, crashes and concurrency; notices; records of ended machines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from integration.local_cloud.sites import OpenSite, RunElsewhere, Site
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.host import host_process, launcher
from perdure.controller.clouds.local.launch_errors import LocalCloudError
from perdure.controller.runtime.clock import ManualClock, SystemClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason


@pytest.fixture
def site(open_site: OpenSite) -> Site:
    return open_site()


def imds(endpoint: str, path: str) -> str | None:
    """The value as curl on EC2 would get it; None for 404."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    with opener.open(urllib.request.Request(f"{endpoint}/latest/api/token", method="PUT", headers=ttl)) as answer:
        token = answer.read().decode()
    try:
        wanted = urllib.request.Request(f"{endpoint}{path}", headers={"X-aws-ec2-metadata-token": token})
        with opener.open(wanted) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return None


def test_notice__is_visible_in_the_machine_and_followed_by_its_end(site: Site) -> None:
    (instance,) = site.launch("""
import urllib.request
endpoint = os.environ["PERDURE_METADATA_ENDPOINT"]
def ask(method, path, **headers):
    request = urllib.request.Request(endpoint + path, method=method, headers=headers)
    return urllib.request.urlopen(request).read().decode()
token = ask("PUT", "/latest/api/token", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
say("zone", ask("GET", "/latest/meta-data/placement/availability-zone", **{"X-aws-ec2-metadata-token": token}))
while True:
    try:
        say("notice", ask("GET", "/latest/meta-data/spot/instance-action", **{"X-aws-ec2-metadata-token": token}))
        break
    except urllib.error.HTTPError as error: assert error.code == 404
    time.sleep(0.01)
while True: say("alive", time.time()); time.sleep(0.01)
""")
    assert site.received("zone") == instance.zone
    asked_at = SystemClock().now()
    site.cloud.interrupt(instance.region, instance.id, notice_s=1.0)
    notice = json.loads(site.received("notice"))
    deadline = datetime.strptime(notice["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    assert notice["action"] == "terminate"
    assert asked_at + 1.0 <= deadline <= SystemClock().now() + 2.0
    gone = site.until_gone(instance)
    assert gone.gone_reason is Reason.PREEMPTED
    assert gone.ended_at is not None
    assert gone.ended_at >= deadline
    assert deadline - 0.5 <= float(site.received("alive")) <= gone.ended_at, "it lived until its deadline"


def test_metadata__is_per_machine(site: Site) -> None:
    for instance in site.launch("stay()", nodes=2):
        endpoint = site.cloud.metadata_endpoint(instance.id)
        assert endpoint is not None
        data = "/latest/meta-data"
        assert imds(endpoint, f"{data}/instance-id") == instance.id
        assert imds(endpoint, f"{data}/local-ipv4") == instance.ip
        assert imds(endpoint, f"{data}/instance-life-cycle") == "spot"
        assert imds(endpoint, f"{data}/spot/instance-action") is None
        assert imds(endpoint, f"{data}/events/recommendations/rebalance") is None


def test_order__reaches_a_host_that_starts_later(site: Site) -> None:
    (instance,) = site.launch("stay()")
    (site.folder(instance) / "wake").unlink()
    site.cloud.terminate(instance.region, [instance.id])
    assert site.see(instance).state in (InstanceState.ENDING, InstanceState.GONE)
    site.until_gone(instance)


def test_interrupted_launch__is_completed_by_its_token(site: Site, run_elsewhere: RunElsewhere) -> None:
    request = site.request("say('up'); stay()", nodes=2)
    done = run_elsewhere(f"""
import os, pathlib
from perdure.controller.runtime.clock import SystemClock
from perdure.controller.clouds.base.protocol import Bootstrap, LaunchRequest, Owner
from perdure.controller.clouds.local.host import host_process, launcher
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
cloud = LocalCloud(pathlib.Path({str(site.home)!r}), LocalSettings(), SystemClock())
launcher.start_hosts = lambda machines: os._exit(len(machines))
bootstrap = Bootstrap("http://x", "s", {request.bootstrap.artifacts})
cloud.launch(LaunchRequest(Owner("ctl", 1, 0, 1, "t"), cloud.offers()[0], 2, bootstrap, "n"))
""")
    assert done.returncode == 2, done.stderr
    assert not site.cloud.list_owned("ctl"), "nothing runs, so nothing is owned"
    launched = site.cloud.launch(request)
    assert [i.state for i in launched] == [InstanceState.RUNNING] * 2
    site.received("up", 1)


def test_partial_launch__is_completed_or_rolled_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    request = site.request("stay()", nodes=2)
    start = launcher.start_hosts

    def start_one(machines: list[host_process.Prepared]) -> None:
        start(machines[:1])
        os.close(machines[1].lock)
        raise ConnectionError("cut off")

    monkeypatch.setattr(launcher, "start_hosts", start_one)
    with pytest.raises(ConnectionError) as caught:
        site.cloud.launch(request)
    assert site.cloud.classify(caught.value).kind is FaultKind.AMBIGUOUS
    (half,) = site.cloud.list_owned("ctl")
    monkeypatch.undo()
    close(site, request.offer.zone)
    with pytest.raises(LocalCloudError):
        site.cloud.launch(request)
    assert not site.cloud.list_owned("ctl"), "half a launch is no launch"
    (site.home / "local/zones.json").unlink()
    assert len(site.cloud.launch(request)) == 2
    assert half.id in {i.id for i in site.cloud.list_owned("ctl")}


def close(site: Site, zone: str) -> None:
    (site.home / "local/zones.json").write_text(
        json.dumps({zone: {"launch_error": {"code": "InsufficientInstanceCapacity"}}})
    )


def test_failed_machine_setup__leaves_nothing(site: Site) -> None:
    request = site.request("stay()", nodes=2)
    site.cloud.isolation()
    shutil.rmtree(site.home / "local/buckets")
    with pytest.raises(LocalCloudError) as caught:
        site.cloud.launch(request)
    fault = site.cloud.classify(caught.value)
    assert fault.kind is FaultKind.RETRY_LATER
    assert "buckets" in fault.message
    assert not list((site.home / "local/instances").iterdir())
    (site.home / "local/buckets").mkdir()
    assert len(site.cloud.launch(request)) == 2


def test_missing_agent__is_reported(site: Site) -> None:
    request = site.request("stay()")
    bootstrap = replace(request.bootstrap, artifacts={"agent": "0" * 64})
    with pytest.raises(LocalCloudError, match=r"0{64} is missing"):
        site.cloud.launch(replace(request, bootstrap=bootstrap))


def test_concurrent_launches__never_exceed_the_capacity(site: Site) -> None:
    requests = [site.request("stay()", token=f"t{n}") for n in range(6)]
    (site.home / "local/zones.json").write_text(json.dumps({requests[0].offer.zone: {"capacity": 3}}))
    outcomes: list[str] = []

    def buy(request: LaunchRequest) -> None:
        try:
            outcomes.append(str(site.cloud.launch(request)[0].ip))
        except LocalCloudError as refusal:
            outcomes.append(refusal.code)

    threads = [threading.Thread(target=buy, args=[request]) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("InsufficientInstanceCapacity") == 3
    assert len(set(outcomes)) == 4, "three machines, three addresses"
    assert len(site.cloud.list_owned("ctl")) == 3


def test_concurrent_launches__with_one_token_create_one_machine(site: Site) -> None:
    request = site.request("stay()", nodes=2)
    answers: list[frozenset[str]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(frozenset(i.id for i in site.cloud.launch(request))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert len(set(answers)) == 1
    assert len(site.cloud.list_owned("ctl")) == 2
    hosts_and_first_processes = 4
    site.wait_for(lambda: len(site.hosts()) == hosts_and_first_processes)


def test_capacity__may_be_zero_for_one_market(site: Site) -> None:
    request = site.request("stay()")
    error = {"code": "InsufficientInstanceCapacity", "market": "spot", "message": "no spot today"}
    (site.home / "local/zones.json").write_text(json.dumps({request.offer.zone: {"launch_error": error}}))
    with pytest.raises(LocalCloudError, match="no spot today"):
        site.cloud.launch(request)
    on_demand = next(
        o
        for o in site.cloud.offers()
        if o.key._replace(market=Market.SPOT) == request.offer.key and o.market is Market.ON_DEMAND
    )
    assert site.cloud.launch(replace(request, offer=on_demand))


def test_another_daemon__sees_the_same_machines(site: Site) -> None:
    first, second = site.launch("stay()", nodes=2)
    site.terminate(first)
    other = site.reopened()
    assert [i.id for i in other.list_owned("ctl")] == [second.id]
    assert other.describe(first.region, [first.id]) == [site.see(first)]


def test_tombstones__last_a_day(site: Site) -> None:
    (instance,) = site.launch("print('last words', flush=True); say('up'); stay()")
    (living,) = site.launch("stay()", token="t2")
    site.received("up")
    site.terminate(instance)
    site.wait_for(lambda: len(site.hosts()) == 2)
    clock = ManualClock(SystemClock().now())
    cloud = LocalCloud(site.home, site.cloud.settings, clock)
    clock.advance(23 * 3600)
    cloud.list_owned("ctl")
    assert (site.folder(instance) / "agent.log").read_text() == "last words\n"
    clock.advance(2 * 3600)
    assert [i.id for i in cloud.list_owned("ctl")] == [living.id]
    assert not site.folder(instance).exists()
    assert not cloud.describe(instance.region, [instance.id])
    assert site.see(living).state is InstanceState.RUNNING


def test_unreadable_remains__are_skipped(site: Site) -> None:
    (instance,) = site.launch("stay()")
    for name, text in (("local-torn-0", ""), ("local-odd-0", "[]"), ("local-empty-0", None)):
        folder = site.home / "local/instances" / name
        folder.mkdir()
        if text is not None:
            (folder / "state.json").write_text(text)
    (site.home / "local/instances/a-file").write_text("")
    assert [i.id for i in site.cloud.list_owned("ctl")] == [instance.id]
    assert not site.cloud.describe(instance.region, ["local-torn-0", "local-odd-0", "a-file"])


def test_unwritable_home__is_reported(tmp_path: Path, open_site: OpenSite) -> None:
    (tmp_path / "file").write_text("")
    cloud = LocalCloud(tmp_path / "file", open_site().cloud.settings, SystemClock())
    why = cloud.unusable()
    assert why is not None
    assert "PERDURE_HOME" in why


def test_notes__report_simulated_hardware_and_errors(open_site: OpenSite) -> None:
    site = open_site(accelerators={"V100": 1})
    (site.home / "local/zones.json").write_text("{")
    notes = "\n".join(site.cloud.notes())
    assert "V100" in notes
    assert "zones.json" in notes
    assert site.cloud.unusable() is None, "its machines need looking after all the same"
    assert "share this computer's file system" in "\n".join(open_site("processes").cloud.notes())


def test_host_process__imports_few_modules(site: Site) -> None:
    """A host process starts with every launch, so its imports delay each launch."""
    import sys

    code = "import sys, perdure.controller.clouds.local.host.hypervisor; print(*sys.modules)"
    env = {"PYTHONPATH": str(Path(launcher.__file__).parents[5])}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "asyncio",
        "http",
        "http.server",
        "ssl",
        "subprocess",
        "pathlib",
        "dataclasses",
        "logging",
        "email",
    }
    assert not {name for name in loaded if name.startswith("perdure.") and "clouds" not in name} - {
        "perdure.controller"
    }
