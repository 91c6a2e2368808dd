"""A machine ends completely, whatever its processes do and whichever of them is killed, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from integration.local_cloud.sites import Mounts, RunElsewhere, Site
from perdure.controller.clouds.base.protocol import Instance, InstanceState
from perdure.recovery.reasons import Reason

# Sleeping processes that escape in every known way, with the marker in their command lines.
RUNAWAYS = """
subprocess.Popen(["sleep", "{marker}1"])
subprocess.Popen(["setsid", "--fork", "sleep", "{marker}2"])
subprocess.Popen(["sh", "-c", "(trap '' TERM HUP INT; nohup setsid sleep {marker}3 >/dev/null 2>&1 &) &"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 32):
            if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD): signal.signal(number, signal.SIG_IGN)
        os.execvp("sleep", ["sleep", "{marker}4"])
    os._exit(0)
away = "import os, time\\nif os.fork() == 0: os.setsid(); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", away, "{marker}5"])
say("up")
stay()
"""


def launch_runaways(site: Site) -> Instance:
    (instance,) = site.launch(RUNAWAYS.format(marker=site.marker))
    site.received("up")
    site.wait_for(lambda: len(site.processes()) >= 5)
    return instance


def test_terminate__kills_the_whole_process_tree(site: Site) -> None:
    instance = launch_runaways(site)
    site.cloud.terminate(instance.region, [instance.id])
    gone = site.until_gone(instance)
    assert site.processes() == [], "gone means gone: nothing may still run"
    assert gone.gone_reason is Reason.MACHINE_STOPPED


def test_interruption__kills_the_whole_process_tree(site: Site) -> None:
    instance = launch_runaways(site)
    site.cloud.interrupt(instance.region, instance.id, notice_s=None)
    gone = site.until_gone(instance)
    assert site.processes() == []
    assert gone.gone_reason is Reason.PREEMPTED


def test_killed_host__ends_its_machine(site: Site) -> None:
    instance = launch_runaways(site)
    os.kill(host_of(site, instance), signal.SIGKILL)
    gone = site.until_gone(instance)
    assert site.processes() == []
    assert gone.gone_reason is Reason.MACHINE_CRASHED
    assert gone.ended_at is not None
    assert gone.launched_at is not None
    assert gone.ended_at >= gone.launched_at
    assert sorted(p.name for p in site.folder(instance).iterdir()) == ["state.json"]


def test_killed_init__is_a_crash(site: Site) -> None:
    instance = launch_runaways(site)
    os.kill(first_process(site, instance), signal.SIGKILL)
    gone = site.until_gone(instance)
    assert site.processes() == []
    assert gone.gone_reason is Reason.MACHINE_CRASHED


def first_process(site: Site, instance: Instance) -> int:
    return int(json.loads((site.folder(instance) / "state.json").read_text())["pid"])


def host_of(site: Site, instance: Instance) -> int:
    first = first_process(site, instance)
    return int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])


def test_ended_machine__leaves_nothing(site: Site, mounts: Mounts) -> None:
    (instance,) = site.launch("(pathlib.Path.home() / 'big').write_bytes(bytes(1 << 20)); say('up'); stay()")
    site.received("up")
    assert mounts() == [], "a machine's mounts are its own"
    folder = site.folder(instance)
    secret = b"the-attempt-token"
    site.terminate(instance)
    site.wait_for(lambda: not site.hosts())
    assert mounts() == []
    assert [p.name for p in folder.iterdir()] == ["state.json"]
    assert secret not in (folder / "state.json").read_bytes()


def test_machine__outlives_its_launcher(site: Site, run_elsewhere: RunElsewhere) -> None:
    request = site.request("say('up', os.getppid()); stay()")
    digest = request.bootstrap.artifacts["agent"]
    done = run_elsewhere(f"""
import os, pathlib
from perdure.controller.runtime.clock import SystemClock
from perdure.controller.clouds.base.protocol import Bootstrap, LaunchRequest, Owner
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
cloud = LocalCloud(pathlib.Path({str(site.home)!r}), LocalSettings(isolation={site.cloud.isolation()!r}), SystemClock())
bootstrap = Bootstrap("http://127.0.0.1:1", "s", {{"agent": {digest!r}}})
(instance,) = cloud.launch(LaunchRequest(Owner("ctl", 1, 0, 1, "t"), cloud.offers()[0], 1, bootstrap, "n"))
print(instance.id, flush=True)
os.kill(os.getpid(), 9)
""")
    assert done.returncode == -signal.SIGKILL, done.stderr
    site.received("up")
    (instance,) = site.cloud.list_owned("ctl")
    assert instance.id == done.stdout.strip()
    assert instance.state is InstanceState.RUNNING
    site.terminate(instance)


def test_agent__is_restarted_when_it_dies(site: Site) -> None:
    (instance,) = site.launch("""
tries = pathlib.Path(os.environ["PERDURE_STATE_DIR"]) / "tries"
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) == 1: os.kill(os.getpid(), signal.SIGKILL)
if len(tries.read_text()) == 2: sys.exit(3)
say("up", tries.read_text())
stay()
""")
    assert site.received("up") == "xxx"
    log = (site.folder(instance) / "agent.log").read_text()
    assert "signal 9" in log
    assert "exit code 3" in log


@pytest.mark.parametrize(
    "end", ["sys.exit(0)", "subprocess.Popen(['sh', '-c', os.environ['PERDURE_POWER_OFF']]); stay()"]
)
def test_machine__can_power_itself_off(site: Site, end: str) -> None:
    (instance,) = site.launch(f"subprocess.Popen(['setsid', 'sleep', '{site.marker}']); {end}")
    gone = site.until_gone(instance)
    assert gone.gone_reason is Reason.MACHINE_STOPPED
    assert site.processes() == []


def test_zombies__are_reaped(site: Site) -> None:
    (instance,) = site.launch("""
for _ in range(50): subprocess.Popen(["sh", "-c", "(exit 0) & exit 0"]).wait()
say("up")
stay()
""")
    site.received("up")
    first = first_process(site, instance)

    def zombies() -> list[str]:
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [pid for pid in children if ") Z " in Path(f"/proc/{pid}/stat").read_text()]

    site.wait_for(lambda: not zombies())


def test_agent_log__keeps_its_end(site: Site) -> None:
    (instance,) = site.launch("""
for number in range(40000): print(f"{number:050d}")
sys.stdout.flush(); say("up"); stay()
""")
    site.received("up")
    log = site.folder(instance) / "agent.log"
    site.wait_for(lambda: log.read_text().endswith(f"{39999:050d}\n"))
    assert log.stat().st_size <= 1024 * 1024


@pytest.mark.fuse
def test_terminate__is_not_delayed_by_a_mounted_bucket(apart: Site) -> None:
    rclone = Path(sys.executable).with_name("rclone")
    if not rclone.exists() or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs rclone and /dev/fuse")
    (instance,) = apart.launch(f"""
os.makedirs("/checkpoint")
subprocess.Popen(["{rclone}", "mount", "/run/perdure/buckets", "/checkpoint", "--vfs-cache-mode", "writes"])
while not os.path.ismount("/checkpoint"): time.sleep(0.02)
subprocess.Popen(["sh", "-c", "exec 3>/checkpoint/messages/open; while echo {apart.marker} >&3; do :; done"])
say("up"); stay()
""")
    apart.received("up")
    apart.terminate(instance)
    assert apart.processes() == []
    assert not os.path.exists("/checkpoint")
