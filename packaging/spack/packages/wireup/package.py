# Repository of one recipe, which was never run. From a clone of the sources:
#
#   spack repo add packaging/spack
#   spack dev-build wireup@main

from os.path import abspath, dirname

from spack.package import *


class Wireup(Package):
    """Launches unmodified MPI programs and serves their ranks PMI-1, PMI-2 and PMIx."""

    # The clone in which `spack dev-build` runs: there is no public address.
    git = "file://" + dirname(dirname(dirname(dirname(dirname(abspath(__file__))))))

    license("Apache-2.0 OR MIT")

    version("main", branch="main")

    variant("pmix", default=True, description="Serve PMIx, for Open MPI")
    variant("impi", default=False, description="Run MPI programs unchanged in IMPI jobs")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    # libclang, by which bindgen reads the headers.
    depends_on("llvm+clang", type="build")
    depends_on("pkgconfig", type="build")
    # protoc, for the links of schedulers.
    depends_on("protobuf", type="build")
    # Headers only: the library is the one that a program brings.
    depends_on("pmix@4.2.2:", type="build", when="+pmix")
    # Headers only, of each binary interface; MPICH has that of the standard one.
    depends_on("mpich@5:", type="build", when="+impi")
    depends_on("openmpi@4:", type="build", when="+impi")
    depends_on("hwloc@2.1:", type="run")

    def setup_build_environment(self, env):
        env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)
        if self.spec.satisfies("+pmix"):
            env.set("PMIX_INCLUDE_DIR", self.spec["pmix"].prefix.include)
        if self.spec.satisfies("+impi"):
            env.set("WIREUP_MPICH_INCLUDE_DIR", self.spec["mpich"].prefix.include)
            env.set("WIREUP_MPI_ABI_INCLUDE_DIR", self.spec["mpich"].prefix.include)
            env.set("WIREUP_OPENMPI_INCLUDE_DIR", self.spec["openmpi"].prefix.include)

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("build", "--release", "--locked", "--workspace")
        built = join_path(self.stage.source_path, "target", "release")
        wireup = Executable(join_path(built, "wireup"))
        private = join_path(prefix.lib, "wireup")
        mkdirp(prefix.bin, private, prefix.include)
        install(wireup.path, prefix.bin)
        for name in ("wireup-agent", "wireup-impi", "wireup-pmix-host"):
            install(join_path(built, name), private)
        if spec.satisfies("+pmix"):
            install(join_path(built, "libwireup-pmix-host.so"), private)
        libraries = ["libwireup_impi.so"]
        if spec.satisfies("+impi"):
            libraries += [f"libwireup_impi_{interface}.so" for interface in ("mpich", "openmpi", "abi")]
        for library in libraries:
            install(join_path(built, library), prefix.lib)
        install(join_path("impi", "capi", "wireup-impi.h"), prefix.include)
        wireup("man", "--dir", join_path(prefix.share, "man", "man1"))

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.wireup)("run", "-n", "1", "true")
