"""Walks an XML answer strictly along the output shape of the published service model.

botocore's own parser passes over unknown elements and wrong enum values, so that parsing proves little.
`problems` says everything that the model does not allow; `Judge` looks at each answer that a client gets.
"""

import re
import xml.etree.ElementTree as Xml
from datetime import datetime

# Codes that any operation may answer, from the services' pages of common errors.
COMMON = {
    "elbv2": {
        "AccessDenied", "InvalidAction", "InvalidClientTokenId", "MissingAuthenticationToken", "RequestExpired",
        "ServiceUnavailable", "SignatureDoesNotMatch", "Throttling", "ThrottlingException", "ValidationError",
    },
    # The model of EC2 names no errors: these are of its page of error codes, as far as the calls here can raise them.
    "ec2": {
        "DependencyViolation", "DryRunOperation", "InvalidAction", "InvalidGroup.Duplicate", "InvalidGroup.NotFound",
        "InvalidParameterValue", "InvalidPermission.Duplicate", "InvalidPermission.NotFound", "InvalidVpcID.NotFound",
        "MissingParameter", "RequestLimitExceeded", "RulesPerSecurityGroupLimitExceeded", "TagLimitExceeded",
        "UnauthorizedOperation",
    },
}


def tag(element):
    """Name of an element without its namespace."""
    return element.tag.rsplit("}", 1)[-1]


def problems(operation, body):
    """What in the answer `body` to `operation` the model does not allow; empty if it is all right."""
    try:
        root = Xml.fromstring(body)
    except Xml.ParseError as error:
        return [f"no XML: {error}"]
    if tag(root) != f"{operation.name}Response":
        return [f"the root is {tag(root)}"]
    children = list(root)
    shape = operation.output_shape
    if operation.service_model.metadata["protocol"] == "ec2":
        children = [child for child in children if tag(child) != "requestId"]
        return _structure(shape, children, operation.name) if shape else _unknown(children, operation.name)
    children = [child for child in children if tag(child) != "ResponseMetadata"]
    wrapper = shape.serialization.get("resultWrapper") if shape else f"{operation.name}Result"
    if [tag(child) for child in children] != [wrapper]:
        return [f"under the root are {[tag(child) for child in children]}, not {wrapper}"]
    inner = list(children[0])
    return _structure(shape, inner, operation.name) if shape else _unknown(inner, operation.name)


def _unknown(children, path):
    return [f"{path}.{tag(child)} is not in the model" for child in children]


def _structure(shape, children, path):
    by_name = {member.serialization.get("name", name): (name, member) for name, member in shape.members.items()}
    found, seen = [], set()
    for child in children:
        name = tag(child)
        if name not in by_name:
            found.append(f"{path}.{name} is not in the model")
            continue
        if name in seen:
            found.append(f"{path}.{name} is there twice")
        seen.add(name)
        member_name, member = by_name[name]
        found += _value(member, child, f"{path}.{member_name}")
    required = {shape.members[name].serialization.get("name", name): name for name in shape.required_members}
    return found + [f"{path}.{name} is required" for tag_name, name in required.items() if tag_name not in seen]


def _value(shape, element, path):
    if shape.type_name == "structure":
        return _structure(shape, list(element), path)
    if shape.type_name == "list":
        name = shape.member.serialization.get("name", "member")
        found = []
        for index, entry in enumerate(element):
            if tag(entry) != name:
                found.append(f"{path}[{index}] is <{tag(entry)}>, not <{name}>")
            else:
                found += _value(shape.member, entry, f"{path}[{index}]")
        return found
    if len(element):
        return [f"{path} has elements in it"]
    return _scalar(shape, element.text or "", path)


def _scalar(shape, text, path):
    if shape.type_name == "boolean":
        fits = text in ("true", "false")
    elif shape.type_name in ("integer", "long"):
        fits = re.fullmatch(r"-?\d+", text) is not None
    elif shape.type_name in ("float", "double"):
        fits = re.fullmatch(r"-?\d+(\.\d+)?", text) is not None
    elif shape.type_name == "timestamp":
        try:
            fits = datetime.fromisoformat(text.replace("Z", "+00:00")).tzinfo is not None
        except ValueError:
            fits = False
    else:
        allowed = getattr(shape, "enum", [])
        fits = not allowed or text in allowed
    return [] if fits else [f"{path}: {text!r} is no {shape.type_name} of {shape.name}"]


def error_code(body):
    """Code of an error answer of either service; None if it has no such form."""
    try:
        root = Xml.fromstring(body)
    except Xml.ParseError:
        return None
    codes = [element.text for element in root.iter() if tag(element) == "Code"]
    return codes[0] if len(codes) == 1 else None


def wrong_error(operation, status, body):
    """What is wrong with an error answer, or None: never a 5xx, and a code that the operation may raise."""
    if status >= 500:
        return f"{operation.name}: status {status}: {body[:300]!r}"
    code = error_code(body)
    modelled = {shape.metadata.get("error", {}).get("code", shape.name) for shape in operation.error_shapes}
    if code not in modelled | COMMON[_short(operation)]:
        return f"{operation.name}: code {code!r} is neither modelled nor common: {body[:300]!r}"
    return None


def _short(operation):
    return "ec2" if operation.service_model.service_name == "ec2" else "elbv2"


class Judge:
    """Looks at every answer that `client` gets, before the client's own parser does."""

    def __init__(self, client):
        self.wrong, self.answers = [], 0
        client.meta.events.register("before-parse", self._look)

    def _look(self, operation_model, response_dict, **_):
        self.answers += 1
        status, body = response_dict["status_code"], response_dict["body"]
        if status < 300:
            self.wrong += problems(operation_model, body)
        else:
            wrong = wrong_error(operation_model, status, body)
            self.wrong += [wrong] if wrong else []
