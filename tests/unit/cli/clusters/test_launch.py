"""What `perdure launch` tells other users about the command."""

from __future__ import annotations

from perdure.cli.clusters.launch import without_secrets


def test_shown_command__has_no_secrets() -> None:
    words = ["-c", "dev", "--secret", "A=sesame", "--secret=B=sesame", "--secret", "C", "--secret=D", "--env", "E=1",
             "--git-url", "https://u:sesame@h/x.git", "curl http://sesame@h/ && git@h:x"]  # fmt: skip
    assert without_secrets(words) == [
        "-c", "dev", "--secret", "A=***", "--secret=B=***", "--secret", "C", "--secret=D", "--env", "E=1",
        "--git-url", "https://***@h/x.git", "curl http://***@h/ && git@h:x",
    ]  # fmt: skip
