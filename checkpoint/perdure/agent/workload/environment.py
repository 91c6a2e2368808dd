"""The workload's environment: the machine's variables, the task's, and those of this node."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from perdure.agent.node_spec import NodeSpec
from perdure.agent.paths import NodePaths
from perdure.agent.state_file import Directive

RUN_DIR = "PERDURE_RUN_DIR"
TOOLS_DIR = "PERDURE_TOOLS"
WORKDIR = "sky_workdir"
# What a service manager and the shells of a boot leave to the agent. It is about them, not about the workload: with
# JOURNAL_STREAM, for example, loggers write the journal's format.
BOOT_VARIABLES = frozenset(
    {
        "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "SYSTEMD_NSS_DYNAMIC_BYPASS", "MAINPID", "MANAGERPID",
        "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID",
        "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "TERM", "_",
    }
)  # fmt: skip
# The environment of a machine belongs to its job: pip and uv need not protect it from the job. Copies, because a clone
# of a file loses its mode on some file systems.
_TOOL_SETTINGS = {
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
    "UV_LINK_MODE": "copy",
    "CONDA_ALWAYS_YES": "1",  # nobody answers its questions
}
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def home_dir(environ: Mapping[str, str]) -> Path:
    """The node's home folder, also where the boot script has set no HOME."""
    return Path(environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)


def workdir_path(environ: Mapping[str, str]) -> Path:
    """Where `setup` and `run` begin: `~/sky_workdir`, unless the node of a cluster has chosen another folder."""
    chosen = environ.get("PERDURE_WORKDIR")
    return Path(chosen) if chosen else home_dir(environ) / WORKDIR


def node_path(path: str, environ: Mapping[str, str]) -> Path:
    """A path of the task on this node: `~` is the node's home, a relative path is below the workdir."""
    home = home_dir(environ)
    if path == "~" or path.startswith("~/"):
        return home / path[2:]
    return workdir_path(environ) / path


def workload_env(
    stage: str, spec: NodeSpec, directive: Directive, *, environ: Mapping[str, str], paths: NodePaths, library: Path
) -> dict[str, str]:
    """The whole environment of `stage` ("setup" or "run"), without the agent's settings and, above all, its token."""
    env = {
        name: value for name, value in environ.items() if not name.startswith("PERDURE_") and name not in BOOT_VARIABLES
    }
    env.setdefault("PATH", DEFAULT_PATH)
    env["HOME"] = str(home_dir(environ))
    env["PYTHONUNBUFFERED"] = "1"
    env.update(_TOOL_SETTINGS)
    env.update(spec.env)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(library), env.get("PYTHONPATH")]))
    env.update(_skypilot_variables(stage, spec, directive))
    env[RUN_DIR] = str(paths.run_dir)
    env[TOOLS_DIR] = str(paths.tools)
    env["PERDURE_GENERATION"] = str(spec.generation)
    env["PERDURE_NODE_RANK"] = str(spec.rank)
    return env


def _skypilot_variables(stage: str, spec: NodeSpec, directive: Directive) -> dict[str, str]:
    """SkyPilot's variables; `setup` has different names for them."""
    prefix = "SKYPILOT_SETUP_" if stage == "setup" else "SKYPILOT_"
    values = {
        prefix + "NODE_RANK": str(spec.rank),
        prefix + "NODE_IPS": "\n".join(directive.node_ips),
        prefix + "NUM_GPUS_PER_NODE": str(spec.gpus_per_node),
        "SKYPILOT_NUM_NODES": str(spec.num_nodes),
    }
    if stage == "run":  # the job of a cluster has a number of its own there
        values["SKYPILOT_INTERNAL_JOB_ID"] = spec.env.get("SKYPILOT_INTERNAL_JOB_ID", str(spec.job_id))
    return values
