"""What the controllers of Kubernetes make of an Indexed Job, a JobSet or a DaemonSet on three nodes, for `podman kube play`:
pods on standard output; on standard error, in JSON, their names, labels and subdomains, and the service.

    pods.py MANIFEST.yaml PREFIX IMAGE AUTHORITY-DIRECTORY NAME-SERVER SEARCH-DOMAIN ADDRESSES [NAME=VALUE]...

PREFIX is put before names, and before what names.yaml beside the manifest says, as Kustomize's namePrefix does. ADDRESSES are those of the pods, with commas between. podman 4.3 has neither jobs nor volumes of secrets nor fields of pods in
variables; the directory takes the place of the secret. It publishes the ports of containers on the host, and needs systemd for
probes: both are left out, and so are limits, which need a control group of one's own. Its volumes have the names that pods give them. Each NAME=VALUE replaces a variable of the agents'
containers.
"""

import copy
import json
import os
import re
import sys

import yaml

# Nodes on which a DaemonSet has a pod each.
NODES = 3


def fields(node, path):
    """The fields of this path, each with what it is in; lists are gone through."""
    if isinstance(node, list):
        for part in node:
            yield from fields(part, path)
    elif isinstance(node, dict) and path[0] in node:
        if len(path) == 1:
            yield node, path[0]
        else:
            yield from fields(node[path[0]], path[1:])


def rename(manifests, references, prefix):
    """Puts a prefix before the names of manifests, and wherever others refer to them."""
    for reference in references:
        names = [m["metadata"]["name"] for m in manifests if m["kind"] == reference["kind"]]
        for target in reference["fieldSpecs"]:
            path = [part.replace("\\/", "/") for part in re.split(r"(?<!\\)/", target["path"])]
            for manifest in manifests:
                for node, key in fields(manifest, path) if manifest["kind"] == target["kind"] else ():
                    node[key] = prefix + node[key] if node[key] in names else node[key]
    for manifest in manifests:
        manifest["metadata"]["name"] = prefix + manifest["metadata"]["name"]


def of_job(name, job, labels=None):
    """The pods of an Indexed Job, with their names, and the variables and labels that they get besides."""
    for index in range(job["completions"]):
        own = {"batch.kubernetes.io/job-name": name, "batch.kubernetes.io/job-completion-index": str(index)}
        yield f"{name}-{index}", job["template"], {"JOB_COMPLETION_INDEX": str(index)}, own | (labels or {})


def pods_of(manifest):
    """The templates of all pods, with their names, and the variables and labels that they get besides."""
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    if manifest["kind"] == "Job":
        yield from of_job(name, spec)
    elif manifest["kind"] == "DaemonSet":
        for node in range(NODES):
            yield f"{name}-node{node}", spec["template"], {}, {}
    else:
        labels = {"jobset.sigs.k8s.io/jobset-name": name}
        for part in spec["replicatedJobs"]:
            for replica in range(part["replicas"]):
                yield from of_job(f"{name}-{part['name']}-{replica}", part["template"]["spec"], labels)


def field(path, pod, address):
    """The value of a field of a pod."""
    label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
    assert label or path == "status.podIP", path
    return pod["metadata"]["labels"][label[1]] if label else address


path, prefix, image, authority, server, domain, addresses, *variables = sys.argv[1:]
variables = dict(word.split("=", 1) for word in variables)
with open(path, encoding="utf-8") as file:
    manifests = list(yaml.safe_load_all(file))
with open(os.path.join(os.path.dirname(path), "names.yaml"), encoding="utf-8") as file:
    rename(manifests, yaml.safe_load(file)["nameReference"], prefix)
service, workload = manifests
pods, shown = [], []
for (name, template, own, labels), address in zip(pods_of(workload), addresses.split(","), strict=True):
    pod = copy.deepcopy(template)
    pod.update(apiVersion="v1", kind="Pod")
    pod["metadata"]["name"] = name
    pod["metadata"]["labels"].update(labels)
    shown.append({"name": name, "labels": pod["metadata"]["labels"], "subdomain": pod["spec"]["subdomain"]})
    spec = pod["spec"]
    spec["hostname"] = name
    # podman takes Always for init containers too.
    spec["restartPolicy"] = "OnFailure" if spec["restartPolicy"] == "Always" else spec["restartPolicy"]
    spec["dnsPolicy"] = "None"
    spec["dnsConfig"] = {"nameservers": [server], "searches": [domain]}
    for volume in spec["volumes"]:
        volume["name"] = f"{name}-{volume['name']}"
        if volume.pop("secret", None):
            volume["hostPath"] = {"path": authority, "type": "Directory"}
    for container in spec.get("initContainers", []) + spec["containers"]:
        container["image"] = image
        container["imagePullPolicy"] = "Never"
        for key in ("ports", "readinessProbe", "livenessProbe", "resources"):
            container.pop(key, None)
        for mount in container["volumeMounts"]:
            mount["name"] = f"{name}-{mount['name']}"
        for variable in container.get("env", []):
            reference = variable.pop("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            given = field(reference, pod, address) if reference else variable.get("value")
            variable["value"] = variables.get(variable["name"], given)
        extra = [{"name": key, "value": value} for key, value in own.items()]
        container["env"] = container.get("env", []) + extra
    pods.append(pod)
json.dump({"pods": shown, "service": service["metadata"]["name"], "selector": service["spec"]["selector"]}, sys.stderr)
yaml.safe_dump_all(pods, sys.stdout)
