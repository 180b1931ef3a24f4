"""Executes the recipe of Spack's package wireup without Spack; prints the files that it installs.

    spack_recipe.py RECIPE
"""

import sys
import types


class Package:
    """Base of recipes."""


class Path(str):
    """A path with those below it as attributes."""

    def __getattr__(self, name):
        return Path(self + "/" + name)


class Executable:
    """A program that does nothing."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *words):
        pass


def load(recipe, installed):
    """Returns an object of the recipe's class; `installed` gets the names of the files that it installs."""
    spack = types.ModuleType("spack.package")
    for name in ("depends_on", "license", "mkdirp", "variant", "version"):
        setattr(spack, name, lambda *words, **settings: None)
    for name in ("on_package_attributes", "run_after"):
        setattr(spack, name, lambda *words, **settings: lambda function: function)
    spack.Executable = Executable
    spack.Package = Package
    spack.install = lambda path, place: installed.append(path.rpartition("/")[2])
    spack.join_path = lambda *parts: "/".join(parts)
    spack.which = lambda *words, **settings: Executable(words[0])
    sys.modules["spack"] = types.ModuleType("spack")
    sys.modules["spack.package"] = spack
    names = {"__file__": recipe}
    with open(recipe, encoding="utf-8") as file:
        exec(compile(file.read(), recipe, "exec"), names)
    return names["Wireup"]()


def main(recipe):
    installed = []
    package = load(recipe, installed)
    package.stage = types.SimpleNamespace(source_path="source")
    package.install(types.SimpleNamespace(satisfies=lambda spec: True), Path("prefix"))
    print(*sorted(installed))


main(sys.argv[1])
