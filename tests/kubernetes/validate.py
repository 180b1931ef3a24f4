"""Checks manifests against the published schemas of Kubernetes and of JobSet; unknown fields are errors.

    validate.py VERSION FILE...

Pods must keep to the restricted security profile. A JobSet's template of jobs is checked as a Job too.
"""

import os
import sys

import jsonschema
import kubernetes_validate
import yaml

# Seconds for which an agent may not answer before its container is ended: busy ranks may leave it little time.
PATIENCE = 600


def load(name):
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return yaml.safe_load(file)


def closed(schema):
    """The same with no other fields than those that are named, as an API server takes it."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        result["additionalProperties"] = False
    return result


def check(document, version):
    kubernetes_validate.validate(document, version, strict=True)
    pod = document["spec"].get("template", {}).get("spec")
    if pod is None:
        return
    # Source: "Pod Security Standards" in the documentation of Kubernetes, restricted.
    context = pod["securityContext"]
    assert context["runAsNonRoot"] and context["seccompProfile"] == {"type": "RuntimeDefault"}, document["kind"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all(volume.keys() <= {"name", "secret", "emptyDir"} for volume in pod["volumes"])
    for container in pod["initContainers"] + pod["containers"]:
        expected = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["securityContext"] == expected, container["name"]
        # Without a limit the ranks of one pod take what those of others need.
        resources = container.get("resources", {})
        for kind in ("requests", "limits"):
            assert resources.get(kind, {}).get("memory"), (container["name"], kind)
        if probe := container.get("livenessProbe"):
            patience = probe["periodSeconds"] * probe["failureThreshold"]
            assert patience >= PATIENCE, (container["name"], patience)


version, *paths = sys.argv[1:]
jobset = closed(load("jobset-schema.yaml"))
for path in paths:
    with open(path, encoding="utf-8") as file:
        for document in yaml.safe_load_all(file):
            if document["kind"] != "JobSet":
                check(document, version)
                continue
            jsonschema.validate(document, jobset)
            for part in document["spec"]["replicatedJobs"]:
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": part["name"]}}
                check(job | {"spec": part["template"]["spec"]}, version)
    print(path)
