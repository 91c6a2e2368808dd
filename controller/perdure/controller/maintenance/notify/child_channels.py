"""Channels in a process of their own: Apprise, whose hundred services would stay in the daemon's memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from perdure.controller.maintenance.notify.channel_protocol import TIMEOUT_S, Delivered, Message, NotDelivered

# It takes a second to load.
_LIMIT_S = TIMEOUT_S + 15
_MISSING = 3
_PROGRAM = f"""
import json, sys
try:
    import apprise
except ImportError:
    sys.exit({_MISSING})
given = json.load(sys.stdin)
one = apprise.Apprise()
if not one.add(given["url"]):
    sys.exit("Apprise does not know this kind of URL")
sys.exit(0 if one.notify(title=given["title"], body=given["body"]) else "the service refused the message")
"""


@dataclass(frozen=True)
class AppriseChannel:
    """Sends with Apprise. The URL, which holds secrets, goes through a pipe: arguments are public on a computer."""

    url: str

    def deliver(self, message: Message) -> Delivered | NotDelivered:
        given = json.dumps({"url": self.url, "title": message.title, "body": message.text})
        command = [sys.executable, "-c", _PROGRAM]
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return NotDelivered(f"Apprise: {type(error).__name__}")
        if done.returncode == 0:
            return Delivered("sent by Apprise")
        if done.returncode == _MISSING:
            return NotDelivered("Apprise is not installed: add the extra [notify] to the controller's installation")
        lines = [line for line in done.stderr.splitlines() if line.strip() and self.url not in line]
        return NotDelivered(f"Apprise: {lines[-1] if lines else 'failed'}"[:300])
