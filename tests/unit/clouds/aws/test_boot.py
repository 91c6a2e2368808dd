"""A machine's first program, as it is sent."""

from __future__ import annotations

import ast

from holdfast.controller.clouds.aws.launching import user_data
from holdfast.controller.clouds.base import Bootstrap

MOST_BYTES = 16 * 1024  # EC2's limit, before it is encoded
ODD = 'http://[::1]:1/"\\'


def test_user_data_is_a_small_program_of_old_python_that_knows_this_attempt() -> None:
    text = user_data(Bootstrap(ODD, "attempt-token", {"agent": "ab" * 32, "rclone": "cd" * 32}))
    assert text.startswith("#!/usr/bin/env python3\n")
    assert len(text.encode()) < MOST_BYTES / 2
    program = ast.parse(text, feature_version=(3, 9))
    (settings,) = [
        ast.literal_eval(node.value)
        for node in program.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SETTINGS"
    ]
    assert settings == {"HOLDFAST_ENDPOINT": ODD, "HOLDFAST_TOKEN": "attempt-token", "HOLDFAST_AGENT": "ab" * 32}
