//! Tells the code whether the shim was built.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(have_pmix)");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("DEP_WIREUP_SHIM_LIBRARY").is_some() {
        println!("cargo:rustc-cfg=have_pmix");
    }
}
