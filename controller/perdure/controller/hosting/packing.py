"""What is sent to a controller's machine: the Perdure that runs here, as a wheel, and how it is to be configured."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_CARETAKER = Path(__file__).with_name("caretaker.py")
_PLACEHOLDER = "SETTINGS: dict[str, str] = {}"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # so that the same code makes the same bytes
_LEFT_OUT = {"__pycache__"}


def first_program(settings: dict[str, str]) -> str:
    """The caretaker, told what it needs: home, host, port, secret, certificate and key (PEM)."""
    source = _CARETAKER.read_text()
    assert _PLACEHOLDER in source
    return source.replace(_PLACEHOLDER, f"SETTINGS = {json.dumps(settings)}")


def pack(config: dict[str, Any], *, dependencies: str, extras: str = "controller") -> bytes:
    """A pack for `caretaker.install`. `dependencies`: "index" (pip fetches them) or "host" (the machine has them)."""
    name, content = wheel()
    told = {"wheel": name, "dependencies": dependencies, "extras": extras}
    files = {
        "pack.json": json.dumps(told).encode(),
        "config.yaml": yaml.safe_dump(config, sort_keys=False).encode(),
        name: content,
    }
    return _zip(files, zipfile.ZIP_STORED)


def wheel() -> tuple[str, bytes]:
    """This Perdure, whether it was installed from a wheel or is somebody's checkout: (file name, content)."""
    distribution = importlib.metadata.distribution("perdure")
    files = dict(_sources())
    info = f"perdure-{distribution.version}.dist-info"
    files[f"{info}/METADATA"] = (distribution.read_text("METADATA") or "").encode()
    files[f"{info}/entry_points.txt"] = (distribution.read_text("entry_points.txt") or "").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: perdure\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    return f"perdure-{distribution.version}-py3-none-any.whl", _zip(files, zipfile.ZIP_DEFLATED)


def _sources() -> Iterator[tuple[str, bytes]]:
    """Every file of the packages, by its name in a wheel; of two by one name, what is imported here."""
    import perdure

    seen: set[str] = set()
    for root in map(Path, perdure.__path__):
        for path in sorted(root.rglob("*")):
            name = f"perdure/{path.relative_to(root)}"
            if path.is_file() and not _LEFT_OUT & set(path.parts) and name not in seen:
                seen.add(name)
                yield name, path.read_bytes()


def _zip(files: dict[str, bytes], how: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", how) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.external_attr = 0o644 << 16
            entry.compress_type = how
            archive.writestr(entry, content)
    return made.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
