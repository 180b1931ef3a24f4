use std::fs;
use std::os::unix::fs::symlink;

use super::elf::sample::Sample;
use super::*;

/// System with only those files that the test puts into `root`.
fn system(root: &Path) -> LoaderFiles {
    LoaderFiles {
        cache: root.join("ld.so.cache"),
        config: root.join("ld.so.conf"),
        directories: vec![root.join("default")],
    }
}

fn environment(name: &str, value: &Path) -> Vec<(OsString, OsString)> {
    vec![(name.into(), value.into())]
}

/// Returns the paths of the libraries that `root` would load, in order.
fn walk(loader: &Loader, root: &Path) -> Vec<(String, Option<PathBuf>)> {
    let mut found = Vec::new();
    loader.walk(
        root,
        elf::read(root).unwrap(),
        |_| false,
        |dependency| {
            let path = dependency.found.map(|(path, _)| path.to_owned());
            found.push((dependency.name.to_string_lossy().into_owned(), path));
            SearchStep::Descend
        },
    );
    found
}

fn needs<'a>(needed: &'a [&'a str]) -> Sample<'a> {
    Sample {
        needed,
        ..Sample::default()
    }
}

#[test]
fn directories_are_searched_in_order_of_loader() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    for place in ["rpath", "path", "runpath", "conf", "default"] {
        Sample::default().write(root.join(place).join("liba.so"));
    }
    fs::create_dir(root.join("conf.d")).unwrap();
    fs::write(
        root.join("ld.so.conf"),
        "include conf.d/*.conf # more\nhwcap 0 nosegneg\n",
    )
    .unwrap();
    fs::write(
        root.join("conf.d/a.conf"),
        root.join("conf").to_str().unwrap(),
    )
    .unwrap();
    fs::write(root.join("conf.d/a.txt"), "/not/this").unwrap();
    let old = Sample {
        rpath: Some("$ORIGIN/rpath"),
        ..needs(&["liba.so"])
    }
    .write(root.join("old"));
    let new = Sample {
        rpath: Some("$ORIGIN/rpath"),
        runpath: Some("/none:${ORIGIN}/runpath"),
        ..needs(&["liba.so"])
    }
    .write(root.join("new"));

    let environment = environment("LD_LIBRARY_PATH", &root.join("path"));
    let found = |program: &Path| {
        let loader = Loader::new(&environment, &root, system(&root));
        let path = walk(&loader, program)[0].1.clone()?;
        let place = path.parent()?.file_name()?.to_string_lossy().into_owned();
        fs::remove_file(path).unwrap();
        Some(place)
    };
    assert_eq!(found(&old).as_deref(), Some("rpath"));
    assert_eq!(
        found(&new).as_deref(),
        Some("path"),
        "RPATH beside a RUNPATH does not count"
    );
    assert_eq!(found(&new).as_deref(), Some("runpath"));
    assert_eq!(found(&new).as_deref(), Some("conf"));
    assert_eq!(found(&new).as_deref(), Some("default"));
    assert_eq!(found(&new), None);
}

#[test]
fn rpath_is_inherited_by_dependencies_and_runpath_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    needs(&["libb.so"]).write(root.join("lib/liba.so"));
    Sample::default().write(root.join("lib/libb.so"));
    let loader = Loader::new(&[], &root, system(&root));
    let old = Sample {
        rpath: Some("$ORIGIN/lib"),
        ..needs(&["liba.so"])
    }
    .write(root.join("old"));
    let new = Sample {
        runpath: Some("$ORIGIN/lib"),
        ..needs(&["liba.so"])
    }
    .write(root.join("new"));
    let a = (String::from("liba.so"), Some(root.join("lib/liba.so")));
    let b = |found| (String::from("libb.so"), found);
    assert_eq!(
        walk(&loader, &old),
        [a.clone(), b(Some(root.join("lib/libb.so")))]
    );
    assert_eq!(walk(&loader, &new), [a, b(None)]);
}

#[test]
fn origin_is_real_directory_behind_link() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let sample = Sample {
        runpath: Some("$ORIGIN/../lib"),
        ..needs(&["liba.so"])
    };
    sample.write(root.join("opt/bin/app"));
    Sample::default().write(root.join("opt/lib/liba.so"));
    symlink("opt/bin/app", root.join("app")).unwrap();
    let loader = Loader::new(&[], &root, system(&root));
    let found = walk(&loader, &root.join("app"));
    assert_eq!(found[0].1, Some(root.join("opt/bin/../lib/liba.so")));
}

#[test]
fn foreign_or_damaged_libraries_are_skipped() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let foreign = Sample {
        machine: 0xfefe,
        ..Sample::default()
    };
    foreign.write(root.join("one/liba.so"));
    fs::create_dir(root.join("two")).unwrap();
    fs::write(root.join("two/liba.so"), "INPUT(liba.so.1)").unwrap();
    Sample::default().write(root.join("three/liba.so"));
    let app = Sample {
        runpath: Some("$ORIGIN/one:$ORIGIN/two:$ORIGIN/three"),
        ..needs(&["liba.so"])
    }
    .write(root.join("app"));
    let loader = Loader::new(&[], &root, system(&root));
    assert_eq!(walk(&loader, &app)[0].1, Some(root.join("three/liba.so")));
}

#[test]
fn cycle_of_libraries_ends_and_each_name_comes_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    needs(&["libb.so", "liba.so"]).write(root.join("default/liba.so"));
    needs(&["liba.so", "libb.so"]).write(root.join("default/libb.so"));
    let app = needs(&["liba.so"]).write(root.join("app"));
    let loader = Loader::new(&[], &root, system(&root));
    let names: Vec<_> = walk(&loader, &app)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["liba.so", "libb.so"]);
}

#[test]
fn preloaded_libraries_and_paths_with_slash_are_included() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    Sample::default().write(root.join("x/libmpi.so.40"));
    Sample::default().write(root.join("y/libz.so"));
    let app = needs(&["y/libz.so"]).write(root.join("app"));
    let environment = environment("LD_PRELOAD", &root.join("x/libmpi.so.40"));
    let loader = Loader::new(&environment, &root, system(&root));
    let found: Vec<_> = walk(&loader, &app)
        .into_iter()
        .map(|(_, path)| path)
        .collect();
    assert_eq!(
        found,
        [
            Some(root.join("x/libmpi.so.40")),
            Some(root.join("y/libz.so"))
        ]
    );
}

/// A cache in glibc's format with these names and paths.
fn cache(entries: &[(&str, &Path)]) -> Vec<u8> {
    let mut names = Vec::new();
    let table = 48 + 24 * entries.len();
    let mut rows = Vec::new();
    for (name, path) in entries {
        let key = table + names.len();
        names.extend(name.bytes().chain([0]));
        let value = table + names.len();
        names.extend(path.as_os_str().as_bytes().iter().copied().chain([0]));
        for field in [0x303, key as u32, value as u32, 0, 0, 0] {
            rows.extend(field.to_ne_bytes());
        }
    }
    let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
    bytes.extend((entries.len() as u32).to_ne_bytes());
    bytes.extend((names.len() as u32).to_ne_bytes());
    bytes.resize(48, 0);
    bytes.extend(rows);
    bytes.extend(names);
    bytes
}

#[test]
fn cache_is_read_in_both_formats_and_any_truncation() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let path = Sample::default().write(root.join("opt/liba.so.1"));
    let app = needs(&["liba.so.1"]).write(root.join("app"));
    let found = |bytes: &[u8]| {
        fs::write(root.join("ld.so.cache"), bytes).unwrap();
        let loader = Loader::new(&[], &root, system(&root));
        walk(&loader, &app).remove(0).1
    };
    let new = cache(&[("liba.so.11", &root.join("no")), ("liba.so.1", &path)]);
    assert_eq!(found(&new), Some(path.clone()));
    let mut both = b"ld.so-1.7.0\0\0\0\0\0".to_vec();
    both.extend(&new);
    assert_eq!(found(&both), Some(path));
    for length in 0..new.len() {
        assert_eq!(found(&new[..length]), None, "{length}");
    }
}

#[test]
fn cache_of_this_machine_agrees_with_ldd() {
    let output = std::process::Command::new("ldd").arg("/bin/ls").output();
    let output = output.expect("ldd belongs to the C library");
    let loader = Loader::new(&[], Path::new("/"), LoaderFiles::default());
    let found = walk(&loader, Path::new("/bin/ls"));
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let Some((name, rest)) = line.trim().split_once(" => ") else {
            continue;
        };
        let path = Path::new(rest.split(' ').next().unwrap())
            .canonicalize()
            .unwrap();
        let ours = found.iter().find(|(known, _)| known == name);
        let ours = ours.and_then(|(_, path)| path.as_ref()?.canonicalize().ok());
        assert_eq!(ours, Some(path), "{name}");
    }
}
