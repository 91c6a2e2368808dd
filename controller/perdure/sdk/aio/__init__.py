"""`perdure.sdk` for asyncio: the same functions with the same arguments, awaited.

    from perdure.sdk import aio as perdure

    job_id, _ = await perdure.launch(perdure.Task.from_yaml("train.yaml"), cluster_name="dev")
    await perdure.tail_logs("dev", job_id)

As in SkyPilot's `sdk_async`, a call returns its result, and no request; `get` and `stream_and_get` return what they are
given, so that a program that awaits both works. A task that is cancelled no longer waits, and changes nothing else:
what the controller has accepted goes on. `aio.jobs` has the functions of managed jobs.
"""

from __future__ import annotations

from typing import IO, Any

from perdure.sdk import clusters
from perdure.sdk.aio import jobs as jobs
from perdure.sdk.aio.threads import finished, in_thread
from perdure.sdk.dag import Dag as Dag
from perdure.sdk.resources import Resources as Resources
from perdure.sdk.storage import Storage as Storage
from perdure.sdk.storage import StorageMode as StorageMode
from perdure.sdk.task import Task as Task

launch = finished(clusters.launch)
exec = finished(clusters.exec)  # the name in SkyPilot
status = finished(clusters.status)
queue = finished(clusters.queue)
job_status = finished(clusters.job_status)
cancel = finished(clusters.cancel)
start = finished(clusters.start)
stop = finished(clusters.stop)
down = finished(clusters.down)
autostop = finished(clusters.autostop)
tail_logs = in_thread(clusters.tail_logs)
download_logs = in_thread(clusters.download_logs)


async def get(request: Any) -> Any:
    """The result of a request of `perdure.sdk`; anything else is returned as it is."""
    return await in_thread(clusters.get)(request)


async def stream_and_get(request: Any, output_stream: IO[str] | None = None) -> Any:
    """As `get`; writes what happens meanwhile to `output_stream` (stdout by default)."""
    return await in_thread(clusters.stream_and_get)(request, output_stream)
