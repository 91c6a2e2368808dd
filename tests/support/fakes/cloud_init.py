"""Stands for cloud-init and systemd: it processes a controller's user data.

It runs as a program inside the machine. Users, files and commands are real. The disk is a folder of the machine, and
the unit's program runs as its user, with the environment that the machine's role gives it (ROLE).
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess

import yaml


def main() -> None:
    config, role = yaml.safe_load(os.environ.pop("USER_DATA")), json.loads(os.environ.pop("ROLE"))
    for path, content in json.loads(os.environ.pop("IMAGE_FILES")).items():
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with open(path, "w") as opened:
            opened.write(content)
    for user in config["users"]:
        options = ["--home-dir", user["homedir"], "--shell", user["shell"], user["name"]]
        subprocess.run(["useradd", "--system", "--no-create-home", *options], check=True)
    for file in config["write_files"]:
        assert file["encoding"] == "gz+b64"
        os.makedirs(os.path.dirname(file["path"]), exist_ok=True)
        with open(file["path"], "wb") as opened:
            opened.write(gzip.decompress(base64.b64decode(file["content"])))
        os.chmod(file["path"], int(file["permissions"], 8))
        if "owner" in file:
            shutil.chown(file["path"], *file["owner"].split(":"))
    for command in config["runcmd"]:
        if command[0] == "/opt/perdure/mount_state.sh":
            shutil.chown(command[2], "perdure", "perdure")
        elif command[:3] == ["systemctl", "enable", "--now"]:
            start(f"/etc/systemd/system/{command[3]}.service", role)
        else:
            subprocess.run(command, check=True)


def start(unit: str, role: dict[str, str]) -> None:
    with open(unit) as file:
        settings = dict(re.findall(r"^(ExecStart|User|Group|Environment)=(.*)$", file.read(), flags=re.MULTILINE))
    name, _, value = settings["Environment"].partition("=")
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": value, name: value, **role}
    become = ["setpriv", "--reuid", settings["User"], "--regid", settings["Group"], "--clear-groups"]
    subprocess.Popen([*become, *shlex.split(settings["ExecStart"])], env=environ, cwd="/", start_new_session=True)


if __name__ == "__main__":
    main()
