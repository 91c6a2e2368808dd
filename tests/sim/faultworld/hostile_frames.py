"""Frames that a hostile node may send: valid ones, invalid ones by construction, mutated ones, and garbage.

Every choice is drawn from a `random.Random`: a seeded one in the simulation, Hypothesis's in the test of a real daemon,
which can then shorten a failing sequence. Valid frames here do no harm to their job: a node may always end itself.
"""

from __future__ import annotations

import json
import random
from typing import Any

Frame = str | bytes

REPORT = {
    "phase": "running", "exit_code": None, "failed_stage": None, "interrupted": False, "mount_lost": False,
    "message": "", "ip": "127.0.0.1", "mounts": [],
}  # fmt: skip
HELLO: dict[str, Any] = {
    "type": "hello", "report": REPORT, "logs": {"size": 0}, "checkpoints": {"seq": 0}, "agent": "0", "at": 1.8e9,
}  # fmt: skip

# As JSON, since some of them are no values of Python's.
_NOT_FINITE = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999")
_NOT_A_NUMBER = (*_NOT_FINITE, '"soon"', "{}", "[]", "true", '"12"', "1e300", "-1", str(2**80))
_NOT_A_COUNT = (*_NOT_A_NUMBER, "null", "1.5", str(2**63), "-0.5")
_NOT_A_WORD = ("null", "7", "{}", "[]", '"dancing"', '"\\u0000"', '"\\ud800"', '"\\u001b[2J"', '""')

# Templates in which % stands for a value that makes the frame invalid.
_INVALID: tuple[tuple[str, tuple[str, ...]], ...] = (
    ('{"type": "notice", "deadline": %}', _NOT_A_NUMBER),
    ('{"type": "notice", "action": "terminate", "source": "x", "deadline": %, "at": 1.8e9}', (*_NOT_A_NUMBER, "null")),
    ('{"type": "notice", "deadline": 1.8e9, "at": %}', _NOT_A_NUMBER),
    ('{"type": "notice", "action": %, "deadline": 1.8e9}', ("7", "{}", "null", f'"{"x" * 200}"')),
    ('{"type": "report", "phase": %}', _NOT_A_WORD),
    ('{"type": "report", "phase": "running", "ip": %}', ("{}", "7", '"10.0.0.999"', '"\\u001b[0m"', '"; rm -rf /"')),
    ('{"type": "report", "phase": "running", "exit_code": %}', (*_NOT_FINITE, '"1"', "{}", "true", str(2**80))),
    ('{"type": "report", "phase": "ended", "exit_code": 0, "failed_stage": %}', ("7", "{}", '"lunch"', '"\\u0000"')),
    ('{"type": "report", "phase": "ended", "exit_code": 0, "message": %}', ("7", "{}", '"\\ud800"', "null")),
    ('{"type": "report", "phase": "ended", "exit_code": 0, "logs": {"size": %}}', _NOT_A_COUNT),
    ('{"type": "report", "phase": "ended", "exit_code": 0, "checkpoints": {"seq": %}}', _NOT_A_COUNT),
    ('{"type": "report", "phase": "running", "interrupted": %}', ("7", '"yes"', "{}", "null")),
    ('{"type": "checkpoint", "seq": %, "step": 1, "state": "durable", "path": "/c", "at": 1.8e9}', _NOT_A_COUNT),
    ('{"type": "checkpoint", "seq": 1, "step": %, "state": "durable", "path": "/c", "at": 1.8e9}', _NOT_A_COUNT),
    ('{"type": "checkpoint", "seq": 1, "step": 1, "state": %, "path": "/c", "at": 1.8e9}', _NOT_A_WORD),
    ('{"type": "checkpoint", "seq": 1, "step": 1, "state": "saved", "path": %}', ("7", "{}", '"a\\u0000b"', "null")),
    ('{"type": "checkpoint", "seq": 1, "step": 1, "state": "saved", "path": "/c", "at": %}', _NOT_A_NUMBER),
    ('{"type": "hello", "report": %}', (*_NOT_A_WORD, *_NOT_FINITE)),
    ("%", ("{", "[]", "7", "null", "", "{}", '{"type": "report"}', '"' + "\\ud800" + '"', *_NOT_FINITE)),
)
_INVALID_BYTES = (
    b"", b"no header", b"{}\n", b'{"offset": -5}\nabc', b'{"offset": 1e999}\nabc', b'{"offset": "x"}\nabc',
    b'{"offset": NaN}\nabc', b'{"offset": 9223372036854775807}\nabc', b"\n" * 1000, b"\xff\xfe\x00",
)  # fmt: skip


def valid_frame(rng: random.Random) -> Frame:
    """A frame that an agent may send after its hello, and that does no harm to its job."""
    at = 1.8e9 + rng.randrange(1000)
    frames: tuple[dict[str, Any], ...] = (
        {"type": "heartbeat", "at": at},
        {"type": "report", **REPORT, "message": "ok" * rng.randrange(2000), "logs": {"size": rng.randrange(2**40)}},
        {"type": "checkpoint", "seq": rng.randint(1, 50), "step": rng.randrange(2**40), "state": "loaded",
         "path": "/c" * rng.randrange(100), "at": at},
        {"type": f"newer-{rng.randrange(5)}", "load": [rng.randrange(9)] * rng.randrange(9)},
    )  # fmt: skip
    return json.dumps(rng.choice(frames))


def invalid_frame(rng: random.Random) -> Frame:
    """A frame that breaks the protocol: the controller must close the connection, and nothing else may happen."""
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice(_INVALID_BYTES)
    if kind == 1:
        return rng.choice(("[", "{", '{"a":')) * rng.choice((300, 10_000, 100_000))
    template, values = rng.choice(_INVALID)
    return template.replace("%", rng.choice(values))


def mutated_frame(rng: random.Random) -> Frame:
    """A valid frame with some of its characters or bytes changed, removed or repeated; it may still be valid."""
    text = str(valid_frame(rng))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + rng.choice('{}[]",:\\-.0123456789eE \t\n\x7f\u2028') + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randint(1, 5) :]
            case 2:
                text = text[:at] + text[: rng.randint(1, 30)] + text[at:]
            case _:
                text = text[:at]
    return text if rng.randrange(4) else text.encode()


def garbage(rng: random.Random) -> Frame:
    """Bytes of no meaning, or a large log frame."""
    if rng.randrange(2):
        return b'{"offset": %d}\n' % rng.randrange(2**50) + b"x" * rng.choice((0, 1, 1000, 900_000))
    return bytes(rng.randrange(256) for _ in range(rng.randrange(64)))


def hostile_frame(rng: random.Random) -> Frame:
    """Any of these."""
    return rng.choice((valid_frame, invalid_frame, invalid_frame, mutated_frame, garbage))(rng)
