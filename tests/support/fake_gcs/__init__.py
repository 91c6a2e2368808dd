"""Google Cloud Storage over HTTP on this computer: its JSON API, its uploads, and its exchange of tokens.

    with FakeGcs(tmp_path) as gcs:
        store = GcsStore(endpoint=gcs.url, key_file=str(gcs.key_file))
        gcs.tokens.life_s = 5                     # of tokens that are made for nodes, from now on
        gcs.objects("bucket")                    # name → bytes
        gcs.pause(); …; gcs.resume()             # it accepts calls, and answers none

Requests and answers are checked against the discovery document of storage v1. Whoever calls shows a token: one signed
by the service account may do everything; one that was made of it may do what its access boundary leaves, until it ends.
"""

from fake_gcs.server import FakeGcs

__all__ = ["FakeGcs"]
