"""A package index on this computer (PEP 503), with pip and packages that a test makes."""

from __future__ import annotations

import ensurepip
import functools
import http.server
import io
import shutil
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PackageIndex:
    """`url`: of the index, as pip and uv take it. `port`: where it listens on the loopback."""

    url: str
    port: int
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """What makes pip and uv ask this index and no other."""
        settings = {"PIP_INDEX_URL": self.url, "UV_DEFAULT_INDEX": self.url, "PIP_CONFIG_FILE": "/dev/null"}
        return settings | {"PIP_FIND_LINKS": "", "UV_NO_CONFIG": "1"}

    def add(self, name: str, version: str = "1.0") -> None:
        """Offer a package with one module of its name, whose `VERSION` is the version."""
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        files = {
            f"{module}.py": f"VERSION = {version!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
        self._store(name, f"{module}-{version}-py3-none-any.whl", content.getvalue())

    def _store(self, name: str, file: str, content: bytes) -> None:
        page = self.folder / "simple" / name
        page.mkdir(parents=True, exist_ok=True)
        (page / file).write_bytes(content)
        links = "".join(f'<a href="{wheel.name}">{wheel.name}</a>\n' for wheel in sorted(page.glob("*.whl")))
        (page / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")


@contextmanager
def package_index(folder: Path) -> Iterator[PackageIndex]:
    """Serve an index that offers the pip that this Python brings."""
    handler = functools.partial(_Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    index = PackageIndex(f"http://127.0.0.1:{server.server_port}/simple", server.server_port, folder)
    (wheel,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    index._store("pip", wheel.name, wheel.read_bytes())
    for name in ("setuptools", "wheel"):  # uv puts them beside pip for a Python before 3.12
        index.add(name)
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        shutil.rmtree(folder, ignore_errors=True)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
