"""Checks manifests against the published schemas of Kubernetes; unknown fields are errors.

    validate.py VERSION FILE...

A JobSet is no type of Kubernetes itself: its jobs are checked. Pods must keep to the restricted security profile.
"""

import sys

import kubernetes_validate
import yaml


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


version, *paths = sys.argv[1:]
for path in paths:
    with open(path, encoding="utf-8") as file:
        for document in yaml.safe_load_all(file):
            if document["kind"] != "JobSet":
                check(document, version)
                continue
            for part in document["spec"]["replicatedJobs"]:
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": part["name"]}}
                check(job | {"spec": part["template"]["spec"]}, version)
    print(path)
