"""The account around EC2: who calls (STS), what they may do (IAM), how much they may have (Service Quotas)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from xml.etree import ElementTree

from moto.core import DEFAULT_ACCOUNT_ID

from fake_ec2 import validation
from fake_ec2.answers import Answer
from fake_ec2.faults import Faults

SERVICES = {"sts": "sts", "iam": "iam", "servicequotas": "service-quotas"}  # as signatures name them, and as botocore
ARN = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:user/perdure"
# Quotas of a new account are 5 vCPUs and nothing else; this one has some of everything. The last is of no interest.
QUOTAS = (
    "L-34B43A08",
    "L-1216C47A",
    "L-3819A6DF",
    "L-DB2E81BA",
    "L-7212CCBC",
    "L-C4BD4855",
    "L-417A185B",
    "L-0263D0A3",
)
VCPUS = 64.0
_NAMESPACES = {"sts": "https://sts.amazonaws.com/doc/2011-06-15/", "iam": "https://iam.amazonaws.com/doc/2010-05-08/"}
_JSON = "application/x-amz-json-1.1"


def simulates(body: bytes) -> bool:
    """Whether a call of IAM's is of its simulator: of roles and profiles moto knows more."""
    return b"Action=SimulatePrincipalPolicy" in body


def answer(service: str, region: str, action: str, form: Mapping[str, str], body: bytes, faults: Faults) -> Answer:
    """`form`: of a query, `body` of a call in JSON. Raises validation.Invalid."""
    if f"{service}:{action}" in faults.forbid:
        raise validation.Invalid("AccessDenied", f"User: {ARN} is not authorized to perform: {service}:{action}")
    if faults.deny:
        raise validation.Invalid("InvalidClientTokenId", "The security token included in the request is invalid.")
    match f"{service}:{action}":
        case "sts:GetCallerIdentity":
            validation.read(action, form, service="sts")
            return _told(service, action, {"Arn": ARN, "UserId": "AIDAFAKE", "Account": DEFAULT_ACCOUNT_ID})
        case "iam:SimulatePrincipalPolicy":
            asked = validation.read(action, form, service="iam")
            if asked["PolicySourceArn"] != ARN:
                raise validation.Invalid("NoSuchEntity", f"The entity {asked['PolicySourceArn']} cannot be found.")
            on = asked.get("ResourceArns") or ["*"]
            # One result for each action, however many resources: the most restrictive decision.
            decisions = [
                {"EvalActionName": name, "EvalDecision": "implicitDeny" if denied else "allowed"}
                for name in asked["ActionNames"]
                for denied in [{name, *(f"{name} on {one}" for one in on)} & faults.forbid]
            ]
            return _told(service, action, {"EvaluationResults": decisions, "IsTruncated": "false"})
        case "servicequotas:ListServiceQuotas":
            asked = validation.read_json(action, body, service="service-quotas")
            assert asked["ServiceCode"] == "ec2"
            start = int(asked.get("NextToken") or 0)
            told = [
                {"QuotaCode": code, "QuotaName": code, "Value": faults.quotas.get((region, code), VCPUS)}
                for code in QUOTAS
            ]
            more = {"NextToken": str(start + 5)} if start + 5 < len(told) else {}  # pages, as there are many
            page = {"Quotas": told[start : start + 5], **more}
            return Answer(200, json.dumps(page).encode(), _JSON)
        case unknown:
            raise validation.Invalid("InvalidAction", f"the fake has no {unknown}")


def error(service: str, invalid: validation.Invalid) -> Answer:
    """In the protocol of the service."""
    if service == "servicequotas":
        code = "AccessDeniedException" if invalid.code == "AccessDenied" else invalid.code
        return Answer(400, json.dumps({"__type": code, "message": str(invalid)}).encode(), _JSON)
    root = ElementTree.Element("ErrorResponse", xmlns=_NAMESPACES[service])
    _write(root, "Error", {"Type": "Sender", "Code": invalid.code, "Message": str(invalid)})
    _write(root, "RequestId", "fake")
    return Answer(403, ElementTree.tostring(root))


def _told(service: str, action: str, result: object) -> Answer:
    root = ElementTree.Element(f"{action}Response", xmlns=_NAMESPACES[service])
    _write(root, f"{action}Result", result)
    return Answer(200, ElementTree.tostring(root))


def _write(parent: ElementTree.Element, name: str, value: object) -> None:
    element = ElementTree.SubElement(parent, name)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _write(element, key, inner)
    elif isinstance(value, list):
        for inner in value:
            _write(element, "member", inner)
    else:
        element.text = str(value)
