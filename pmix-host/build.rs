//! Sets `cfg` by whether the shim was built, and the symbols that the linker exports for libpmix.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(have_pmix)");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("DEP_WIREUP_SHIM_LIBRARY").is_some() {
        println!("cargo:rustc-cfg=have_pmix");
        // Functions of the C library that libpmix finds here instead: src/peer_filter.rs has accept, src/tcp_acks.rs read
        // and epoll_wait, src/cleanup_filter.rs opendir and unlink.
        let linker = std::env::var("RUSTC_LINKER").unwrap_or_default();
        let is_zig = linker
            .rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("zig"));
        if is_zig {
            // zig's linker takes no names. A release has few other symbols: it is one unit.
            println!("cargo:rustc-link-arg-bins=-rdynamic");
        } else {
            for function in ["accept", "read", "epoll_wait", "opendir", "unlink"] {
                println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={function}");
            }
        }
    }
}
