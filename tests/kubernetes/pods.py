"""What a controller of Kubernetes makes of an Indexed Job, for `podman kube play`: pods on standard output.

    pods.py JOB.yaml IMAGE AUTHORITY-DIRECTORY NAME-SERVER SEARCH-DOMAIN [NAME=VALUE]...

podman 4.3 has neither jobs nor volumes of secrets; the directory takes the place of the secret. It publishes the ports of
containers on the host, and needs systemd for probes: both are left out. Its volumes have the names that pods give them. Each NAME=VALUE replaces a
variable of the agents' containers.
"""

import copy
import sys

import yaml

path, image, authority, server, domain, *variables = sys.argv[1:]
variables = dict(word.split("=", 1) for word in variables)
with open(path, encoding="utf-8") as file:
    job = yaml.safe_load(file)
name, template = job["metadata"]["name"], job["spec"]["template"]
pods = []
for index in range(job["spec"]["completions"]):
    pod = copy.deepcopy(template)
    pod.update(apiVersion="v1", kind="Pod")
    pod["metadata"]["name"] = f"{name}-{index}"
    spec = pod["spec"]
    spec["hostname"] = f"{name}-{index}"
    spec["dnsPolicy"] = "None"
    spec["dnsConfig"] = {"nameservers": [server], "searches": [domain]}
    for volume in spec["volumes"]:
        volume["name"] = f"{name}-{index}-{volume['name']}"
        if volume.pop("secret", None):
            volume["hostPath"] = {"path": authority, "type": "Directory"}
    for container in spec.get("initContainers", []) + spec["containers"]:
        container["image"] = image
        container["imagePullPolicy"] = "Never"
        for key in ("ports", "readinessProbe", "livenessProbe"):
            container.pop(key, None)
        for mount in container["volumeMounts"]:
            mount["name"] = f"{name}-{index}-{mount['name']}"
        for variable in container.get("env", []):
            variable["value"] = variables.get(variable["name"], variable.get("value"))
        container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
    pods.append(pod)
yaml.safe_dump_all(pods, sys.stdout)
