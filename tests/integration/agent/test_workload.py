"""The user's scripts, and what the controller receives from them."""

from __future__ import annotations

import json
import sys
from typing import Any

import psutil
import pytest

from integration.agent.controller import Controller
from integration.agent.node import Node

STUBBORN = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(os.environ["HOME"], "up").touch()
time.sleep(600)
"""


def finish(controller: Controller, node: Node, run: str | None, **spec: Any) -> dict[str, Any]:
    """Run one script to its end; returns the last report."""
    controller.spec.update(run=run, **spec)
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    report: dict[str, Any] = controller.until_phase("ended")
    return report


def test_run__waits_for_its_directive(controller: Controller, node: Node) -> None:
    controller.spec.update(setup="echo set up", run="echo hello; echo bad >&2; exit 3")
    node.start()
    controller.until(lambda: controller.hellos)
    controller.direct("setup")
    controller.until_phase("ready")
    controller.until_log(b"set up\n")
    assert b"hello" not in controller.log
    controller.direct("run")
    report = controller.until_phase("ended")
    assert controller.phases() == ["booted", "mounting", "setup", "ready", "running", "flushing", "ended"]
    assert (report["exit_code"], report["failed_stage"], report["interrupted"]) == (3, "run", False)
    assert report["ip"] == "127.0.0.1"
    assert bytes(controller.log) == b"set up\nhello\nbad\n"


@pytest.mark.parametrize(
    ("script", "exit_code", "output"),
    [
        ("set -e\necho a\nfalse\necho b", 1, b"a\n"),
        ("echo a\nexit 0\necho b", 0, b"a\n"),
        ("exec echo a", 0, b"a\n"),
        ("printf 'no newline'", 0, b"no newline"),
        ("kill -TERM $$", 143, b""),
        ("exec sh -c 'kill -KILL $$'", 137, b""),
        ("printf '\\x00\\xff\\xfe\\n'", 0, b"\x00\xff\xfe\n"),
        (
            "echo one; echo two >&2; echo three; echo four >/dev/stdout; echo five >/dev/stderr",
            0,
            b"one\ntwo\nthree\nfour\nfive\n",
        ),
        (
            "python3 -c 'import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)'",
            0,
            b"True\n",
        ),
        ('read x; echo "got:$x"', 0, b"got:\n"),
        (None, 0, b""),
    ],
)
def test_run__reports_the_scripts_exit_code(
    controller: Controller, node: Node, script: str | None, exit_code: int, output: bytes
) -> None:
    report = finish(controller, node, script)
    assert (report["exit_code"], report["failed_stage"]) == (exit_code, "run" if exit_code else None)
    controller.until(lambda: len(controller.log) >= len(output))
    assert bytes(controller.log) == output


def test_environment__has_the_nodes_variables(controller: Controller, node: Node) -> None:
    show = "python3 -c 'import os, json; print(json.dumps([os.getcwd(), dict(os.environ)]))'"
    finish(controller, node, show, setup=show, env={"K": "V", "PYTHONPATH": "/mine"}, num_nodes=1, gpus_per_node=8)
    controller.until(lambda: controller.log.count(b"\n") == 2)
    (_, setup), (cwd, run) = (json.loads(line) for line in controller.log.splitlines())
    assert cwd == str(node.home / "sky_workdir")
    for env in (setup, run):
        assert env["K"] == "V"
        assert env["SKYPILOT_NUM_NODES"] == "1"
        assert env["PYTHONUNBUFFERED"] == "1"
        assert env["PERDURE_RUN_DIR"] == str(node.run_dir)
        assert (env["PERDURE_GENERATION"], env["PERDURE_NODE_RANK"]) == ("2", "0")
        assert env["PYTHONPATH"].endswith(":/mine")
        assert "t0ken" not in json.dumps(env)
    assert setup["SKYPILOT_SETUP_NODE_RANK"] == run["SKYPILOT_NODE_RANK"] == "0"
    assert setup["SKYPILOT_SETUP_NODE_IPS"] == run["SKYPILOT_NODE_IPS"] == "10.0.0.1"
    assert setup["SKYPILOT_SETUP_NUM_GPUS_PER_NODE"] == run["SKYPILOT_NUM_GPUS_PER_NODE"] == "8"
    assert run["SKYPILOT_INTERNAL_JOB_ID"] == "7"


def test_environment__lets_any_python_import_the_library(controller: Controller, node: Node) -> None:
    report = finish(
        controller, node, f"cd / && {sys.executable} -c 'import perdure.checkpoint as c; print(c.__name__)'"
    )
    assert report["exit_code"] == 0
    controller.until_log(b"perdure.checkpoint\n")


def test_bashrc__is_sourced(controller: Controller, node: Node) -> None:
    (node.home / ".bashrc").write_text(
        "set -e; cd /; export FROM_RC=yes; greet() { echo greetings; }; echo noise; false\n"
    )
    report = finish(controller, node, 'greet; echo "$FROM_RC"; pwd; false; echo on')
    assert report["exit_code"] == 0
    controller.until_log(b"on\n")
    assert bytes(controller.log) == f"greetings\nyes\n{node.home}/sky_workdir\non\n".encode()


@pytest.mark.parametrize("rc", ["exit 7", "exec true", "set -u; echo $NO_SUCH_THING"])
def test_bashrc__that_exits_is_skipped(controller: Controller, node: Node, rc: str) -> None:
    (node.home / ".bashrc").write_text(rc + "\n")
    report = finish(controller, node, "echo ran")
    assert report["exit_code"] == 0
    controller.until_log(b"ran\n")


def test_background_processes__of_run_end_with_it(controller: Controller, node: Node) -> None:
    (node.home / "stubborn.py").write_text(STUBBORN)
    report = finish(
        controller,
        node,
        "sleep 600 & nohup sleep 600 & (setsid sleep 600 &); env -i setsid sleep 603 & "
        "setsid python3 ~/stubborn.py & until [ -e ~/up ]; do sleep 0.01; done; echo done",
    )
    assert report["exit_code"] == 0
    assert node.workload() == []
    assert ["sleep", "603"] not in [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]


def test_background_processes__of_setup_serve_run(controller: Controller, node: Node) -> None:
    serve = "(setsid sh -c 'while :; do date > ~/tick; sleep 0.02; done' &)"
    report = finish(
        controller, node, "rm -f ~/tick; until [ -e ~/tick ]; do sleep 0.01; done; echo served", setup=serve
    )
    assert report["exit_code"] == 0
    controller.until_log(b"served\n")
    assert node.workload() == []


def test_setup__failure_ends_the_node(controller: Controller, node: Node) -> None:
    report = finish(controller, node, "echo never", setup="echo trying; exit 9")
    assert (report["exit_code"], report["failed_stage"], report["message"]) == (9, "setup", "setup exited with code 9")
    controller.until_log(b"trying\n")
    assert b"never" not in controller.log


def test_log_line__reaches_the_controller_in_50_ms(controller: Controller, node: Node) -> None:
    script = "import time\nfor i in range(20):\n    print(f'{time.time():.6f}'); time.sleep(0.05)\n"
    finish(controller, node, f'python3 -c "{script}"')
    controller.until(lambda: controller.log.count(b"\n") == 20)
    delays, seen = [], 0
    for line in controller.log.splitlines(keepends=True):
        seen += len(line)
        delays.append(next(at for at, size in controller.log_arrivals if size >= seen) - float(line))
    # The better quarter: on a busy machine some lines wait for a processor. Frames sent by a timer would all be late.
    assert sorted(delays)[len(delays) // 4] <= 0.05


def test_heartbeat__is_sent_while_idle(controller: Controller, node: Node) -> None:
    controller.heartbeat_interval_s = 0.1
    node.start()
    controller.until(lambda: controller.heartbeats >= 3)


def test_checkpoints__are_sent_until_acknowledged(controller: Controller, node: Node) -> None:
    script = (
        "python3 -c 'from perdure.checkpoint.durability.journal import record\n"
        'for step in 1, 2, 3: record(step, "committed", f"/c/{step}")\'\n'
        "echo noted; sleep 600"
    )
    controller.spec.update(run=script)
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    controller.until(lambda: len(controller.checkpoints) == 3)
    assert [(c["seq"], c["step"], c["state"], c["path"]) for c in controller.checkpoints] == [
        (step, step, "committed", f"/c/{step}") for step in (1, 2, 3)
    ]
    controller.ack_checkpoint(2)
    controller.checkpoints.clear()
    controller.drop_connections()
    controller.until(lambda: controller.checkpoints)
    assert [c["seq"] for c in controller.checkpoints] == [3]


ORDINARY = """
import os, resource
open(os.environ["HOME"] + "/made", "w").close()
mode = os.stat(os.environ["HOME"] + "/made").st_mode & 0o777
kinds = (resource.RLIMIT_MEMLOCK, resource.RLIMIT_STACK)
print(oct(mode), [resource.getrlimit(kind)[0] == resource.getrlimit(kind)[1] for kind in kinds])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(soft >= min(hard, 1 << 20), open("/proc/self/oom_score_adj").read().strip())
"""


@pytest.mark.parametrize("stage", ["setup", "run"])
def test_stage__has_an_ordinary_umask_and_high_limits(controller: Controller, node: Node, stage: str) -> None:
    """The agent has neither: its files hold secrets, and it was started with a daemon's limits."""
    node.python = ["sh", "-c", 'umask 077; ulimit -Sn 512; ulimit -Ss 4096; exec "$0" "$@"', *node.python]
    script = f"python3 - <<'END'{ORDINARY}END"
    finish(controller, node, script if stage == "run" else "true", setup=script if stage == "setup" else None)
    controller.until(lambda: controller.log.endswith(b"\n"))
    assert bytes(controller.log).split(b"\n")[:2] == [b"0o644 [True, True]", b"True 0"]


def test_stage__is_killed_before_its_agent_if_memory_is_short(controller: Controller, node: Node) -> None:
    lowered = 'echo -500 >/proc/self/oom_score_adj 2>/dev/null && exec "$0" "$@"; exit 77'
    node.python = ["sh", "-c", lowered, *node.python]
    controller.spec.update(run="cat /proc/self/oom_score_adj")
    controller.directive.update(target="run", node_ips=["10.0.0.1"])
    node.start()
    assert node.agent is not None
    controller.until(lambda: controller.log or node.agent.poll() is not None)  # type: ignore[union-attr]
    if node.agent.poll() == 77:
        pytest.skip("this user cannot lower oom_score_adj here")
    assert bytes(controller.log) == b"0\n"


def test_stage__has_no_variables_of_the_service_manager(controller: Controller, node: Node) -> None:
    node.env |= {"INVOCATION_ID": "1", "JOURNAL_STREAM": "8:1", "SYSTEMD_EXEC_PID": "1", "NOTIFY_SOCKET": "/x"}
    node.env |= {"TERM": "linux", "LANG": "C.UTF-8"}
    finish(controller, node, "env", setup=None)
    controller.until(lambda: b"LANG=" in controller.log)
    names = {line.partition(b"=")[0] for line in bytes(controller.log).splitlines()}
    assert not names & {b"INVOCATION_ID", b"JOURNAL_STREAM", b"SYSTEMD_EXEC_PID", b"NOTIFY_SOCKET"}
    assert b"TERM=linux" not in bytes(controller.log).splitlines()  # bash exports "dumb" or nothing
