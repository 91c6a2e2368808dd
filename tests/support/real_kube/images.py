"""Images of this computer's own files, as archives that containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

PAUSE, BUSYBOX, PYTHON = "perdure.test/pause:1", "perdure.test/busybox:1", "perdure.test/python:1"
_TOOLS = ("sh", "cat", "echo", "env", "id", "sleep", "test", "rm", "mkdir", "ls", "touch", "cp", "true", "dd", "head")
_PYTHON_LIBRARY = Path("/usr/lib/python3.11")
_LEFT_OUT = ("dist-packages", "__pycache__", "test", "tests", "idlelib", "turtledemo", "tkinter", "config-")
_LIBRARY = re.compile(r"(/\S+\.so\S*)")


def write_images(folder: Path) -> list[Path]:
    """The archives of all three images."""
    root = folder / "root"
    _add_busybox(root)
    archives = [
        _archive(folder / "pause.tar", PAUSE, root, ["/bin/sleep", "1000000000"]),
        _archive(folder / "busybox.tar", BUSYBOX, root, ["/bin/sh"]),
    ]
    _add_python(root)
    archives.append(_archive(folder / "python.tar", PYTHON, root, ["/bin/sh"]))
    shutil.rmtree(root)
    return archives


def _add_busybox(root: Path) -> None:
    for name in ("bin", "usr/bin", "usr/lib", "etc", "proc", "sys", "dev", "var/lib", "root", "home"):
        (root / name).mkdir(parents=True)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)
    shutil.copy(str(shutil.which("busybox")), root / "bin/busybox")
    for tool in _TOOLS:
        (root / "bin" / tool).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


def _add_python(root: Path) -> None:
    """Python and bash of the distribution, with what they link to."""
    programs = [Path("/usr/bin/python3.11"), Path("/bin/bash")]
    shutil.copytree(
        _PYTHON_LIBRARY,
        root / "usr/lib/python3.11",
        ignore=lambda _folder, names: [one for one in names if one.startswith(_LEFT_OUT)],
        symlinks=False,
        ignore_dangling_symlinks=True,
    )
    for program in programs:
        shutil.copy(program.resolve(), root / "usr/bin" / program.name)
    (root / "usr/bin/python3").symlink_to("python3.11")
    (root / "bin/bash").symlink_to("/usr/bin/bash")
    for library in _libraries([*programs, *_PYTHON_LIBRARY.glob("lib-dynload/*.so")]):
        target = root / library.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library.resolve(), target)


def _libraries(files: list[Path]) -> set[Path]:
    listed = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    return {Path(found) for found in _LIBRARY.findall(listed) if Path(found).exists() and found not in map(str, files)}


def _archive(path: Path, name: str, root: Path, command: list[str]) -> Path:
    """An image with one layer, in the format of `docker save`."""
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(root, arcname=".", filter=_owned_by_root)
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        for member, content in (("config.json", config), ("manifest.json", manifest)):
            data = json.dumps(content).encode()
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        tar.add(layer, arcname="layer.tar")
    layer.unlink()
    return path


def _owned_by_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info
