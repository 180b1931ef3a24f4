use super::*;

fn named(names: &[&str]) -> Vec<RankHost> {
    let names = names.iter().map(|name| (*name).to_owned());
    names.map(RankHost::Named).collect()
}

fn read(text: &str) -> Result<Rankfile, String> {
    Rankfile::parse(text.as_bytes()).map_err(|error| error.to_string())
}

fn units(package: Option<u32>, first: u32, last: u32) -> RankfileCpus {
    RankfileCpus {
        package,
        units: Some((first, last)),
    }
}

#[test]
fn openmpi_rankfile_has_line_for_each_rank() {
    let file = read(
        "# the order of lines does not matter\n\
         rank 2=+n1 slot=1-2,5\n\
         rank 0=aa slot=1:0-2   # the second package\n\n\
         rank 1 = user@bb.example slot = 0:0,1\n\
         rank 3=bb slots=P1;0:*;s0:3,1:4\n",
    )
    .unwrap();
    let mut hosts = named(&["aa", "bb.example", "", "bb"]);
    hosts[2] = RankHost::Numbered(1);
    assert_eq!(file.hosts, hosts);
    let slots = file.slots.as_ref().unwrap();
    assert_eq!(slots[0], [units(Some(1), 0, 2)]);
    assert_eq!(slots[1], [units(Some(0), 0, 0), units(Some(0), 1, 1)]);
    assert_eq!(slots[2], [units(None, 1, 2), units(None, 5, 5)]);
    let whole = |package| RankfileCpus {
        package: Some(package),
        units: None,
    };
    let last = [
        whole(1),
        whole(0),
        units(Some(0), 3, 3),
        units(Some(1), 4, 4),
    ];
    assert_eq!(slots[3], last);
    assert_eq!(
        file.named_hosts(),
        [("aa", 1), ("bb.example", 1), ("bb", 1)]
    );
    let runs = file.runs(4, &["aa", "bb.example"], &[]).unwrap();
    assert_eq!(runs, [(NodeId(0), 1), (NodeId(1), 3)]);
}

#[test]
fn slurm_hostfile_has_host_for_each_rank() {
    let file = read("n1\nn2*2\nn1*1,n3\nm[1-2]\n").unwrap();
    let hosts = named(&["n1", "n2", "n2", "n1", "n3", "m1", "m2"]);
    assert_eq!((file.hosts.clone(), file.slots.clone()), (hosts, None));
    let runs = file.runs(5, &["n1", "n2", "n3"], &[]).unwrap();
    let nodes = runs.iter().map(|(node, count)| (node.0, *count));
    assert_eq!(nodes.collect::<Vec<_>>(), [(0, 1), (1, 2), (0, 1), (2, 1)]);
    let here = read("localhost*3").unwrap();
    let runs = here.runs(2, &["login.example"], &["localhost"]);
    assert_eq!(runs.unwrap(), [(NodeId(0), 2)]);
}

#[test]
fn rankfile_error_names_line() {
    let wrong = |text: &str, needed: &str| {
        let error = read(text).unwrap_err();
        assert!(error.contains(needed), "{text:?}: {error}");
    };
    wrong("# nothing\n\n", "no rank in the file");
    wrong(
        "rank 0=a slot=0\nrank 0=b slot=1\n",
        "line 2: rank 0 has two lines",
    );
    wrong("rank 0=a slot=0\nrank 2=b slot=1\n", "no line for rank 1");
    wrong("rank 0=a\n", "line 1: rank 0 has no cores");
    wrong("rank 0=a slot=\n", "invalid line");
    wrong("rank 0 a slot=1\n", "invalid line");
    for list in ["x", "3-1", "0:", "1:x", "0-", "*", ":1", "99999", "0,,1"] {
        wrong(&format!("rank 0=a slot={list}\n"), "use numbers and ranges");
    }
    wrong("n1\nn2*0\n", "line 2: ");
    wrong("n_\u{e9}\n", "use letters, digits");
    wrong("n1*9999999999,n2\n", "line 1: ");
    let file = read("n1\nn2\n").unwrap();
    let few = file.runs(3, &["n1", "n2"], &[]).unwrap_err().to_string();
    assert!(
        few.contains("2 ranks in the file, but the programs have 3"),
        "{few}"
    );
    let other = file.runs(2, &["n1", "m"], &[]).unwrap_err().to_string();
    assert!(
        other.contains("rank 1: host n2 is not in the launch (n1,m)"),
        "{other}"
    );
}
