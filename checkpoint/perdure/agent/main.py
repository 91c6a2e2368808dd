"""The agent's process: builds the parts, and ends when this node has no more work.

Exit code 0 means that nothing is left to do on this machine, which may be powered off. After any other exit code the
agent must be started again; it then continues where it stopped.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from perdure.agent import VERSION
from perdure.agent.config import Config
from perdure.agent.lifecycle import revision
from perdure.agent.lifecycle.background_task import BackgroundTask
from perdure.agent.lifecycle.desired_state import DesiredState, ReviseNow, StopNow
from perdure.agent.lifecycle.home_rescue import HomeRescue
from perdure.agent.lifecycle.notice_intake import NoticeIntake
from perdure.agent.lifecycle.saved_home import SavedHome
from perdure.agent.lifecycle.slot_host import SlotHost
from perdure.agent.lifecycle.supervisor import Orphaned, Supervisor
from perdure.agent.link import boot_token
from perdure.agent.link.channel import Backoff, Channel, Stream
from perdure.agent.link.checkpoint_stream import CheckpointStream
from perdure.agent.link.client import ControllerClient, ControllerRejected, TokenRevoked, Unreachable
from perdure.agent.link.log_stream import LogStream
from perdure.agent.link.outbox import Outbox, Report
from perdure.agent.node_spec import NodeSpec
from perdure.agent.notices.notice import SHUTDOWN
from perdure.agent.notices.poller import NoticePoller
from perdure.agent.paths import NodePaths
from perdure.agent.state_file import StateFile, read_json, write_json
from perdure.agent.storage.fetch import Fetcher
from perdure.agent.storage.node_storage import NodeStorage
from perdure.agent.tunnel.dialer import MAX_REPLICA_SESSIONS, MAX_SESSIONS, StreamDialer
from perdure.agent.tunnel.session import SessionContext
from perdure.agent.usage.usage_stream import UsageStream
from perdure.agent.workload import machine
from perdure.agent.workload.container.task_container import TaskContainer
from perdure.agent.workload.environment import WORKDIR, home_dir, node_path, workload_env
from perdure.agent.workload.library import library_dir
from perdure.agent.workload.readiness import ReadinessStream
from perdure.agent.workload.tools.templates import link_templates
from perdure.agent.workload.tools.toolbox import Toolbox, uv_artifact

NO_SPEC_TIMEOUT_S = 600.0
LOG_ACK_TIMEOUT_S = 2.0
STREAM_SEND_TIMEOUT_S = 0.25
UNMOUNT_TIMEOUT_S = 10.0
SESSIONS_END_TIMEOUT_S = 1.0
GRACE_MARGIN_S = 2.0
AUTOSTOP_POWER_OFF_S = 30.0  # after its end, a node that stopped itself waits so long for a controller


def main() -> int:
    """Run the agent that the environment describes; returns the exit code."""
    try:
        config = Config.from_environ(os.environ)
    except ValueError as error:
        log(str(error))
        return 2
    os.environ.pop("PERDURE_TOKEN")  # no child process may inherit it
    paths = NodePaths(config.state_dir)
    paths.create()
    lock = os.open(str(paths.lock), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        log(f"another agent is running on {config.state_dir}")
        return 1
    paths.begin_attempt(config.token)
    return Agent(config, paths).run()


def log(line: str) -> None:
    """Write to the agent's own log. A line must never contain a secret."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    print(f"{stamp} {line}", file=sys.stderr, flush=True)


class Agent:
    """One node's agent."""

    def __init__(self, config: Config, paths: NodePaths) -> None:
        self._config = config
        self._paths = paths
        self._client = self._make_client(config.token)

    def _make_client(self, token: str) -> ControllerClient:
        return ControllerClient(self._config.endpoint, token, self._config.rank, fingerprint=self._config.fingerprint)

    def run(self) -> int:
        log(f"agent {VERSION}, rank {self._config.rank}, Python {sys.version.split()[0]}")
        try:
            spec = self._spec() if self._has_token() else None
        except ControllerRejected as error:
            log(f"this machine cannot get the token of its attempt: {error}")
            return self._power_off()
        except TokenRevoked:
            log("the controller rejected this node's token: ending")
            return 0
        return self._serve(spec) if spec is not None else self._power_off()

    def _has_token(self) -> bool:
        """Trade the boot token if there is one. Raises TokenRevoked, ControllerRejected."""
        if not boot_token.is_boot_token(self._config.token):
            return True
        token = boot_token.trade(self._client, self._paths.token, timeout_s=NO_SPEC_TIMEOUT_S, log=log)
        if token is not None:
            self._client = self._make_client(token)
        return token is not None

    def _spec(self) -> NodeSpec | None:
        """The stored node spec, or else the controller's. None if no answer comes in time. Raises TokenRevoked."""
        stored = read_json(self._paths.spec)
        if stored is not None:
            return NodeSpec.parse(stored)
        backoff, since, last_error = Backoff(), time.monotonic(), ""
        while time.monotonic() - since < NO_SPEC_TIMEOUT_S:
            try:
                raw = self._client.spec()
                spec = NodeSpec.parse(raw)
                self._store_spec(raw)
                return spec
            except (Unreachable, ControllerRejected) as error:
                if str(error) != last_error:
                    log(f"no node spec yet: {error}")
                last_error = str(error)
                time.sleep(backoff.wait_s())
        return None

    def _store_spec(self, spec: dict[str, Any]) -> None:
        try:
            write_json(self._paths.spec, spec)
        except OSError as error:
            log(f"storing the node spec failed; a restarted agent will have to fetch it again: {error}")

    def _serve(self, spec: NodeSpec) -> int:
        """Run the node from here to its end, connected to the controller."""
        file = StateFile(self._paths.state, log=log)
        desired = DesiredState(file, log=log, revision=spec.revision)
        logs = LogStream(self._paths.log)
        fetcher = Fetcher(
            self._client,
            self._paths.root,
            artifacts_dir=self._config.artifacts_dir,
            environ=os.environ,
            log=log,
            records=self._paths.uploads if spec.probe is not None else None,
        )
        storage = NodeStorage(
            spec,
            fetcher,
            self._paths,
            copies_exist=file.state.prepared,
            home=partial(self._saved_home, spec) if spec.is_host else None,
            log=log,
        )
        checkpoints = CheckpointStream(self._paths.checkpoints, on_growth=storage.checkpoints_changed)
        usage = UsageStream(self._paths.root, log, progress=self._paths.progress)
        outbox = Outbox(
            Report(ip=self._node_ip()),
            notices=[file.state.notice] if file.state.notice else [],
            sizes=lambda: {
                "logs": {"size": logs.size()},
                "checkpoints": {"seq": checkpoints.newest_seq()},
                "serves": spec.probe is not None,
                "revision": spec.revision,
            },
        )
        host = self._slot_host(spec, outbox)
        readiness = self._readiness(spec, desired, outbox)
        own_streams: list[Stream] = [] if host is None else [host]
        if readiness is not None:
            own_streams += [readiness, revision.RevisionStream(desired)]
        library = library_dir(self._paths.root)
        container = self._container(spec)
        dialer = StreamDialer(
            self._client,
            self._session_context(spec, desired, library, container),
            log=log,
            max_sessions=MAX_SESSIONS if spec.probe is None else MAX_REPLICA_SESSIONS,
        )
        channel = Channel(
            self._client,
            outbox,
            (logs, checkpoints, dialer, usage, *own_streams),
            on_directive=desired.apply_directive,
            on_revoked=desired.revoke,
            log=log,
        )
        supervisor = Supervisor(
            spec,
            desired,
            storage,
            outbox,
            paths=self._paths,
            library=library,
            end_sessions=dialer.end_all,
            open_streams=dialer.num_service_streams,
            before_end=partial(_send_all, usage, checkpoints, logs),
            log=log,
            is_orphaned=lambda: time.monotonic() - channel.last_contact >= spec.power_off_after_s,
            slot_host=host,
            container=container,
            on_failed_trial=readiness.report_end if readiness is not None else lambda _why: None,
        )
        if note := os.environ.get("PERDURE_NOTE"):  # of whoever started this machine
            self._paths.append_to_job_log(note)
        if host is not None:
            host.last_contact, host.used_at = lambda: channel.last_contact, dialer.used_at
            host.restore()
        supervisor.restore()
        for thread in (channel, logs, checkpoints, usage):
            thread.start()
        handler = NoticeIntake(desired, outbox, drain_s=self._shutdown_s(spec), log=log)
        self._poll_notices(spec, handler)
        self._handle_sigterm(handler)
        machine.prepare(os.environ, log=log)
        self._toolbox(spec, fetcher, library).install()
        link_templates(home_dir(os.environ), library, log=log)
        try:
            supervisor.run()
            if not self._is_going_down(desired):
                self._wait_idle(_silence_limit_s(spec, desired.state.ended), desired, channel)
                return self._power_off()
            log("ended; the machine is going down")
        except ReviseNow:
            return self._revise(spec, desired, library, logs)
        except Orphaned:
            supervisor.kill()
            storage.unmount()
            return self._power_off()
        except (StopNow, TokenRevoked):
            log("stopping: ending everything")
        dialer.end_all("the job has ended on this machine")
        supervisor.kill()
        dialer.wait_ended(SESSIONS_END_TIMEOUT_S)
        if spec.awaits_rescue:
            HomeRescue(self._client, storage, log).wait()
        BackgroundTask("unmount", storage.unmount).wait(UNMOUNT_TIMEOUT_S)
        logs.wait_acked(LOG_ACK_TIMEOUT_S)
        channel.close(timeout_s=1.0)
        return 0

    def _saved_home(self, spec: NodeSpec, rclone: Callable[[], Path | None]) -> SavedHome:
        mounts = [node_path(str(mount["path"]), os.environ) for mount in spec.mounts]
        return SavedHome(
            home_dir(os.environ),
            spec.rank,
            baseline=self._paths.root / "home.json",
            excluded=[self._paths.root, *mounts],
            rclone=rclone,
        )

    def _readiness(self, spec: NodeSpec, desired: DesiredState, outbox: Outbox) -> ReadinessStream | None:
        """The probes of a replica, which have begun."""
        if spec.probe is None:
            return None
        readiness = ReadinessStream(
            spec.probe,
            self._node_ip(),
            lambda: outbox.report.phase == "running",
            log,
            revision=spec.revision,
            on_ready=lambda: desired.update(ready_revision=spec.revision),
        )
        readiness.start()
        return readiness

    def _revise(self, spec: NodeSpec, desired: DesiredState, library: Path, logs: LogStream) -> int:
        """Begin anew with another revision of the node spec. Nothing of this one runs any more."""
        self._paths.append_to_job_log("another version of the service begins on this machine")
        logs.wait_acked(LOG_ACK_TIMEOUT_S)
        try:
            revision.forget(spec, self._paths, desired)
        except OSError as error:
            log(f"what has run here cannot be forgotten: {error}")
            return 3
        return revision.start_again(library, self._config.token, log)

    def _slot_host(self, spec: NodeSpec, outbox: Outbox) -> SlotHost | None:
        if not spec.is_host:
            return None
        return SlotHost(self._paths, outbox, library=library_dir(self._paths.root), environ=os.environ, log=log)

    def _container(self, spec: NodeSpec) -> TaskContainer | None:
        if spec.container is None:
            return None
        return TaskContainer(
            spec.container,
            f"perdure-{spec.job_id}-{spec.task_index}-{spec.generation}-{spec.rank}",
            self._paths.container,
            gpus=spec.gpus_per_node,
            environ=os.environ,
            log=self._paths.append_to_job_log,
        )

    def _toolbox(self, spec: NodeSpec, fetcher: Fetcher, library: Path) -> Toolbox:
        return Toolbox(
            self._paths.tools,
            library,
            fetcher,
            python=spec.python,
            in_container=spec.container is not None,
            uv=spec.artifacts.get(uv_artifact()),
            environ=os.environ,
            log=log,
        )

    def _session_context(
        self, spec: NodeSpec, desired: DesiredState, library: Path, container: TaskContainer | None
    ) -> SessionContext:
        """What sessions of users share with `run`."""

        def env() -> dict[str, str]:
            directive = desired.state.directive
            environ = container.environ() if container is not None and container.is_running else os.environ
            return workload_env("run", spec, directive, environ=environ, paths=self._paths, library=library)

        def enter() -> list[str]:
            return container.enter() if container is not None and container.is_running else []

        home = home_dir(os.environ)
        folders = (str(home / WORKDIR), str(home), "/")
        return SessionContext(env, folders, library, self._paths.sessions, enter, self._node_ip())

    def _node_ip(self) -> str:
        return self._config.node_ip or self._client.own_address()

    def _shutdown_s(self, spec: NodeSpec) -> float:
        """How long a drain may take after SIGTERM: less than the time until SIGKILL, so that its end is reported."""
        if self._config.grace_s is None:
            return spec.drain_s
        return min(spec.drain_s, max(self._config.grace_s - GRACE_MARGIN_S, self._config.grace_s / 2))

    def _poll_notices(self, spec: NodeSpec, handler: NoticeIntake) -> None:
        if spec.notice is None:
            return
        endpoint = self._config.metadata_endpoint or spec.notice.endpoint
        try:
            NoticePoller(spec.notice, endpoint, on_notice=handler.on_notice, log=log).start()
        except ValueError as error:
            log(f"interruption notices are not polled: {error}")

    @staticmethod
    def _handle_sigterm(handler: NoticeIntake) -> None:
        """Treat SIGTERM as a notice that the machine is going down.

        A machine whose init ends every process at once must be configured to leave the workload to the agent.
        """

        def handle(*_: object) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            handler.on_sigterm()

        signal.signal(signal.SIGTERM, handle)

    @staticmethod
    def _is_going_down(desired: DesiredState) -> bool:
        notice = desired.state.notice
        return notice is not None and notice.action == SHUTDOWN

    def _wait_idle(self, limit_s: float, desired: DesiredState, channel: Channel) -> None:
        """After the end, wait until no controller has answered for so long. Raises StopNow."""
        ended_at = time.monotonic()
        desired.wait_for(lambda: time.monotonic() - max(ended_at, channel.last_contact) >= limit_s, drainable=False)

    def _power_off(self) -> int:
        log("no controller needs this node: powering off")
        done = subprocess.run(["sh", "-c", self._config.power_off], stdin=subprocess.DEVNULL, check=False)
        return 0 if done.returncode == 0 else 1


def _send_all(usage: UsageStream, checkpoints: CheckpointStream, logs: LogStream) -> None:
    """Before a node reports its end: what would be lost with its machine."""
    usage.send_now()
    checkpoints.wait_sent(STREAM_SEND_TIMEOUT_S)
    logs.wait_sent(STREAM_SEND_TIMEOUT_S)


def _silence_limit_s(spec: NodeSpec, ended: dict[str, Any] | None) -> float:
    """For how long a node that has ended waits for a controller before it powers itself off.

    A node of a cluster ends with 0 only by autostop: then it is not needed, and costs money.
    """
    is_autostopped = spec.is_host and ended is not None and ended["exit_code"] == 0 and not ended["interrupted"]
    return min(spec.power_off_after_s, AUTOSTOP_POWER_OFF_S) if is_autostopped else spec.power_off_after_s
