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

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")
    # libclang, by which bindgen reads the headers.
    depends_on("llvm+clang", type="build")
    depends_on("pkgconfig", type="build")
    # protoc, for the links of schedulers.
    depends_on("protobuf", type="build")
    # Headers only: the library is the one that a program brings.
    depends_on("pmix@4.2.2:", type="build", when="+pmix")
    depends_on("hwloc@2.1:", type="run")

    def setup_build_environment(self, env):
        env.set("LIBCLANG_PATH", self.spec["llvm"].prefix.lib)
        if self.spec.satisfies("+pmix"):
            env.set("PMIX_INCLUDE_DIR", self.spec["pmix"].prefix.include)

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
        install(join_path(built, "libwireup_impi.so"), prefix.lib)
        install(join_path("impi", "capi", "wireup-impi.h"), prefix.include)
        wireup("man", "--dir", join_path(prefix.share, "man", "man1"))

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.wireup)("run", "-n", "1", "true")
