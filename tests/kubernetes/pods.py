"""What the controllers of Kubernetes make of an Indexed Job, a JobSet or a DaemonSet on three nodes, for `podman kube play`:
pods on standard output, their names on standard error.

    pods.py MANIFEST.yaml IMAGE AUTHORITY-DIRECTORY NAME-SERVER SEARCH-DOMAIN ADDRESSES [NAME=VALUE]...

ADDRESSES are those of the pods, with commas between. podman 4.3 has neither jobs nor volumes of secrets nor fields of pods in
variables; the directory takes the place of the secret. It publishes the ports of containers on the host, and needs systemd for
probes: both are left out. Its volumes have the names that pods give them. Each NAME=VALUE replaces a variable of the agents'
containers.
"""

import copy
import sys

import yaml

# Nodes on which a DaemonSet has a pod each.
NODES = 3


def of_job(name, job):
    """The pods of an Indexed Job, with their names and the variables that they get besides."""
    for index in range(job["completions"]):
        yield f"{name}-{index}", job["template"], {"JOB_COMPLETION_INDEX": str(index)}


def pods_of(manifest):
    """The templates of all pods, with their names and the variables that they get besides."""
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    if manifest["kind"] == "Job":
        yield from of_job(name, spec)
    elif manifest["kind"] == "DaemonSet":
        for node in range(NODES):
            yield f"{name}-node{node}", spec["template"], {}
    else:
        for part in spec["replicatedJobs"]:
            for replica in range(part["replicas"]):
                yield from of_job(f"{name}-{part['name']}-{replica}", part["template"]["spec"])


path, image, authority, server, domain, addresses, *variables = sys.argv[1:]
variables = dict(word.split("=", 1) for word in variables)
with open(path, encoding="utf-8") as file:
    manifest = yaml.safe_load(file)
pods = []
for (name, template, own), address in zip(pods_of(manifest), addresses.split(","), strict=True):
    pod = copy.deepcopy(template)
    pod.update(apiVersion="v1", kind="Pod")
    pod["metadata"]["name"] = name
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
        for key in ("ports", "readinessProbe", "livenessProbe"):
            container.pop(key, None)
        for mount in container["volumeMounts"]:
            mount["name"] = f"{name}-{mount['name']}"
        for variable in container.get("env", []):
            field = variable.pop("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            assert field in (None, "status.podIP"), field
            given = address if field else variable.get("value")
            variable["value"] = variables.get(variable["name"], given)
        extra = [{"name": key, "value": value} for key, value in own.items()]
        container["env"] = container.get("env", []) + extra
    pods.append(pod)
    print(name, file=sys.stderr)
yaml.safe_dump_all(pods, sys.stdout)
