"""Builds the bundle for a controller's machine: this Perdure as a wheel, with the machine's configuration.

Also renders the installer (`installer.py`), the program with which the machine starts.
"""

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

_INSTALLER = Path(__file__).with_name("installer.py")
_PLACEHOLDER = "SETTINGS: dict[str, str] = {}"
_ZIP_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal code gives equal bytes
_EXCLUDED = {"__pycache__"}


def render_installer(settings: dict[str, str]) -> str:
    """The installer's source with its settings: home, host, port, secret, certificate and key (PEM)."""
    source = _INSTALLER.read_text()
    assert _PLACEHOLDER in source
    return source.replace(_PLACEHOLDER, f"SETTINGS = {json.dumps(settings)}")


def build_bundle(config: dict[str, Any], *, dependencies: str, extras: str = "controller") -> bytes:
    """A bundle for `installer.install`, as a zip.

    `dependencies`: "index" (pip downloads them) or "host" (the machine has them).
    """
    name, content = build_wheel()
    manifest = {"wheel": name, "dependencies": dependencies, "extras": extras}
    files = {
        "bundle.json": json.dumps(manifest).encode(),
        "config.yaml": yaml.safe_dump(config, sort_keys=False).encode(),
        name: content,
    }
    return _zip(files, zipfile.ZIP_STORED)


def build_wheel() -> tuple[str, bytes]:
    """This Perdure as a wheel, whether it was installed or is a checkout: (file name, content)."""
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
    """Every file of the packages, as (name in a wheel, content). Of two files with one name, the one imported here."""
    import perdure

    seen: set[str] = set()
    for root in map(Path, perdure.__path__):
        for path in sorted(root.rglob("*")):
            name = f"perdure/{path.relative_to(root)}"
            if path.is_file() and not _EXCLUDED & set(path.parts) and name not in seen:
                seen.add(name)
                yield name, path.read_bytes()


def _zip(files: dict[str, bytes], compression: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _ZIP_TIMESTAMP)
            entry.external_attr = 0o644 << 16
            entry.compress_type = compression
            archive.writestr(entry, content)
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
