"""`perdure.sdk.jobs` for asyncio: the same functions with the same arguments, awaited."""

from __future__ import annotations

from perdure.sdk import jobs
from perdure.sdk.aio.threads import in_thread

launch = in_thread(jobs.launch)
plan = in_thread(jobs.plan)
queue = in_thread(jobs.queue)
get = in_thread(jobs.get)
cancel = in_thread(jobs.cancel)
preempt = in_thread(jobs.preempt)
tail_logs = in_thread(jobs.tail_logs)
download_logs = in_thread(jobs.download_logs)
wait = in_thread(jobs.wait)
