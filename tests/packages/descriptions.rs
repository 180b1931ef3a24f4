//! Files about the packages that no system executes: the bill of materials, and the recipe of Spack.

use std::fs;
use std::process::Command;

use serde_json::Value;
use wireup_test_support::repository;

use super::{Packages, VERSION, expect};

#[test]
fn recipe_of_spack_installs_all_parts() {
    let mut python = Command::new("python3");
    python.arg(repository().join("tests/packages/spack_recipe.py"));
    let recipe = repository().join("packaging/spack/packages/wireup/package.py");
    let installed = expect(python.arg(recipe));
    let parts = "libwireup-pmix-host.so libwireup_impi.so libwireup_impi_abi.so libwireup_impi_mpich.so \
                 libwireup_impi_openmpi.so wireup wireup-agent wireup-impi wireup-impi.h wireup-pmix-host\n";
    assert_eq!(installed, parts);
}

#[test]
fn bill_of_materials_lists_packages_of_programs() {
    let packages = Packages::make("sbom");
    let text = fs::read_to_string(&packages.files(".cdx.json")[0]).unwrap();
    let bill: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["metadata"]["component"]["version"], VERSION);
    let components = bill["components"].as_array().unwrap();
    let lock = fs::read_to_string(repository().join("Cargo.lock")).unwrap();
    for component in components {
        let [name, version] = ["name", "version"].map(|key| component[key].as_str().unwrap());
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&entry), "{entry}");
        assert!(component["licenses"][0].is_object(), "{component}");
    }
    let names: Vec<_> = components
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    for linked in ["rustix", "tonic", "wireup-core"] {
        assert!(names.contains(&linked), "{linked}: {names:?}");
    }
    // Tests and builds alone use these.
    for other in ["libtest-mimic", "bindgen"] {
        assert!(!names.contains(&other), "{other}");
    }
}
