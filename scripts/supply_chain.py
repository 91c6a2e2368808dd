"""The locked packages of a controller: their bill of materials, and whether any of them is known to be bad.

    python -m scripts.supply_chain sbom      # build/sbom.cdx.json, in CycloneDX 1.6
    python -m scripts.supply_chain audit     # exit code 1 for a known-bad package

The audit asks the package index that pip is configured with, and nothing else. It says so, loudly, where the index
cannot answer: one that only mirrors files knows no vulnerabilities.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (ROOT / "controller/perdure/controller/hosting/requirements.lock", ROOT / "deploy/docker/build.lock")
SBOM = ROOT / "build/sbom.cdx.json"
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)\s*(?:;\s*(.*?))?\s*\\?$")
_HASH = re.compile(r"^\s+--hash=sha256:([0-9a-f]{64})")
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    marker: str  # of the environments that need it; empty: all
    hashes: tuple[str, ...]  # SHA-256 of each of its files


def locked(path: Path) -> list[Package]:
    """The packages of a lock file. Raises ValueError for a line that is none."""
    packages: list[Package] = []
    for line in path.read_text().splitlines():
        if entry := _ENTRY.match(line):
            packages.append(Package(entry[1], entry[2], entry[3] or "", ()))
        elif digest := _HASH.match(line):
            last = packages[-1]
            packages[-1] = Package(last.name, last.version, last.marker, (*last.hashes, digest[1]))
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"{path}: this is neither a package nor a hash: {line!r}")
    return packages


def bill_of_materials(packages: list[Package], version: str) -> dict[str, Any]:
    """A CycloneDX document. It has no time and no serial number, so that equal locks give equal bytes."""
    components = [
        {
            "type": "library",
            "bom-ref": _purl(package),
            "name": package.name,
            "version": package.version,
            "purl": _purl(package),
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": _purl(package),
                    "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
                }
            ],
        }
        for package in packages
    ]
    root = {"type": "application", "bom-ref": "perdure", "name": "perdure", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": [{"ref": "perdure", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def audit(packages: list[Package], index: str) -> tuple[list[str], list[str]]:
    """(What is bad, what could not be checked.)"""
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda package: _ask(package, index), packages))
    bad, unchecked = [], []
    for package, answer in zip(packages, answers, strict=True):
        name = f"{package.name} {package.version}"
        if isinstance(answer, str):
            unchecked.append(f"{name}: {answer}")
            continue
        if "vulnerabilities" not in answer:
            unchecked.append(f"{name}: the index knows no vulnerabilities")
        for flaw in answer.get("vulnerabilities") or ():
            if not flaw.get("withdrawn"):
                fixed = ", ".join(flaw.get("fixed_in") or ()) or "no version yet"
                bad.append(f"{name}: {flaw.get('id')}: {flaw.get('summary') or flaw.get('details')}; fixed in {fixed}")
        files = answer.get("urls") or ()
        offered = {file.get("digests", {}).get("sha256") for file in files}
        if files and not offered & set(package.hashes):
            bad.append(f"{name}: the index offers none of the locked files")
        if files and all(file.get("yanked") for file in files):
            bad.append(f"{name}: was withdrawn: {files[0].get('yanked_reason') or 'no reason given'}")
    return bad, unchecked


def _ask(package: Package, index: str) -> dict[str, Any] | str:
    """What the index says of a version; or why it says nothing."""
    url = f"{index.rstrip('/').removesuffix('/simple')}/pypi/{package.name}/{package.version}/json"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            answer = json.load(response)
        return answer if isinstance(answer, dict) else "the index did not answer with a mapping"
    except urllib.error.HTTPError as error:
        return f"the index answered {error.code}"
    except (OSError, ValueError) as error:
        return str(error)


def _configured_index() -> str:
    """The index of pip, from its own configuration."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if url := done.stdout.strip():
        return url
    from pip._internal.models.index import PyPI  # its own default

    return str(PyPI.simple_url)


def _purl(package: Package) -> str:
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', package.name).lower()}@{package.version}"


def main(arguments: list[str]) -> int:
    packages = sorted({package for lock in LOCKS for package in locked(lock)}, key=lambda package: package.name)
    if arguments == ["sbom"]:
        import tomllib

        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        SBOM.parent.mkdir(exist_ok=True)
        SBOM.write_text(json.dumps(bill_of_materials(packages, version), indent=1) + "\n")
        print(f"{SBOM.relative_to(ROOT)}: {len(packages)} packages")
        return 0
    if arguments != ["audit"]:
        print(__doc__, file=sys.stderr)
        return 2
    bad, unchecked = audit(packages, _configured_index())
    for line in bad:
        print(f"BAD: {line}")
    if unchecked:
        print(
            f"AUDIT SKIPPED for {len(unchecked)} of {len(packages)} packages; for example {unchecked[0]}",
            file=sys.stderr,
        )
    print(f"audit: {len(packages) - len(unchecked)} packages checked, {len(bad)} findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
