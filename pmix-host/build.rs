//! Tells the code whether the shim was built, and the linker what libpmix shall find.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(have_pmix)");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("DEP_WIREUP_SHIM_LIBRARY").is_some() {
        println!("cargo:rustc-cfg=have_pmix");
        // libpmix's call of accept(2) comes to us: src/peers.rs.
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=accept");
        // And of read(2) and epoll_wait(2): src/acks.rs.
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=read");
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=epoll_wait");
        // And of opendir(3) and unlink(2): src/links.rs.
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=opendir");
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=unlink");
    }
}
