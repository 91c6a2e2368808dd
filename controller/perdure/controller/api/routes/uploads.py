"""Routes for uploads of users: tar.gz files, named by their sha256."""

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

from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.auth import Runner
from perdure.controller.api.schemas import Responses, error_responses
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.access import owners
from perdure.controller.store.blobs import TEMP_PREFIX
from perdure.controller.submit.errors import RequestRejected

router = APIRouter(prefix="/api/v1/uploads", tags=["uploads"], responses=error_responses(400, 401, 503))

_DIGEST = re.compile(r"[0-9a-f]{64}")
Digest = Annotated[str, InPath(description="a sha256 in lower-case hexadecimal", pattern=f"^{_DIGEST.pattern}$")]


_HAVE: Responses = {200: {"description": "The upload is stored"}}
_MISSING: Responses = {404: {"description": "The upload is not stored"}}
_TAR_GZ = {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}


@router.head("/{digest}", response_class=Response, responses=_HAVE | _MISSING)
def has_upload(caller: Runner, digest: Digest) -> Response:
    """200 if the caller has stored the upload, which also renews it; 404 if it has to be sent."""
    return Response(status_code=200 if _touch(caller, validate_digest(digest)) else 404)


@router.put(
    "/{digest}",
    status_code=201,
    response_class=Response,
    responses=_HAVE | error_responses(413),
    openapi_extra={"requestBody": {"required": True, "content": _TAR_GZ}},
)
async def upload(caller: Runner, digest: Digest, request: Request) -> Response:
    """Store the body if its digest is correct. It is written to a temporary file and renamed, so that no partial upload
    is ever visible. Somebody else's upload has to be sent, too: who knows only the digest does not get the file."""
    context = caller.context
    if await run_in_threadpool(_touch, caller, validate_digest(digest)):
        return Response(status_code=200)
    max_bytes = context.settings.max_upload_bytes
    if is_longer(request.headers.get("content-length", "0"), max_bytes):
        raise _too_large(max_bytes)
    handle, temporary = tempfile.mkstemp(dir=context.blobs.folder, prefix=TEMP_PREFIX)
    try:
        sha, size = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as file:
            async for block in request.stream():
                size += len(block)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                sha.update(block)
                await run_in_threadpool(file.write, block)
            file.flush()
            os.fsync(file.fileno())
        if sha.hexdigest() != digest:
            raise RequestRejected("the uploaded bytes do not match the digest", where="digest", fix="send it again")
        failpoint("upload.storing")
        await run_in_threadpool(context.blobs.put, digest, Path(temporary))
        await run_in_threadpool(_touch, caller, digest, is_new=True)
    finally:
        Path(temporary).unlink(missing_ok=True)
    failpoint("upload.stored")
    return Response(status_code=201)


def _touch(caller: Caller, digest: str, *, is_new: bool = False) -> bool:
    """Renew an upload. False if it is not stored, or if a named user has not sent it; `is_new`: it was just sent."""
    context = caller.context
    if is_new and caller.token_id:
        with context.database.begin() as conn:
            owners.add_upload(conn, digest, caller.name)
    if caller.changes is not None:
        with context.database.connect() as conn:
            if not owners.owned_uploads(conn, [digest], caller.changes):
                return False
    return context.blobs.touch(digest, context.clock.now())


def is_longer(content_length: str, max_bytes: int) -> bool:
    """Whether the header promises more than `max_bytes`. It may have any number of digits, and leading zeros."""
    digits = content_length.lstrip("0") or "0"
    return len(digits) > len(str(max_bytes)) or int(digits) > max_bytes


def validate_digest(digest: str) -> str:
    """Return `digest`. Raises RequestRejected if it is not a sha256, so that no name leads out of the folder."""
    if not _DIGEST.fullmatch(digest):
        raise RequestRejected("not a sha256 in lower-case hexadecimal", where="digest")
    return digest


def _too_large(max_bytes: int) -> RequestRejected:
    return RequestRejected(
        f"the upload is larger than {max_bytes / 2**30:g} GiB",
        fix="exclude files that are not needed (.skyignore), or raise uploads.max_gib in the controller's config.yaml",
        status=413,
    )
