"""`perdure ssh`, and `perdure ssh-proxy`, which ssh runs to reach a node."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import Failure, warn

EXIT_LOST = 255


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  perdure ssh job-7                     a shell on the first machine of job 7
  perdure jobs ssh 7                    the same
  perdure ssh job-7-worker1 nvidia-smi
  perdure ssh dev                       a shell on the first machine of the cluster dev
  perdure ssh job-7 -N -L 8888:localhost:8888
  scp job-7:sky_workdir/out.csv .       works once `perdure ssh` was used here
  rsync -a job-7:sky_workdir/ copy/
""",
)
@click.argument("name", shell_complete=suggestions.nodes)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[SSH ARGUMENTS]...")
def ssh(name: str, arguments: tuple[str, ...]) -> None:
    """Open an ssh session on a machine of a job or a cluster, with this computer's ssh.

    The machine needs no open port: the connection goes through the controller. The name stays the same when the job
    moves to another machine. On first use, a line that includes Perdure's hosts is added to ~/.ssh/config.
    """
    from perdure.cli.client import connect
    from perdure.cli.clusters.names import update_ssh_hosts
    from perdure.cli.jobs.enter.names import host_of
    from perdure.cli.jobs.enter.ssh_files import SshFolder, SshUnavailable
    from perdure.cli.jobs.enter.stream import find_node
    from perdure.sdk.connection.endpoint import home_dir

    program = shutil.which("ssh")
    if program is None:
        raise Failure("ssh is not installed here\n  install OpenSSH's client, or use `perdure jobs exec -t`")
    client = connect()
    node = find_node(client, name)
    folder = SshFolder(home_dir())
    folder.public_key()
    update_ssh_hosts(client)
    folder.remember(host_of(node["name"]), node["host_key"], node["user"])
    config = Path.home() / ".ssh" / "config"
    try:
        if folder.include_in(config):
            click.echo(f"Added a line to {config}: ssh, scp and rsync now know your machines.", err=True)
    except SshUnavailable as error:
        warn(f"{error}\n  ssh and scp find the machines only with -F {folder.config}")
        config = folder.config
    # ssh looks in the folder of the account, whatever HOME says.
    is_default = config == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ssh" / "config"
    option = [] if is_default else ["-F", str(config)]
    os.execv(program, ["ssh", *option, node["name"], *arguments])  # noqa: S606 - no shell is needed


@click.command(
    "ssh-proxy",
    epilog="""\b
Examples:
  ssh -o ProxyCommand='perdure ssh-proxy %n' job-7
""",
)
@click.argument("name")
@click.argument("user", required=False)
def ssh_proxy(name: str, user: str | None) -> None:
    """Connect standard input and output with the ssh server of a machine: for ssh's ProxyCommand."""
    from perdure.agent.link.websocket import Disconnected
    from perdure.cli.client import connect
    from perdure.cli.jobs.enter import terminal
    from perdure.cli.jobs.enter.names import host_of
    from perdure.cli.jobs.enter.ssh_files import SshFolder
    from perdure.cli.jobs.enter.stream import lost, open_stream
    from perdure.sdk.connection.client import ConnectionLost
    from perdure.sdk.connection.endpoint import home_dir

    client = connect()
    folder = SshFolder(home_dir())
    stream = open_stream(client, name, "ssh", public_key=folder.public_key())
    login, opened = str(stream.opened["user"]), stream.opened
    # Before the first byte: ssh reads the known hosts when the server has introduced itself.
    folder.remember(host_of(stream.name), str(opened["host_key"]), login)
    if user not in (None, login):
        warn(f"the user of {stream.name} is {login}, not {user}; if you are refused, try again, or use {login}@{name}")
    try:
        code = terminal.connect_streams(
            stream, lambda data: terminal.write_fully(terminal.STDOUT, data), clean=client.clean
        )
    except BrokenPipeError:
        code = 0  # ssh has ended
    except (Disconnected, ConnectionLost) as error:
        raise Failure(str(lost(client, error)), EXIT_LOST) from error
    raise SystemExit(code)
