"""Where `import perdure.checkpoint` finds its package on this node: the agent's zipapp contains it."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import perdure.agent
from perdure.agent.workload.tools.templates import FOLDER


def library_dir(state_dir: Path) -> Path:
    """A folder that holds the package `perdure`: extracted once from the zipapp, or the folder of the sources."""
    loader = perdure.agent.__spec__.loader if perdure.agent.__spec__ else None
    archive = getattr(loader, "archive", None)  # zipimport's loader has it: the path of the zipapp
    if archive is None:
        return Path(perdure.agent.__path__[0]).resolve().parent.parent
    digest = hashlib.sha256(Path(archive).read_bytes()).hexdigest()
    library = state_dir / "lib" / digest[:16]
    if not library.exists():
        temporary = library.with_name(library.name + ".new")
        shutil.rmtree(temporary, ignore_errors=True)
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(temporary, [name for name in packed.namelist() if name.startswith("perdure/")])
        for tool in (temporary / FOLDER).rglob("*"):  # a zip file is extracted without modes
            tool.chmod(0o755)
        os.replace(temporary, library)
    return library
