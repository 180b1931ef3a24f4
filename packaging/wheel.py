"""Packs a tree of bin, lib and share as a wheel. Two runs make the same bytes: the times are SOURCE_DATE_EPOCH's.

The programs lie in an environment as below any other prefix: bin/wireup, and its parts in lib/wireup. Beside them is the
Python package.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import stat
import time
import zipfile

# What only a prefix of its own has a use for.
LEFT_OUT = ("share/doc", "share/modulefiles")

METADATA = """\
Metadata-Version: 2.4
Name: wireup
Version: {version}
Summary: Launches unmodified MPI programs and serves their ranks PMI-1, PMI-2 and PMIx
License-Expression: Apache-2.0 OR MIT
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.9
Keywords: MPI,PMIx,PMI,HPC,launcher,Jupyter
Classifier: Environment :: Console
Classifier: Intended Audience :: Science/Research
Classifier: Operating System :: POSIX :: Linux
Classifier: Framework :: Jupyter
Classifier: Programming Language :: Python :: 3
Classifier: Programming Language :: Rust
Classifier: Topic :: System :: Distributed Computing
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

"""

WHEEL = """\
Wheel-Version: 1.0
Generator: wireup ({version})
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""


def members(tree: pathlib.Path, version: str):
    """Yields the name in the wheel, the path and whether it is executable, of every file of the tree."""
    data = f"wireup-{version}.data"
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if not path.is_file() or any(name.startswith(left + "/") for left in LEFT_OUT):
            continue
        # pip makes scripts executable itself; the rest keeps its mode.
        place = f"scripts/{path.name}" if name.startswith("bin/") else f"data/{name}"
        yield f"{data}/{place}", path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR)


def modules(package: pathlib.Path):
    """Yields the same of every file of the Python package."""
    for path in sorted(package.rglob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            yield path.relative_to(package.parent).as_posix(), path.read_bytes(), False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("version", "platform"):
        parser.add_argument(f"--{option}", required=True)
    for option in ("tree", "package", "readme", "output"):
        parser.add_argument(f"--{option}", required=True, type=pathlib.Path)
    args = parser.parse_args()
    info = f"wireup-{args.version}.dist-info"
    doc = args.tree / "share/doc/wireup"
    description = METADATA.format(version=args.version) + args.readme.read_text(encoding="utf-8")
    files = [*modules(args.package), *members(args.tree, args.version)]
    files += [(f"{info}/licenses/{name}", (doc / name).read_bytes(), False) for name in ("LICENSE-APACHE", "LICENSE-MIT")]
    files.append((f"{info}/METADATA", description.encode(), False))
    files.append((f"{info}/WHEEL", WHEEL.format(version=args.version, platform=args.platform).encode(), False))
    # ZIP knows no time before 1980.
    moment = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]
    record = f"{info}/RECORD"
    lines = []
    wheel = args.output / f"wireup-{args.version}-py3-none-{args.platform}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content, is_executable in files:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}")
            write(archive, name, content, moment, is_executable)
        lines.append(f"{record},,")
        write(archive, record, ("\n".join(lines) + "\n").encode(), moment, False)


def write(archive: zipfile.ZipFile, name: str, content: bytes, moment: tuple, is_executable: bool) -> None:
    """Adds a file with a mode and a time that do not depend on where it was."""
    entry = zipfile.ZipInfo(name, moment)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = (stat.S_IFREG | (0o755 if is_executable else 0o644)) << 16
    archive.writestr(entry, content)


if __name__ == "__main__":
    main()
