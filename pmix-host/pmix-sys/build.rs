//! Declares the functions that the sidecar calls, if the shim was built.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rustc-check-cfg=cfg(have_pmix)");
    println!("cargo:rerun-if-changed=../../shim/host.h");
    let Some(includes) = env::var_os("DEP_WIREUP_SHIM_PMIX_INCLUDES") else {
        return;
    };
    println!("cargo:rustc-cfg=have_pmix");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // A list of none is an empty path: the compiler finds the headers itself.
    let includes: Vec<PathBuf> = env::split_paths(&includes)
        .filter(|dir| !dir.as_os_str().is_empty())
        .collect();
    let builder = || {
        bindgen::Builder::default()
            .header("../../shim/host.h")
            .clang_args(includes.iter().map(|dir| format!("-I{}", dir.display())))
            .opaque_type("pmix_(info|proc|value|byte_object|server_module.*)")
            .opaque_type("pmix_(info|proc|value|byte_object|server_module)_t")
            .dynamic_link_require_all(true)
            .layout_tests(false)
            .wrap_unsafe_ops(true)
            .rust_edition(bindgen::RustEdition::Edition2024)
    };
    let pmix = builder()
        .dynamic_library_name("LibPmix")
        .allowlist_function("PMIx_Get_version")
        .allowlist_function("PMIx_server_(init|finalize|register_nspace|deregister_nspace)")
        .allowlist_function(
            "PMIx_server_(register_client|deregister_client|setup_fork|dmodex_request)",
        )
        .allowlist_function("PMIx_(Parse_cpuset_string|Cpuset_destruct|Compute_distances)")
        .allowlist_function("PMIx_server_generate_locality_string")
        .allowlist_function("PMIx_Notify_event")
        .allowlist_function("PMIx_server_IOF_deliver")
        .allowlist_var("PMIX_DEVTYPE_(GPU|NETWORK|OPENFABRICS)")
        .allowlist_type("pmix_(info|proc|byte_object|server_module|status)_t");
    let shim = builder()
        .dynamic_library_name("Shim")
        .allowlist_function("wireup_.*")
        .blocklist_type("pmix_.*");
    for (builder, file) in [(pmix, "pmix.rs"), (shim, "shim.rs")] {
        builder
            .generate()
            .expect("the shim was compiled against the same headers")
            .write_to_file(out.join(file))
            .expect("OUT_DIR is writable");
    }
}
