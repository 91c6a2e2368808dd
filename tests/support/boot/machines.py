"""Boots a real distribution for each instance of a fake cloud: systemd, cloud-init, and the cloud's very user data.

It takes the place of `support.fakes.instance_processes.Machines`. A machine shares nothing with this computer but its
kernel. Its root file system is an overlay over ROOTFS, which scripts/ensure-boot.sh makes; its network has one way
out, slirp4netns.
"""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from perdure.controller.clouds.local import layout
from perdure.controller.clouds.local.machine.metadata import Metadata
from support.fakes.instance_processes import InstanceProcess
from support.helpers.timing import wait_until

HERE = Path(__file__).parent
ROOTFS = HERE.parents[2] / "build" / "boot" / "rootfs"
HOST = "10.0.2.2"  # this computer's 127.0.0.1, as slirp4netns shows it
SOFT_OFF_S = 30.0  # what clouds give a machine between the power button and the plug

STARTUP_UNIT = """
[Unit]
Description=Stands for google-startup-scripts.service
Wants=network-online.target
After=network-online.target
[Service]
Type=oneshot
ExecStart=/etc/startup-script
KillMode=process
[Install]
WantedBy=multi-user.target
"""


def missing_requirement() -> str | None:
    """Why no machine can be booted here; None if one can."""
    tools = [tool for tool in ("systemd-nspawn", "slirp4netns", "unshare", "nsenter", "ip") if not shutil.which(tool)]
    if tools or os.geteuid() != 0:
        return f"booting a machine needs root and {', '.join(tools) or 'the tools that are here'}"
    if not (ROOTFS / "usr/bin/cloud-init").exists():
        return f"{ROOTFS} is missing: run `make test-boot`, which makes it"
    return None


@dataclass
class Record:
    """The state of a machine, as fake clouds read it."""

    state: dict[str, Any] = field(default_factory=lambda: {"state": layout.RUNNING})

    @property
    def is_gone(self) -> bool:
        return bool(self.state["state"] == layout.ENDED)


class BootedMachine:
    """One machine. `process`: systemd-nspawn, which ends when the machine does."""

    def __init__(self, cloud: str, folder: Path, one: InstanceProcess, ports: list[int]) -> None:
        self._cloud = cloud
        self.record = Record()
        self._folder = folder
        self._one = one
        self._reason = layout.STOPPED
        self._console = folder / "console"
        self._metadata = Metadata(one.metadata)
        self._server = _serve_metadata(self._metadata) if one.metadata_endpoint is None else None
        self._write_root()
        with open(self._console, "wb") as console:
            isolated = ("unshare", "--mount", "--net", "--propagation", "private")
            self.process = subprocess.Popen(
                [*isolated, "sh", str(HERE / "node.sh"), str(folder), str(ROOTFS), one.id],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=subprocess.STDOUT,
            )
        self._helpers = [self._connect(), self._relay(ports)]
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.close()
        threading.Thread(target=self._wait, daemon=True).start()

    @property
    def console(self) -> str:
        return self._console.read_text(errors="replace")

    @property
    def root(self) -> Path:
        """The machine's own files: what differs from ROOTFS."""
        return self._folder / "upper"

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command in the machine."""
        command = ["nsenter", "--target", str(self._init().pid), "--all", *words]
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60).stdout

    def press_power_button(self, reason: str = layout.STOPPED) -> None:
        """Power off as ACPI does. The machine gets SOFT_OFF_S, then the plug is pulled."""
        self._reason = reason
        self.run("systemctl", "--no-block", "poweroff", check=False)
        threading.Timer(SOFT_OFF_S, self.pull_plug, (reason,)).start()

    def pull_plug(self, reason: str) -> None:
        if self.process.poll() is None:
            self._reason = reason
            with suppress(psutil.Error, StopIteration):
                self._init().kill()
            self.process.kill()

    def interrupt(self, notice_s: float | None) -> None:
        if notice_s is not None:
            now = time.time()  # noqa: TID251 - hardware has the real clock
            self._metadata.mark_for_interruption(at=now, deadline=now + notice_s)
        threading.Timer(notice_s or 0.0, self.press_power_button, (layout.PREEMPTED,)).start()

    def close(self) -> None:
        self.pull_plug(layout.TERMINATED)
        self.process.wait()
        for helper in self._helpers:
            helper.terminate()
            helper.wait()
        if self._server:
            self._server.shutdown()
            self._server.server_close()
        # Nothing of the machine is left, also if it outlived systemd-nspawn.
        kill = 'mount -t cgroup2 none "$1" && cd "$1/$2" && echo 1 >cgroup.kill'
        remove = f'{kill} && cd / && sleep 0.2; find "$1/$2" -depth -type d -exec rmdir {{}} +'
        subprocess.run(
            ["unshare", "--mount", "sh", "-c", remove, "sh", str(self._folder / "cgroup"), self._one.id], check=False
        )

    def _init(self) -> psutil.Process:
        """The machine's systemd."""
        return next(iter(psutil.Process(self.process.pid).children()))

    def _wait(self) -> None:
        self.process.wait()
        at = time.time()  # noqa: TID251 - hardware has the real clock
        self.record.state = {"state": layout.ENDED, "reason": self._reason, "ended_at": at}

    def _write_root(self) -> None:
        """What the image's makers and the cloud put on the disk."""
        etc = self.root / "etc"
        etc.mkdir(parents=True)
        hosts = ("127.0.0.1 localhost", f"127.0.1.1 {self._one.id}", "169.254.169.254 metadata.google.internal")
        (etc / "profile.d").mkdir()
        (etc / "profile.d" / "cuda.sh").write_text("export CUDA_HOME=/usr/local/cuda\n")
        (etc / "hosts").write_text("\n".join(hosts) + "\n")
        if self._cloud == "gcp":  # a program of Google's runs the startup script, not cloud-init
            wanted = etc / "systemd/system/multi-user.target.wants"
            wanted.mkdir(parents=True)
            (etc / "systemd/system/startup.service").write_text(STARTUP_UNIT)
            (wanted / "startup.service").symlink_to("../startup.service")
            _write(etc / "startup-script", self._one.user_data, 0o700)
            user_data = "#cloud-config\n"
        else:
            user_data = self._one.user_data
        seed = self.root / "var/lib/cloud/seed/nocloud"
        seed.mkdir(parents=True)
        _write(seed / "user-data", user_data, 0o600)
        (seed / "meta-data").write_text(f"instance-id: {self._one.id}\nlocal-hostname: {self._one.id}\n")

    def _connect(self) -> subprocess.Popen[bytes]:
        ready, write_end = os.pipe()
        namespace = Path(f"/proc/{self.process.pid}/ns/net")
        wait_until(lambda: namespace.readlink() != Path("/proc/self/ns/net").readlink(), "a network namespace", 10)
        process = subprocess.Popen(
            ["slirp4netns", "--configure", f"--ready-fd={write_end}", str(self.process.pid), "tap0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[write_end],
        )
        os.close(write_end)
        os.read(ready, 1)
        os.close(ready)
        return process

    def _relay(self, ports: list[int]) -> subprocess.Popen[bytes]:
        if self._server:
            metadata_port = self._server.server_port
        else:
            metadata_port = int(str(self._one.metadata_endpoint).rpartition(":")[2])
        rules = [f"127.0.0.1:{port}={HOST}:{port}" for port in ports]
        rules.append(f"0.0.0.0:80={HOST}:{metadata_port}")
        inside = ("nsenter", f"--net=/proc/{self.process.pid}/ns/net")
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        process = subprocess.Popen(
            [*inside, sys.executable, str(HERE / "relay.py"), *rules],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process


class BootedMachines:
    """The machines of a fake cloud. `ports`: of servers on this computer that machines use, besides the controller."""

    def __init__(self, cloud: str, folder: Path, hidden: Path) -> None:
        self._cloud = cloud
        self._folder = folder
        self.ports: list[int] = []
        self.machines: dict[str, BootedMachine] = {}

    def new_address(self) -> str:
        return "127.0.0.1"

    def start(self, machines: list[InstanceProcess]) -> None:
        for one in machines:
            found = {int(port) for port in re.findall(r"://127\.0\.0\.1:(\d+)", one.user_data)}
            folder = self._folder / one.id
            folder.mkdir(parents=True)
            self.machines[one.id] = BootedMachine(self._cloud, folder, one, sorted(found | set(self.ports)))

    def find(self, id: str) -> Record | None:
        return self.machines[id].record if id in self.machines else None

    def is_booting(self, id: str) -> bool:
        return False

    def terminate(self, id: str) -> None:
        self.machines[id].pull_plug(layout.TERMINATED)

    def interrupt(self, id: str, notice_s: float | None) -> None:
        self.machines[id].interrupt(notice_s)

    def agent_log(self, id: str) -> str:
        return self.machines[id].console

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)


def _serve_metadata(metadata: Metadata) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = metadata.respond(self.command, self.path, headers, time.monotonic())
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = _answer

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
