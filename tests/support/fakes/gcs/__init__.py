"""Google Cloud Storage over HTTP on this computer: its JSON API, its uploads, and its exchange of tokens.

    with FakeGcs(tmp_path) as gcs:
        store = GcsStore(endpoint=gcs.url, key_file=str(gcs.key_file))
        gcs.tokens.life_s = 5                     # of new tokens for nodes
        gcs.objects("bucket")                    # name → bytes
        gcs.pause(); …; gcs.resume()             # it accepts calls and does not respond

Requests and responses are checked against the discovery document of storage v1. Every call needs a token: one signed by
the service account allows everything; one derived from it allows what its access boundary allows, until it expires.
"""

from support.fakes.gcs.server import FakeGcs

__all__ = ["FakeGcs"]
