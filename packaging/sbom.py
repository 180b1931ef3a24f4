"""Writes a bill of materials (CycloneDX) of what `cargo metadata`, on standard input, says the programs are made of."""

import argparse
import json
import sys
import uuid

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

# The packages whose programs and libraries are installed.
INSTALLED = ("wireup", "wireup-agent", "wireup-impi", "wireup-impi-capi", "wireup-pmix-host", "wireup-shim")


def linked(metadata: dict) -> dict[str, set[str]]:
    """Returns the packages that end up in the programs, each with those that it uses: neither tools of the build nor tests."""
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found: dict[str, set[str]] = {}
    waiting = [id for id, name in names.items() if name in INSTALLED]
    while waiting:
        id = waiting.pop()
        if id in found:
            continue
        uses = (dep for dep in nodes[id]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"]))
        found[id] = {dep["pkg"] for dep in uses}
        waiting.extend(found[id])
    return found


def component(package: dict) -> Component:
    """Returns the entry of a package."""
    licence = package["license"]
    return Component(
        type=ComponentType.LIBRARY,
        name=package["name"],
        version=package["version"],
        bom_ref=f"{package['name']}@{package['version']}",
        purl=PackageURL("cargo", None, package["name"], package["version"]),
        licenses=[LicenseFactory().make_from_string(licence.replace("/", " OR "))] if licence else [],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    version = parser.parse_args().version
    metadata = json.load(sys.stdin)
    packages = {package["id"]: package for package in metadata["packages"]}
    uses = linked(metadata)
    components = {id: component(packages[id]) for id in uses}
    bom = Bom(components=components.values())
    bom.metadata.component = Component(type=ComponentType.APPLICATION, name="wireup", version=version, bom_ref="wireup")
    for id, used in uses.items():
        bom.register_dependency(components[id], [components[other] for other in used])
    bom.register_dependency(bom.metadata.component, [components[id] for id in uses if packages[id]["name"] in INSTALLED])
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    # Two runs of one commit are equal: neither the time nor a random number is in it.
    document["metadata"].pop("timestamp")
    names = "\n".join(sorted(entry["bom-ref"] for entry in document["components"]))
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, f"wireup {version}\n{names}").urn
    json.dump(document, sys.stdout, indent=2, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
