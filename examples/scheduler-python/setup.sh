#!/bin/sh
# Makes the modules that scheduler.py imports: an environment with grpcio, and what grpcio-tools
# makes of the proto files. Usage: setup.sh DIR; then run DIR/bin/python scheduler.py
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python3 -m venv "$1"
"$1/bin/pip" install --quiet --disable-pip-version-check grpcio grpcio-tools
site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$1/bin/python" -m grpc_tools.protoc -I "$here/../../proto" \
    --python_out="$site" --grpc_python_out="$site" \
    wireup/v1/types.proto wireup/v1/node_agent.proto
