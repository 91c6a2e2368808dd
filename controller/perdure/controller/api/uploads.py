"""Routes by which users hand over files: a tar.gz each, named by its sha256."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool

from perdure.controller.api.auth import User
from perdure.controller.api.schemas import Responses, refusals
from perdure.controller.crashpoints import reach
from perdure.controller.files import ASIDE
from perdure.controller.refusing import Refused

router = APIRouter(prefix="/api/v1/uploads", tags=["uploads"], responses=refusals(400, 401, 503))

_DIGEST = re.compile(r"[0-9a-f]{64}")
Digest = Annotated[str, InPath(description="a sha256 in lower-case hexadecimal", pattern=f"^{_DIGEST.pattern}$")]


_HAVE: Responses = {200: {"description": "The controller has it"}}
_LACKS: Responses = {404: {"description": "The controller lacks it"}}
_TAR_GZ = {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}


@router.head("/{digest}", response_class=Response, responses=_HAVE | _LACKS)
def has(daemon: User, digest: Digest) -> Response:
    """Whether a file need not be sent again."""
    return Response(status_code=200 if daemon.files.renew(checked(digest), daemon.clock.now()) else 404)


@router.put(
    "/{digest}",
    status_code=201,
    response_class=Response,
    responses=_HAVE | refusals(413),
    openapi_extra={"requestBody": {"required": True, "content": _TAR_GZ}},
)
async def put(daemon: User, digest: Digest, request: Request) -> Response:
    """Keep the body, if it is what its name says. Written beside and renamed, so half an upload is never seen."""
    if await run_in_threadpool(daemon.files.renew, checked(digest), daemon.clock.now()):
        return Response(status_code=200)
    most = daemon.settings.most_upload_bytes
    if int(request.headers.get("content-length", "0")) > most:
        raise _too_large(most)
    handle, temporary = tempfile.mkstemp(dir=daemon.files.folder, prefix=ASIDE)
    try:
        sha, size = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as file:
            async for block in request.stream():
                size += len(block)
                if size > most:
                    raise _too_large(most)
                sha.update(block)
                await run_in_threadpool(file.write, block)
            file.flush()
            os.fsync(file.fileno())
        if sha.hexdigest() != digest:
            raise Refused("the bytes that came are not those of this digest", where="digest", fix="send it again")
        reach("upload.keeping")
        await run_in_threadpool(daemon.files.keep, digest, Path(temporary))
        await run_in_threadpool(daemon.files.renew, digest, daemon.clock.now())
    finally:
        Path(temporary).unlink(missing_ok=True)
    reach("upload.kept")
    return Response(status_code=201)


def remove_halves(folder: Path) -> None:
    """Remove what a daemon that was killed left of unfinished uploads."""
    for half in folder.glob(f"{ASIDE}*"):
        half.unlink(missing_ok=True)


def checked(digest: str) -> str:
    """`digest`. Refuses what is no sha256, so that no name leads out of a folder."""
    if not _DIGEST.fullmatch(digest):
        raise Refused("not a sha256 in lower-case hexadecimal", where="digest")
    return digest


def _too_large(most_bytes: int) -> Refused:
    return Refused(
        f"the upload is larger than {most_bytes / 2**30:g} GiB",
        fix="leave out what is not needed (.skyignore), or raise uploads.max_gib in the controller's config.yaml",
        status=413,
    )
