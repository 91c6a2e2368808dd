"""Routes by which users hand over files: a tar.gz each, named by its sha256."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from holdfast.controller.api.auth import User
from holdfast.controller.submission import Refused

router = APIRouter(prefix="/api/v1/uploads")

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 20 * 2**30


@router.head("/{digest}")
def has(daemon: User, digest: str) -> Response:
    return Response(status_code=200 if file_of(daemon.uploads, digest).exists() else 404)


@router.put("/{digest}")
async def put(daemon: User, digest: str, request: Request) -> Response:
    """Keep the body, if it is what its name says. Written beside and renamed, so half an upload is never seen."""
    path = file_of(daemon.uploads, digest)
    if path.exists():
        return Response(status_code=200)
    handle, temporary = tempfile.mkstemp(dir=daemon.uploads, prefix=".upload-")
    try:
        sha, size = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as file:
            async for block in request.stream():
                size += len(block)
                if size > _MOST_BYTES:
                    raise Refused("the upload is too large", fix=f"at most {_MOST_BYTES >> 30} GiB", status=413)
                sha.update(block)
                await run_in_threadpool(file.write, block)
            file.flush()
            os.fsync(file.fileno())
        if sha.hexdigest() != digest:
            raise Refused("the bytes that came are not those of this digest", where="digest", fix="send it again")
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return Response(status_code=201)


def file_of(folder: Path, digest: str) -> Path:
    """The file of a digest. Refuses what is no sha256, so that no name leads out of `folder`."""
    if not _DIGEST.fullmatch(digest):
        raise Refused("not a sha256 in lower-case hexadecimal", where="digest")
    return folder / digest
