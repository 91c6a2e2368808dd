"""XML responses of EC2: moto's, modified, and those that moto lacks."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from xml.etree import ElementTree

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    content_type: str = "text/xml"

    @property
    def line(self) -> str:
        return f"{self.status} {HTTPStatus(self.status).phrase}"


def error(code: str, message: str) -> Answer:
    root = ElementTree.Element("Response")
    element = ElementTree.SubElement(ElementTree.SubElement(root, "Errors"), "Error")
    ElementTree.SubElement(element, "Code").text = code
    ElementTree.SubElement(element, "Message").text = message
    ElementTree.SubElement(root, "RequestID").text = "fake"
    status = {
        "RequestLimitExceeded": 503,
        "InternalError": 500,
        "Unavailable": 503,
        "AuthFailure": 401,
        "DryRunOperation": 412,
    }
    return Answer(status.get(code, 403 if code == "UnauthorizedOperation" else 400), ElementTree.tostring(root))


def json_error(code: str, message: str) -> Answer:
    """An error of a service that uses JSON."""
    error = {"__type": code, "message": message}
    return Answer(400, json.dumps(error).encode(), "application/x-amz-json-1.1")


def listing(action: str, name: str, items: Iterable[Mapping[str, str]], next_token: str) -> Answer:
    """`<{action}Response><{name}><item>…</item>…</{name}>`, of flat items."""
    root = ElementTree.Element(f"{action}Response", xmlns=NAMESPACE)
    listed = ElementTree.SubElement(root, name)
    for item in items:
        element = ElementTree.SubElement(listed, "item")
        for key, value in item.items():
            ElementTree.SubElement(element, key).text = value
    ElementTree.SubElement(root, "nextToken").text = next_token
    return Answer(200, ElementTree.tostring(root))


def console(id: str, output: str) -> Answer:
    root = ElementTree.Element("GetConsoleOutputResponse", xmlns=NAMESPACE)
    ElementTree.SubElement(root, "instanceId").text = id
    ElementTree.SubElement(root, "output").text = base64.b64encode(output.encode()).decode()
    return Answer(200, ElementTree.tostring(root))


def reservation_as_run_instances(described: Answer) -> Answer:
    """The DescribeInstances response with one reservation, as a RunInstances response."""
    reservation = _child(_child(ElementTree.fromstring(described.body), "reservationSet"), "item")
    root = ElementTree.Element(f"{{{NAMESPACE}}}RunInstancesResponse")
    ElementTree.SubElement(root, f"{{{NAMESPACE}}}requestId").text = "fake"
    root.extend(list(reservation))
    return Answer(200, ElementTree.tostring(root))


def without_instances(described: Answer, is_hidden: Callable[[str], bool]) -> Answer:
    """A DescribeInstances response without the hidden instances."""
    root = ElementTree.fromstring(described.body)
    reservations = _child(root, "reservationSet")
    for reservation in list(reservations):
        instances = _child(reservation, "instancesSet")
        for instance in list(instances):
            if is_hidden(_child(instance, "instanceId").text or ""):
                instances.remove(instance)
        if not len(instances):
            reservations.remove(reservation)
    return Answer(described.status, ElementTree.tostring(root))


def instance_ids(answer: Answer) -> list[str]:
    root = ElementTree.fromstring(answer.body)
    return [e.text or "" for e in root.iter() if e.tag.rpartition("}")[2] == "instanceId"]


def _child(element: ElementTree.Element, name: str) -> ElementTree.Element:
    return next(child for child in element if child.tag.rpartition("}")[2] == name)
