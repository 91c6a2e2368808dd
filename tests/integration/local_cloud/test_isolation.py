"""The isolation between a machine and this computer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.local_cloud.sites import OpenSite, Site
from support.helpers.timing import scaled


def test_absolute_paths__belong_to_the_machine(apart: Site) -> None:
    name = f"perdure-test-{apart.marker}"
    paths = [f"/{name}/x", f"/tmp/{name}", f"/var/tmp/{name}", f"/run/{name}", f"/dev/shm/{name}", f"/home/{name}"]
    apart.launch(f"""
for path in {paths!r}:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write("mine")
home = os.path.expanduser("~/sky_workdir")
os.makedirs(home)
say("up", home); stay()
""")
    assert apart.received("up") == "/home/perdure/sky_workdir"
    assert not [path for path in paths if os.path.exists(path)]
    assert not os.path.exists("/home/perdure")


def test_machines__cannot_see_each_other(apart: Site) -> None:
    apart.launch(
        """
open("/tmp/content", "w").write(rank)
open(f"/tmp/of-{rank}", "w")
open(f"/dev/shm/{rank}", "w")
subprocess.Popen(["sleep", "1000"])
say("wrote")
while len(list(messages.glob("wrote.*"))) < 2: time.sleep(0.01)
say("tmp", [path.name for path in pathlib.Path("/tmp").glob("of-*")])
say("shm", os.listdir("/dev/shm")); say("content", open("/tmp/content").read())
say("pids", len([p for p in os.listdir("/proc") if p.isdigit()]))
say("first", pathlib.Path("/proc/1/cmdline").read_text())
stay()
""",
        nodes=2,
    )
    for rank in (0, 1):
        assert apart.received("content", rank) == str(rank)
        assert apart.received("tmp", rank) == f"['of-{rank}']"
        assert apart.received("shm", rank) == f"['{rank}']"
        assert int(apart.received("pids", rank)) == 3


@pytest.mark.parametrize("kind", ["overlay", "bind"])
def test_controller_home__is_hidden_except_two_folders(kind: str, outside_tmp: Path, open_site: OpenSite) -> None:
    if kind == "overlay" and open_site().cloud.isolation() != "overlay":
        pytest.skip("no overlay on this computer")
    site = open_site(kind, folder=outside_tmp)
    (site.home / "secret.db").write_text("keys")
    (site.home / "local/buckets/b").mkdir()
    site.launch(f"""
say("there", {str(outside_tmp)!r} in map(str, pathlib.Path({str(outside_tmp.parent)!r}).iterdir()))
say("home", os.listdir({str(site.home)!r}))
pathlib.Path("/run/perdure/buckets/b/file").write_text("kept")
try: pathlib.Path(os.environ["PERDURE_ARTIFACTS_DIR"], "evil").write_text("x"); say("artifacts", "written")
except OSError as error: say("artifacts", error.strerror)
say("up"); stay()
""")
    site.received("up")
    assert site.received("there") == "True", "the folder around it is seen, or this test would see nothing"
    assert site.received("home") == "[]"
    assert site.received("artifacts") == "Read-only file system"
    assert (site.home / "local/buckets/b/file").read_text() == "kept"


@pytest.fixture
def outside_tmp() -> Iterator[Path]:
    """A folder that machines can see, unlike this computer's /tmp."""
    with tempfile.TemporaryDirectory(prefix=".perdure-test-", dir=Path.home()) as folder:
        yield Path(folder)


def test_umask__of_a_machine_is_not_the_controllers(site: Site) -> None:
    """The controller keeps its own files to itself; those of a job are as on any machine."""
    before = os.umask(0o077)
    try:
        site.launch("say('umask', oct(os.umask(0))); stay()")
    finally:
        os.umask(before)
    assert site.received("umask") == "0o22"


def test_environment__of_a_machine(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_SECRET_ACCESS_KEY": "s",
        "PERDURE_HOME": "/x",
        "WANDB_API_KEY": "s",
        "SSL_CERT_FILE": "/ca.pem",
        "PYTHONPATH": "/evil",
        "LANG": "C.UTF-8",
    }.items():
        monkeypatch.setenv(name, value)
    (instance,) = site.launch(
        "say('env', json.dumps(dict(os.environ))); say('argv', pathlib.Path('/proc/self/cmdline').read_text()); stay()"
    )
    env = json.loads(site.received("env"))
    assert "the-attempt-token" not in site.received("argv")
    assert not [name for name in env if name.startswith("AWS_S") or "WANDB" in name or name in ("PYTHONPATH",)]
    assert "PERDURE_HOME" not in env
    assert {name: env[name] for name in env if name.startswith("PERDURE_") and "DIR" not in name} == {
        "PERDURE_ENDPOINT": "http://127.0.0.1:1",
        "PERDURE_TOKEN": "the-attempt-token",
        "PERDURE_RANK": "0",
        "PERDURE_NODE_IP": instance.ip,
        "PERDURE_METADATA_ENDPOINT": site.cloud.metadata_endpoint(instance.id),
        "PERDURE_POWER_OFF": env["PERDURE_POWER_OFF"],
        "PERDURE_ONLY_PODMAN": "1",
        "PERDURE_OWN_ENV": "1",
    }
    assert (env["SSL_CERT_FILE"], env["LANG"]) == ("/ca.pem", "C.UTF-8")
    assert not [line for line in site.hosts() if "the-attempt-token" in line]
    for name in ("spec.json", "state.json"):
        assert (site.folder(instance) / name).stat().st_mode & 0o077 == 0


def test_host_name__resolves_to_the_machines_address(apart: Site) -> None:
    first, second = apart.launch(
        """
import socket
name = socket.gethostname()
say("name", name); say("ip", socket.gethostbyname(name)); stay()
""",
        nodes=2,
    )
    assert first.ip != second.ip
    for instance in (first, second):
        assert apart.received("ip", instance.rank) == instance.ip
        assert apart.received("name", instance.rank) == instance.id
        assert str(instance.ip).startswith("127.77.")


def test_system_settings__change_only_inside_the_machine(open_site: OpenSite) -> None:
    site = open_site()
    if site.cloud.isolation() != "overlay":
        pytest.skip("no overlay on this computer")
    name = f"perdure-test-{site.marker}"
    site.launch(
        f"pathlib.Path('/usr/local/bin/{name}').write_text('#!/bin/sh'); os.remove('/etc/passwd'); say('up'); stay()"
    )
    site.received("up")
    assert not os.path.exists(f"/usr/local/bin/{name}")
    assert os.path.exists("/etc/passwd")


def test_unprivileged_user__can_launch_machines() -> None:
    """Runs as nobody with the system's Python, since the virtual environment may be unreadable for nobody."""
    python, setpriv = shutil.which("python3", path="/usr/bin"), shutil.which("setpriv")
    if os.geteuid() != 0 or not python or not setpriv:
        pytest.skip("needs root, setpriv and a system Python")
    roots = Path(__file__).parents[3]
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o777)
        nobody = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-i", "PATH=/usr/bin:/bin"]
        paths = f"PYTHONPATH={roots}/controller:{roots}/recovery:{roots}/checkpoint"
        done = subprocess.run(
            [*nobody, paths, "PYTHONDONTWRITEBYTECODE=1", python, "-c", AS_NOBODY, home],
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(60),
            cwd="/",
        )
    # An older Python, or a checkout in a folder that is closed to other users.
    if any(text in done.stderr for text in ("SyntaxError", "Permission denied", "No module named 'perdure'")):
        pytest.skip(f"the system's Python cannot run this: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    if answer["isolation"] == "processes":
        pytest.skip("user namespaces are closed on this computer")
    assert answer == {"isolation": "bind", "messages": "0 1 ['own']", "outside": False, "left": ["state.json"]}


AS_NOBODY = """
import hashlib, json, os, pathlib, sys, time
from perdure.controller.runtime.clock import SystemClock
from perdure.controller.clouds.base.protocol import Bootstrap, LaunchRequest, Owner
from perdure.controller.clouds.local.cloud import LocalCloud
from perdure.controller.clouds.local.settings import LocalSettings
home = pathlib.Path(sys.argv[1])
cloud = LocalCloud(home, LocalSettings(), SystemClock())
kind = cloud.isolation()
agent = f'''
import os, pathlib, signal
pathlib.Path({str(home)!r}).exists()
if {kind!r} == "bind":
    os.makedirs("/checkpoint/own"); os.makedirs("/var/lib/own")
    os.chmod("/checkpoint", 0o500)
    text = f"{{os.getuid()}} {{os.getppid()}} {{os.listdir('/checkpoint')}}"
    pathlib.Path("/run/perdure/buckets/messages").write_text(text)
signal.pause()
'''
digest = hashlib.sha256(agent.encode()).hexdigest()
(home / "artifacts" / digest).write_text(agent)
bootstrap = Bootstrap("http://x", "s", {"agent": digest})
(instance,) = cloud.launch(LaunchRequest(Owner("c", 1, 0, 1, "t"), cloud.offers()[0], 1, bootstrap, "n"))
messages = home / "local/buckets/messages"
until = time.monotonic() + 20
while kind == "bind" and not (messages.exists() and messages.read_text()) and time.monotonic() < until: pass
outside = os.path.exists("/checkpoint")
cloud.terminate(instance.region, [instance.id])
folder = home / "local/instances" / instance.id
while [p.name for p in folder.iterdir()] != ["state.json"] and time.monotonic() < until: pass
text = messages.read_text() if messages.exists() else ""
print(json.dumps({"isolation": kind, "messages": text, "outside": outside, "left": [p.name for p in folder.iterdir()]}))
"""
