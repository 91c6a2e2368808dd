"""A machine's first program, as it is sent."""

from __future__ import annotations

import ast

import pytest

from gce_metadata import GceMetadata
from perdure.controller.clouds.base import Bootstrap
from perdure.controller.clouds.boot import RANKS
from perdure.controller.clouds.booting import first_program

MOST_BYTES = 16 * 1024  # EC2's limit, before it is encoded
ODD = 'http://[::1]:1/"\\'


@pytest.mark.parametrize(
    "rank", [{"PERDURE_RANK": "3"}, {"PERDURE_RANK_FROM": "gce"}], ids=lambda told: next(iter(told))
)
def test_it_is_a_small_program_of_old_python_that_knows_this_attempt(rank: dict[str, str]) -> None:
    text = first_program(Bootstrap(ODD, "attempt-token", {"agent": "ab" * 32, "rclone": "cd" * 32}), **rank)
    assert text.startswith("#!/usr/bin/env python3\n")
    assert len(text.encode()) < MOST_BYTES / 2
    program = ast.parse(text, feature_version=(3, 9))
    (settings,) = [
        ast.literal_eval(node.value)
        for node in program.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SETTINGS"
    ]
    told = {"PERDURE_ENDPOINT": ODD, "PERDURE_TOKEN": "attempt-token", "PERDURE_AGENT": "ab" * 32}
    assert settings == told | rank


def test_the_last_word_of_a_name_at_google_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with GceMetadata({"instance/name": "perdure-hf-0a1b-7-0-2-13"}) as metadata:
        monkeypatch.setenv("PERDURE_METADATA_ENDPOINT", metadata.endpoint)
        assert RANKS["gce"]() == "13"
