"""The agent's process: puts the parts together, and ends when the node's work is done for good.

Exit code 0 means that there is nothing left to do on this machine, which may be powered off. With any other the agent
is to be started again, and goes on where it was.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from perdure.agent import VERSION
from perdure.agent.channel import Backoff, Channel
from perdure.agent.checkpoints import CheckpointTeller
from perdure.agent.config import Config
from perdure.agent.controller import Controller, Refused, Unreachable, WrittenOff
from perdure.agent.fetch import Fetcher
from perdure.agent.library import library_dir
from perdure.agent.logs import LogShipper
from perdure.agent.notices import Notice, NoticeWatch
from perdure.agent.orders import Orders, StopNow
from perdure.agent.places import Places
from perdure.agent.report import Outbox, Report
from perdure.agent.spec import NodeSpec
from perdure.agent.state import StateFile, read_json, write_json
from perdure.agent.storage import NodeStorage
from perdure.agent.supervisor import LeftAlone, Supervisor
from perdure.agent.work import Work

NO_SPEC_POWER_OFF_S = 600.0
LAST_LOGS_S = 2.0
SENT_BEFORE_END_S = 0.25
UNMOUNT_S = 10.0
SHUTDOWN = "shutdown"


def main() -> int:
    """Run the agent of the machine described by the environment; the exit code."""
    try:
        config = Config.from_environ(os.environ)
    except ValueError as error:
        log(str(error))
        return 2
    os.environ.pop("PERDURE_TOKEN")  # no child of the agent's inherits it
    places = Places(config.state_dir)
    places.make()
    lock = os.open(str(places.lock), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        log(f"another agent runs on {config.state_dir}")
        return 1
    return Agent(config, places).run()


def log(line: str) -> None:
    """The agent's own log. Never holds a secret."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    print(f"{stamp} {line}", file=sys.stderr, flush=True)


class Agent:
    """One node's agent."""

    def __init__(self, config: Config, places: Places) -> None:
        self._config = config
        self._places = places
        self._controller = Controller(config.endpoint, config.token, config.rank, fingerprint=config.fingerprint)

    def run(self) -> int:
        log(f"agent {VERSION}, rank {self._config.rank}, Python {sys.version.split()[0]}")
        try:
            spec = self._spec()
        except WrittenOff:
            log("the controller does not know this node: ending")
            return 0
        return self._serve(spec) if spec is not None else self._power_off()

    def _spec(self) -> NodeSpec | None:
        """The node spec: kept from before, or the controller's. None when no controller answered for too long."""
        kept = read_json(self._places.spec)
        if kept is not None:
            return NodeSpec.parse(kept)
        backoff, since, said = Backoff(), time.monotonic(), ""
        while time.monotonic() - since < NO_SPEC_POWER_OFF_S:
            try:
                raw = self._controller.spec()
                spec = NodeSpec.parse(raw)
                self._keep(raw)
                return spec
            except (Unreachable, Refused) as error:
                if str(error) != said:
                    log(f"no node spec yet: {error}")
                said = str(error)
                time.sleep(backoff.wait_s())
        return None

    def _keep(self, spec: dict[str, Any]) -> None:
        try:
            write_json(self._places.spec, spec)
        except OSError as error:
            log(f"this node's disk does not take the node spec, which a restarted agent has to ask for again: {error}")

    def _serve(self, spec: NodeSpec) -> int:
        """Live the node's life with the controller looking on."""
        file = StateFile(self._places.state, log=log)
        orders = Orders(file, log=log)
        shipper = LogShipper(self._places.log)
        teller = CheckpointTeller(self._places.checkpoints)
        fetcher = Fetcher(
            self._controller, self._places.root, artifacts_dir=self._config.artifacts_dir, environ=os.environ, log=log
        )
        storage = NodeStorage(spec, fetcher, self._places, keeps_copies=file.state.prepared)
        outbox = Outbox(
            Report(ip=self._config.node_ip or self._controller.own_address()),
            notices=[file.state.notice] if file.state.notice else [],
            sizes=lambda: {"logs": {"size": shipper.size()}, "checkpoints": {"seq": teller.newest_seq()}},
        )
        supervisor = Supervisor(
            spec,
            orders,
            storage,
            outbox,
            places=self._places,
            library=library_dir(self._places.root),
            before_end=lambda: (teller.wait_told(SENT_BEFORE_END_S), shipper.wait_sent(SENT_BEFORE_END_S)),
            log=log,
            is_left_alone=lambda: time.monotonic() - channel.last_contact >= spec.power_off_after_s,
        )
        supervisor.recall()
        channel = Channel(
            self._controller, outbox, (shipper, teller), direct=orders.direct, written_off=orders.write_off, log=log
        )
        for thread in (channel, shipper, teller):
            thread.start()
        self._watch_notices(spec, orders, outbox)
        self._heed_shutdown(spec, orders, outbox)
        try:
            supervisor.live()
            if not self._is_going_down(orders):
                self._rest(spec, orders, channel)
                return self._power_off()
            log("ended, and the machine goes down")
        except LeftAlone:
            supervisor.kill()
            storage.unmount()
            return self._power_off()
        except (StopNow, WrittenOff):
            log("told to stop: ending everything")
        supervisor.kill()
        Work("unmount", storage.unmount).wait(UNMOUNT_S)
        shipper.wait_acked(LAST_LOGS_S)
        channel.close(timeout_s=1.0)
        return 0

    def _watch_notices(self, spec: NodeSpec, orders: Orders, outbox: Outbox) -> None:
        if spec.notice is None:
            return

        def found(notice: Notice) -> None:
            if orders.give_notice(notice):
                outbox.give_notice(notice.to_json())

        endpoint = self._config.metadata_endpoint or spec.notice.endpoint
        try:
            NoticeWatch(spec.notice, endpoint, found=found, log=log).start()
        except ValueError as error:
            log(f"interruption notices are not watched: {error}")

    def _heed_shutdown(self, spec: NodeSpec, orders: Orders, outbox: Outbox) -> None:
        """SIGTERM is how a machine says that it goes down: a notice like a cloud's, with a drain's time.

        Machines whose init ends every process at once must be told to leave the workload to the agent.
        """

        def heed() -> None:
            notice = Notice(deadline=time.time() + spec.drain_s, action=SHUTDOWN, source="SIGTERM")
            log("SIGTERM: the machine goes down")
            if orders.shut_down(notice):
                outbox.give_notice(notice.to_json())

        def handle(*_: object) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            threading.Thread(target=heed, name="shutdown", daemon=True).start()  # a handler may not take locks

        signal.signal(signal.SIGTERM, handle)

    @staticmethod
    def _is_going_down(orders: Orders) -> bool:
        notice = orders.state.notice
        return notice is not None and bool(notice["action"] == SHUTDOWN)

    def _rest(self, spec: NodeSpec, orders: Orders, channel: Channel) -> None:
        """After the end, until no controller has answered for long. Raises StopNow."""
        ended_at = time.monotonic()
        orders.until(
            lambda: time.monotonic() - max(ended_at, channel.last_contact) >= spec.power_off_after_s, drainable=False
        )

    def _power_off(self) -> int:
        log("nobody asks for this node any more: powering off")
        done = subprocess.run(["sh", "-c", self._config.power_off], stdin=subprocess.DEVNULL, check=False)
        return 0 if done.returncode == 0 else 1
