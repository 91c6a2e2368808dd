"""Carries out recorded intents: calls clouds, within quotas and fair queues.

In the order in which an intent passes through them:

- `pipeline`: builds all of it, from the dispatcher to the sink for results.
- `dispatcher`: the open intents; which may be sent to the workers now. Used by the reconcile thread.
- `worker_pool`: the threads of each cloud.
- `call_order`: which waiting call of a cloud is next. `quotas` may hold it back, `concurrency` bounds calls in flight.
- `call_on_thread`: makes one call on a worker's thread, and hands on its result.
- `cloud_actions`: what an intent does to a cloud or a store. The only module here that calls them.
- `call_types`, `machines`: values that the others exchange.
"""
