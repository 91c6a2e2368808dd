"""Explains a denied call: EC2 encodes which statement of which policy denies it.

docs.aws.amazon.com/STS/latest/APIReference/API_DecodeAuthorizationMessage.html. The encoded text is of no use to users
and fills a screen, so it is left out of the message in any case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perdure.controller.clouds.base.faults import CloudRejected

CODE = "UnauthorizedOperation"
# What the message says of a statement that denies the region whatever is launched there.
DENIES_REGION = "which denies the region"
_ENCODED = re.compile(r"\s*Encoded authorization failure message:\s*(?P<text>\S+)")
_MAX_STATEMENTS = 3
_REGION, _OF_CALLER = "aws:requestedregion", "aws:principal"


def explained(error: Exception, sts: Callable[[], Any]) -> Exception:
    """The same rejection, with what STS decodes of it if the controller may ask. `sts`: returns a client."""
    message = str(getattr(error, "response", {}).get("Error", {}).get("Message") or error)
    match = _ENCODED.search(message)
    if match is None:
        return error
    plain = _ENCODED.sub("", message).rstrip(" .")
    try:
        decoded = sts().decode_authorization_message(EncodedMessage=match["text"])["DecodedMessage"]
        details = "; ".join(_details(json.loads(decoded)))
    except Exception:  # noqa: BLE001 - not every controller may decode it
        details = "to see which statement denies it, allow the controller sts:DecodeAuthorizationMessage"
    return CloudRejected(CODE, f"{plain} ({details})" if details else plain)


def _details(decoded: Mapping[str, Any]) -> Iterator[str]:
    """What was denied, and the statements that deny it."""
    context = decoded.get("context") or {}
    if context.get("action") and context.get("resource"):
        yield f"{context['action']} on {context['resource']}"
    statements = (decoded.get("matchedStatements") or {}).get("items") or []
    for statement in statements[:_MAX_STATEMENTS]:
        name = statement.get("statementId") or "without a Sid"
        source = f" of {statement['sourcePolicyId']}" if statement.get("sourcePolicyId") else ""
        yield f"statement {name}{source}{f' {DENIES_REGION}' if _denies_region(statement) else ''}"
    if not decoded.get("explicitDeny") and not statements:
        yield "no policy allows it"


def _denies_region(statement: Mapping[str, Any]) -> bool:
    """Whether the statement's conditions are on the region, and apart from that on the caller alone."""
    keys = {key.lower() for key in _condition_keys(statement.get("conditions"))}
    return _REGION in keys and all(key == _REGION or key.startswith(_OF_CALLER) for key in keys)


def _condition_keys(conditions: Any) -> Iterator[str]:
    """`conditions`: {"items": [{"key": …, "values": …}]}."""
    items = conditions.get("items") if isinstance(conditions, Mapping) else None
    for item in items if isinstance(items, list) else ():
        yield str(item.get("key")) if isinstance(item, Mapping) else ""
