"""The account around EC2: identity (STS), permissions (IAM) and quotas (Service Quotas)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from xml.etree import ElementTree

from moto.core import DEFAULT_ACCOUNT_ID

from support.fakes.ec2 import validation
from support.fakes.ec2.faults import TEXTS, Faults
from support.fakes.ec2.responses import Answer

# The name of a service in signatures → its name in botocore.
SERVICES = {"sts": "sts", "iam": "iam", "servicequotas": "service-quotas"}
ARN = f"arn:aws:iam::{DEFAULT_ACCOUNT_ID}:user/perdure"
# Quotas of a new account are 5 vCPUs and nothing else; this one has some of each. The last one is irrelevant.
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
    """Whether a call of IAM is for its policy simulator. moto answers the calls for roles and profiles."""
    return b"Action=SimulatePrincipalPolicy" in body


def answer(service: str, region: str, action: str, form: Mapping[str, str], body: bytes, faults: Faults) -> Answer:
    """Answer a call. `form` has the parameters of a query, `body` those of JSON. Raises validation.Invalid."""
    if f"{service}:{action}" in faults.forbid:
        raise validation.Invalid("AccessDenied", f"User: {ARN} is not authorized to perform: {service}:{action}")
    if faults.deny:
        raise validation.Invalid("InvalidClientTokenId", "The security token included in the request is invalid.")
    match f"{service}:{action}":
        case "sts:GetCallerIdentity":
            validation.read(action, form, service="sts")
            return _description(service, action, {"Arn": ARN, "UserId": "AIDAFAKE", "Account": DEFAULT_ACCOUNT_ID})
        case "sts:DecodeAuthorizationMessage":
            parameters = validation.read(action, form, service="sts")
            decoded = base64.b64decode(parameters["EncodedMessage"]).decode()
            return _description(service, action, {"DecodedMessage": decoded})
        case "iam:SimulatePrincipalPolicy":
            parameters = validation.read(action, form, service="iam")
            if parameters["PolicySourceArn"] != ARN:
                raise validation.Invalid("NoSuchEntity", f"The entity {parameters['PolicySourceArn']} cannot be found.")
            resources = parameters.get("ResourceArns") or ["*"]
            # One result for each action, however many resources: the most restrictive decision.
            decisions = [
                {"EvalActionName": name, "EvalDecision": "implicitDeny" if denied else "allowed"}
                for name in parameters["ActionNames"]
                for denied in [{name, *(f"{name} on {one}" for one in resources)} & faults.forbid]
            ]
            return _description(service, action, {"EvaluationResults": decisions, "IsTruncated": "false"})
        case "servicequotas:ListServiceQuotas":
            parameters = validation.read_json(action, body, service="service-quotas")
            assert parameters["ServiceCode"] == "ec2"
            start = int(parameters.get("NextToken") or 0)
            quotas = [
                {"QuotaCode": code, "QuotaName": code, "Value": faults.quotas.get((region, code), VCPUS)}
                for code in QUOTAS
            ]
            more = {"NextToken": str(start + 5)} if start + 5 < len(quotas) else {}
            page = {"Quotas": quotas[start : start + 5], **more}
            return Answer(200, json.dumps(page).encode(), _JSON)
        case unknown:
            raise validation.Invalid("InvalidAction", f"the fake has no {unknown}")


def denial(action: str, region: str) -> str:
    """The message of a call that a service control policy denies."""
    regions = {"key": "aws:RequestedRegion", "values": {"items": [{"value": "eu-west-1"}]}}
    statement = {
        "statementId": "DenyRegions",
        "sourcePolicyId": "p-FullAWSAccess",
        "effect": "DENY",
        "conditions": {"items": [regions]},
    }
    context = {"action": action, "resource": f"arn:aws:ec2:{region}:1:instance/*"}
    decoded = {"allowed": False, "explicitDeny": True, "matchedStatements": {"items": [statement]}, "context": context}
    encoded = base64.b64encode(json.dumps(decoded).encode()).decode()
    return TEXTS["denied region"].format(action=action, region=region, encoded=encoded)


def error(service: str, invalid: validation.Invalid) -> Answer:
    """An error in the protocol of the service."""
    if service == "servicequotas":
        code = "AccessDeniedException" if invalid.code == "AccessDenied" else invalid.code
        return Answer(400, json.dumps({"__type": code, "message": str(invalid)}).encode(), _JSON)
    root = ElementTree.Element("ErrorResponse", xmlns=_NAMESPACES[service])
    _write(root, "Error", {"Type": "Sender", "Code": invalid.code, "Message": str(invalid)})
    _write(root, "RequestId", "fake")
    return Answer(403, ElementTree.tostring(root))


def _description(service: str, action: str, result: object) -> Answer:
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
