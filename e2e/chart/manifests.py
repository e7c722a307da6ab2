"""Judges manifests by Kubernetes' published schemas, version by version, strictly: unknown fields are refused.

Reads one JSON value from standard input: {"versions": ["1.33", …], "schemas": {"Kind": {…}, …}, "objects": [{"from":
"what rendered it", "object": {…}}, …]}, where "schemas" has what no release of Kubernetes knows: our own kinds. Prints
one JSON value: how many judgements were made, and each complaint.
"""

import functools
import json
import sys

import jsonschema
import kubernetes_validate
from kubernetes_validate import utils

# Each judgement would parse the definitions of the whole version again.
utils.schema_contents = functools.lru_cache(utils.schema_contents)


def main():
    asked = json.load(sys.stdin)
    judged, complaints = 0, []
    for version in asked["versions"]:
        for each in asked["objects"]:
            manifest = each["object"]
            own = asked["schemas"].get(manifest["kind"])
            name = f'{each["from"]}: {manifest["kind"]} {manifest["metadata"].get("name")}, Kubernetes {version}'
            try:
                if own is not None:
                    jsonschema.Draft202012Validator(own).validate(manifest)
                    judged += 1
                    continue
                used = utils.validate(manifest, version, strict=True)
                if used != version:
                    complaints.append(f"{name}: judged by the schemas of {used}")
                judged += 1
            except jsonschema.ValidationError as error:
                path = ".".join(str(part) for part in error.path)
                complaints.append(f"{name}: {path}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError as error:
                complaints.append(f"{name}: {error.message}")
    json.dump({"judged": judged, "complaints": complaints}, sys.stdout)


if __name__ == "__main__":
    main()
