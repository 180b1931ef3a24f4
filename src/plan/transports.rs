//! Excludes Open MPI's transports for networks that a host does not have.
//!
//! Open MPI opens its components for fast networks before it searches for one, and closes
//! them if the host has none. This takes longer than the rest of `MPI_Init`: closing BTL `ofi`
//! sleeps for a second (5.0.11, `mca_btl_ofi_component_close`), the library below MTL `psm`
//! compares clocks for 0.2 s (4.1, `libpsm_infinipath`), and libfabric searches every interface.
//! Measured: docs/mpi-settings.md#absent-networks.
//!
//! If the kernel has no such network, wireup excludes these components. Settings of the user or the
//! administrator take precedence: they are kept, and their lists of exclusions are extended.
//!
//! For a program whose libraries cannot be determined, such as a Python script, the settings must be right for each
//! Open MPI that it may load.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::inspect::DetectionResult;
use crate::inspect::ldso::Loader;
use crate::plan::{Variable, loaded_openmpi};
use wireup_sys::devices;

/// Frameworks, and their components that only work on a fast network.
const LEFT_OUT: [(&str, &[&str]); 2] = [("btl", &["ofi"]), ("mtl", &["ofi", "psm", "psm2"])];

/// Prefix of variables that set parameters of Open MPI.
const PARAMETER: &str = "OMPI_MCA_";

/// File with parameters for all users, in the configuration directory.
const FOR_ALL: &str = "openmpi-mca-params.conf";

/// File with the parameters of a user, in the home directory.
const FOR_USER: &str = ".openmpi/mca-params.conf";

/// Directories in which distributions have the configuration of an Open MPI below `/usr`.
const OF_SYSTEM: [&str; 4] = [
    "/etc/openmpi",
    "/etc",
    "/etc/openmpi-x86_64",
    "/etc/openmpi-aarch64",
];

/// Parameters of Open MPI, by name.
type Parameters = BTreeMap<String, String>;

/// Variables for the ranks of a program on this host, if it has no fast network. `env` are the variables that the ranks
/// have already, and `loader` is their dynamic loader.
pub fn left_out(detected: &DetectionResult, loader: &Loader, env: &[Variable]) -> Vec<Variable> {
    let libraries = loaded_openmpi::libraries(detected, loader, env);
    if libraries.is_empty() || !devices::without_fast_network(Path::new(devices::SYS)) {
        return Vec::new();
    }
    // If the administrator's file is not found, its lists cannot be extended, and no variable is set.
    let in_files = libraries.iter().map(|libmpi| in_files(libmpi, env));
    let in_files: Option<Vec<Parameters>> = in_files.collect();
    let chosen = choose(&in_files.unwrap_or_default(), env).into_iter();
    chosen
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// Parameters in the files of the Open MPI to which a library belongs; `None` if the
/// administrator's file is not found.
fn in_files(libmpi: &Path, env: &[Variable]) -> Option<Parameters> {
    let for_all = configuration(libmpi)?;
    let home = env.iter().find(|(name, _)| name == "HOME");
    let for_user = home.map(|(_, home)| Path::new(home).join(FOR_USER));
    let mut in_files = Parameters::new();
    // Parameters of the user replace those for all users.
    for file in [Some(for_all), for_user].into_iter().flatten() {
        let Ok(text) = std::fs::read(&file) else {
            continue;
        };
        in_files.extend(parameters(&String::from_utf8_lossy(&text)));
    }
    Some(in_files)
}

/// Finds the administrator's file of the Open MPI to which a library belongs.
fn configuration(libmpi: &Path) -> Option<PathBuf> {
    let real = libmpi.canonicalize().ok()?;
    let above = real
        .ancestors()
        .skip(1)
        .filter(|dir| dir.parent().is_some());
    let own = above.map(|prefix| prefix.join("etc"));
    let system = OF_SYSTEM.iter().map(PathBuf::from);
    let system = system.filter(|_| real.starts_with("/usr"));
    own.chain(system)
        .map(|dir| dir.join(FOR_ALL))
        .find(|file| file.is_file())
}

/// Parses the parameters of a file: a line for each, `name = value`.
fn parameters(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    let lines = text.lines().map(|line| match line.find('#') {
        Some(comment) => &line[..comment],
        None => line,
    });
    lines.filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        let value = value.trim().trim_matches(['"', '\'']);
        Some((name.trim().to_owned(), value.to_owned()))
    })
}

/// Chooses the variables by those that are set already, and by the parameters in the files of one or several Open MPIs.
fn choose(in_files: &[Parameters], env: &[Variable]) -> Vec<(String, String)> {
    let text = |text: &OsStr| text.to_string_lossy().into_owned();
    let in_env: Parameters = env
        .iter()
        .filter_map(|(name, value)| {
            let name = text(name);
            Some((name.strip_prefix(PARAMETER)?.to_owned(), text(value)))
        })
        .collect();
    let all_parameters = || in_files.iter().flatten().chain(&in_env);
    // The user names other parameter files, or chooses among the providers of libfabric.
    let elsewhere = in_env.keys().any(|name| name.starts_with("mca_base_"))
        || all_parameters().any(|(name, _)| name.starts_with("opal_common_ofi_"))
        || env.iter().any(|(name, _)| name == "FI_PROVIDER");
    if elsewhere || in_files.is_empty() {
        return Vec::new();
    }
    let left_out = LEFT_OUT.iter().filter_map(|(framework, components)| {
        let is_selected = all_parameters().any(|(name, value)| {
            let component = name
                .strip_prefix(framework)
                .and_then(|rest| rest.strip_prefix('_'));
            let settles =
                |component: &str| components.iter().any(|known| component.starts_with(known));
            // PML cm uses an MTL.
            component.is_some_and(settles)
                || (*framework == "mtl" && name == "pml" && !value.starts_with('^'))
        });
        if is_selected || in_env.contains_key(*framework) {
            return None;
        }
        let lists = in_files.iter().map(|files| files.get(*framework));
        let list = leave_out(lists, components)?;
        Some((format!("{PARAMETER}{framework}"), list))
    });
    left_out.collect()
}

/// List of exclusions that contains all of these lists and `components`; `None` if one of the lists names components
/// to use, or if each contains `components` already.
fn leave_out<'a>(
    lists: impl Iterator<Item = Option<&'a String>>,
    components: &[&'a str],
) -> Option<String> {
    let (mut all, mut news) = (Vec::<&str>::new(), false);
    for list in lists {
        let old: Vec<&str> = match list.map(String::as_str) {
            None | Some("") => Vec::new(),
            Some(list) => list.strip_prefix('^')?.split(',').collect(),
        };
        news |= components.iter().any(|component| !old.contains(component));
        all.extend(old);
    }
    all.extend(components);
    let mut names = BTreeSet::new();
    all.retain(|component| names.insert(*component));
    news.then(|| format!("^{}", all.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn variables(env: &[(&str, &str)]) -> Vec<Variable> {
        let owned = |(name, value): &(&str, &str)| (name.into(), value.into());
        env.iter().map(owned).collect()
    }

    /// Chosen settings as `btl` and `mtl` with their values.
    fn chosen(file: &str, env: &[(&str, &str)]) -> Vec<String> {
        let chosen = choose(&[parameters(file).collect()], &variables(env));
        let short =
            |(name, value): &(String, String)| format!("{}={value}", &name[PARAMETER.len()..]);
        chosen.iter().map(short).collect()
    }

    #[test]
    fn transports_for_fast_networks_are_excluded() {
        assert_eq!(chosen("", &[]), ["btl=^ofi", "mtl=^ofi,psm,psm2"]);
        assert_eq!(
            chosen(
                "",
                &[
                    ("OMPI_MCA_btl_tcp_if_include", "lo"),
                    ("OMPI_MCA_pml", "^ucx")
                ]
            ),
            ["btl=^ofi", "mtl=^ofi,psm,psm2"]
        );
    }

    #[test]
    fn exclusions_of_administrator_are_kept() {
        let debian = "btl_base_warn_component_unused=0\nmtl = ^ofi # no\n# btl = self\nbtl = ^uct,openib,ofi\npml = ^ucx\n";
        assert_eq!(chosen(debian, &[]), ["mtl=^ofi,psm,psm2"]);
        assert_eq!(
            chosen("btl = '^uct'\nmtl=", &[]),
            ["btl=^uct,ofi", "mtl=^ofi,psm,psm2"]
        );
    }

    #[test]
    fn chosen_transport_is_unchanged() {
        assert_eq!(chosen("btl = self,sm,ofi\n", &[]), ["mtl=^ofi,psm,psm2"]);
        assert_eq!(chosen("pml = cm\n", &[]), ["btl=^ofi"]);
        assert_eq!(
            chosen("mtl_ofi_provider_include = tcp\n", &[]),
            ["btl=^ofi"]
        );
        assert_eq!(
            chosen("", &[("OMPI_MCA_btl", "^tcp")]),
            ["mtl=^ofi,psm,psm2"]
        );
        assert_eq!(
            chosen("", &[("OMPI_MCA_btl_ofi_mode", "1")]),
            ["mtl=^ofi,psm,psm2"]
        );
        assert_eq!(chosen("", &[("OMPI_MCA_pml", "cm")]), ["btl=^ofi"]);
        for variable in [
            "FI_PROVIDER",
            "OMPI_MCA_opal_common_ofi_provider_include",
            "OMPI_MCA_mca_base_param_files",
        ] {
            assert!(chosen("", &[(variable, "tcp")]).is_empty(), "{variable}");
        }
        assert!(chosen("opal_common_ofi_provider_include = tcp", &[]).is_empty());
    }

    #[test]
    fn transport_excluded_by_one_mpi_is_opened_by_none() {
        let of = |files: [&str; 2]| {
            let files = files.map(|file| parameters(file).collect());
            let chosen = choose(&files, &[]);
            chosen
                .into_iter()
                .map(|(_, value)| value)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(["btl=^uct,ofi", ""]), ["^uct,ofi", "^ofi,psm,psm2"]);
        assert_eq!(of(["btl=self", "mtl=^psm3"]), ["^psm3,ofi,psm,psm2"]);
        assert!(choose(&[], &[]).is_empty(), "there is none");
    }

    #[test]
    fn files_are_looked_for() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let libmpi = root.join("lib/libmpi.so.40");
        for dir in ["lib", "etc", "home/.openmpi"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        fs::write(&libmpi, "").unwrap();
        let look = |env: &[(&str, &str)]| {
            let env = variables(env);
            let in_files = in_files(&libmpi, &env);
            in_files.map(|in_files| choose(&[in_files], &env))
        };
        assert_eq!(look(&[]), None, "the administrator's file is not known");
        fs::write(root.join("etc").join(FOR_ALL), "btl = ^uct\nmtl = ofi\n").unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(look(&[]), Some(vec![pair("OMPI_MCA_btl", "^uct,ofi")]));
        let home = root.join("home");
        fs::write(home.join(FOR_USER), "mtl = ^psm3\n").unwrap();
        let both = look(&[("HOME", home.to_str().unwrap())]);
        let mtl = pair("OMPI_MCA_mtl", "^psm3,ofi,psm,psm2");
        assert_eq!(both, Some(vec![pair("OMPI_MCA_btl", "^uct,ofi"), mtl]));
    }
}
