"""Judges documents by the typed dictionaries of azure-mgmt-network: unknown keys and wrong types are refused.

Reads JSON lines {"kind", "body"} and prints a line for each fault, then how many documents were judged. That package
marks fields as required which references and requests leave out, so what is missing is no fault; its enumerations are
open and ranges unchecked, so those are for others to judge.
"""
import enum
import json
import sys

import typing_extensions
from azure.mgmt.network import models, types
from pydantic import ConfigDict, TypeAdapter, ValidationError

KINDS = {
    "loadBalancers": "LoadBalancer",
    "backendAddressPools": "BackendAddressPool",
    "publicIPAddresses": "PublicIPAddress",
    "networkSecurityGroups": "NetworkSecurityGroup",
}


def adapters():
    """A strict reader of each kind."""
    for name in dir(models):
        model = getattr(models, name)
        if isinstance(model, type) and issubclass(model, enum.Enum):
            # The dictionaries name enumerations that their module does not import.
            setattr(types, name, model)
    for name in dir(types):
        dictionary = getattr(types, name)
        if typing_extensions.is_typeddict(dictionary):
            dictionary.__pydantic_config__ = ConfigDict(extra="forbid")
    return {kind: TypeAdapter(getattr(types, name)) for kind, name in KINDS.items()}


def main():
    readers = adapters()
    judged = faults = 0
    for line in sys.stdin:
        document = json.loads(line)
        judged += 1
        try:
            readers[document["kind"]].validate_python(document["body"])
        except ValidationError as error:
            for fault in error.errors():
                if fault["type"] == "missing":
                    continue
                faults += 1
                path = ".".join(str(part) for part in fault["loc"])
                print(f"{document['kind']} {path}: {fault['msg']}")
    print(f"{judged} judged, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
