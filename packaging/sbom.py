"""Writes a bill of materials (CycloneDX) of the programs, from what cargo says that they are made of."""

import argparse
import json
import subprocess
import sys
import uuid

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

# The packages whose programs and libraries are installed.
INSTALLED = ("wireup", "wireup-agent", "wireup-impi", "wireup-impi-capi", "wireup-pmix-host", "wireup-shim")


def cargo(*words: str) -> str:
    """Returns what a command of cargo prints, without the network."""
    command = ["cargo", *words, "--locked", "--offline"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def linked(metadata: dict, target: str) -> dict[str, set[str]]:
    """Returns the packages that end up in the programs, each with those that it uses: neither tools of the build nor tests.

    `cargo metadata` has the features that tests need, so `cargo tree` says which packages are left without them.
    """
    installed = [word for name in INSTALLED for word in ("--package", name)]
    tree = cargo("tree", *installed, "--target", target, "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}")
    lines = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    kept = {
        package["id"] for package in metadata["packages"] if (package["name"], f"v{package['version']}") in lines
    }
    nodes = (node for node in metadata["resolve"]["nodes"] if node["id"] in kept)
    return {node["id"]: {dep["pkg"] for dep in node["deps"] if dep["pkg"] in kept and is_used(dep)} for node in nodes}


def is_used(dependency: dict) -> bool:
    """Whether it is one of the programs, and not of the build or of tests."""
    return any(kind["kind"] is None for kind in dependency["dep_kinds"])


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
    parser.add_argument("--target", required=True)
    args = parser.parse_args()
    version = args.version
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", args.target))
    packages = {package["id"]: package for package in metadata["packages"]}
    uses = linked(metadata, args.target)
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
