//! Plans of jobs on several hosts: made by the launcher, resolved by the nodes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;
use crate::inspect::DetectionReason;
use crate::inspect::program::Kind;
use wireup_core::job::hosts::{HostList, merge};
use wireup_core::job::spec::{AppRequest, InterfaceChoice, LayoutSpec};

/// Request for one program on these hosts.
pub(crate) fn spec(hosts: &str, program: &Path) -> JobSpec {
    let HostList(entries) = hosts.parse().unwrap();
    JobSpec {
        layout: LayoutSpec {
            hosts: merge(entries).unwrap(),
            ..LayoutSpec::default()
        },
        ..JobSpec::from_apps(vec![app(program)])
    }
}

fn app(program: &Path) -> AppRequest {
    AppRequest {
        argv: vec![program.into(), "x".into()],
        ..AppRequest::default()
    }
}

pub(crate) fn plan(spec: JobSpec) -> HostPlan {
    HostPlan::new(spec, Nspace::new("job").unwrap(), 1 << 20, None).unwrap()
}

/// Plan that a node makes from the launcher's, with `cwd` as the working directory.
fn there(plan: &HostPlan, node: u32, cwd: &Path, own: &[(&str, &str)]) -> Result<HostPlan, String> {
    let message = (&plan.job_plan, &plan.spec, plan.inheritance.travelling());
    let body = wireup_core::link::encode(&message);
    let (decided, spec, inheritance) =
        wireup_core::link::decode::<(JobPlan, JobSpec, InheritedContext)>(&body).unwrap();
    let own = own.iter().map(|(name, value)| (name.into(), value.into()));
    let mut inheritance = inheritance.on_node(own);
    inheritance.cwd = cwd.into();
    let plan = HostPlan::resolve(decided, spec, inheritance, NodeId(node), &[], 1 << 20, None);
    plan.map_err(|failure| failure.to_string())
}

/// Directory with a program.
fn site() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("app");
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn program_present_only_on_hosts_is_found_there() {
    let site = site();
    let mut spec = spec("n1:2,n2:2", Path::new("./app"));
    spec.layout.oversubscribe = true;
    let plan = plan(spec);
    assert_eq!(plan.apps[0].program.kind(), &Kind::Elsewhere);
    assert_eq!(plan.apps[0].detected.why, DetectionReason::NotHere);
    assert!(plan.offer.pmi && plan.offer.pmix && plan.sidecar_files.is_none());
    let mut none = plan.spec.clone();
    none.interface.pmi = InterfaceChoice::Pmi1;
    let plan = self::plan(none);
    let node = there(
        &plan,
        1,
        site.path(),
        &[("TMPDIR", "/tmp/own"), ("LANG", "no")],
    )
    .unwrap();
    let app = &node.apps[0];
    assert_eq!(app.program.path(), site.path().join("./app"));
    assert_eq!(app.cwd.as_deref(), Some(site.path()));
    assert_eq!(app.settings.umask, plan.inheritance.umask);
    assert_eq!(node.job, plan.job);
    let value = |name: &str| {
        let found = app.env.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    assert_eq!(value("TMPDIR"), Some("/tmp/own".into()));
    assert_eq!(value("PATH"), std::env::var_os("PATH"));
    assert_ne!(value("LANG"), Some("no".into()));
}

#[test]
fn missing_file_on_host_is_reported_with_remedy() {
    let site = site();
    let refused = |change: &dyn Fn(&mut JobSpec)| {
        let mut spec = spec("n1:1,n2:1", Path::new("./app"));
        spec.interface.pmi = InterfaceChoice::None;
        change(&mut spec);
        let plan = plan(spec);
        there(&plan, 1, site.path(), &[]).unwrap_err()
    };
    let dir = site.path().display();
    assert_eq!(
        refused(&|spec| spec.apps[0].argv[0] = "./gone".into()),
        format!(
            "program \"./gone\" not found: {dir}/gone does not exist; copy it to the host, or to a \
             file system of all hosts, or let wireup copy it (--stage)"
        )
    );
    assert_eq!(
        refused(&|spec| spec.apps[0].wdir = Some("none".into())),
        format!(
            "working directory {dir}/none: No such file or directory; create it \
             on the host, or choose another with --wdir"
        )
    );
    let wrapped = refused(&|spec| {
        let command = "./gdb --args".into();
        spec.apps[0].wrap = Some(wireup_core::job::spec::WrapSpec {
            command,
            ranks: None,
        });
    });
    assert!(
        wrapped.starts_with("--wrap: program \"./gdb\" not found"),
        "{wrapped}"
    );
    let ranks = SlotLimits::detect().count() + 1;
    let full = refused(&|spec| {
        spec.layout.hosts[1].slots = None;
        spec.apps[0].count = Some(ranks + 1);
    });
    assert!(
        full.starts_with(&format!("{ranks} ranks do not fit in")),
        "{full}"
    );
    assert!(full.ends_with("or name the host as NAME:SLOTS"), "{full}");
}

#[test]
fn host_resolves_nothing_that_its_ranks_do_not_run() {
    let site = site();
    let mut spec = spec("n1:1,n2:1,n3:1", Path::new("./gone"));
    spec.interface.pmi = InterfaceChoice::Pmi1;
    spec.apps.push(app(Path::new("./app")));
    let plan = plan(spec);
    let node = there(&plan, 1, site.path(), &[]).unwrap();
    assert_eq!(node.apps[0].program.kind(), &Kind::Elsewhere);
    assert_ne!(node.apps[1].program.kind(), &Kind::Elsewhere);
    let idle = there(&plan, 2, site.path(), &[]).unwrap();
    assert_eq!(idle.apps[1].program.kind(), &Kind::Elsewhere);
    assert!(
        there(&plan, 0, site.path(), &[])
            .unwrap_err()
            .contains("./gone")
    );
}

#[test]
fn launcher_refuses_options_no_host_could_accept() {
    let refused = |change: &dyn Fn(&mut JobSpec)| {
        let mut spec = spec("n1:1,n2:1", Path::new("./app"));
        change(&mut spec);
        HostPlan::new(spec, Nspace::new("job").unwrap(), 1 << 20, None)
            .unwrap_err()
            .to_string()
    };
    let wrapped = refused(&|spec| {
        spec.apps[0].wrap = Some(wireup_core::job::spec::WrapSpec {
            command: "perf '".into(),
            ranks: None,
        });
    });
    assert!(wrapped.contains("a quote is not closed"), "{wrapped}");
    let full = refused(&|spec| spec.apps[0].count = Some(3));
    assert!(
        full.starts_with("3 ranks do not fit in 2 slots (1 on n[1-2])"),
        "{full}"
    );
}

#[test]
fn inconsistent_description_is_refused() {
    let plan = plan(spec("n1:1,n2:1", Path::new("./app")));
    let with = |change: &dyn Fn(&mut JobPlan, &mut JobSpec), node| {
        let (mut decided, mut spec) = (plan.job_plan.clone(), plan.spec.clone());
        change(&mut decided, &mut spec);
        let inheritance = (*plan.inheritance).clone();
        let resolved =
            HostPlan::resolve(decided, spec, inheritance, NodeId(node), &[], 1 << 20, None);
        resolved.unwrap_err().to_string()
    };
    for message in [
        with(&|decided, _| drop(decided.launch_mut().node_names.pop()), 0),
        with(&|decided, _| decided.app_plans.clear(), 0),
        with(&|decided, _| decided.app_plans[0].variables = None, 0),
        with(&|_, spec| spec.layout.hosts.clear(), 0),
        with(&|_, spec| spec.apps.push(app(Path::new("b"))), 0),
        with(&|_, _| {}, 2),
    ] {
        assert!(
            message.contains("inconsistent plan of the job"),
            "{message}"
        );
    }
}

#[test]
fn single_host_serves_all_virtual_nodes() {
    let mut here = JobSpec::from_apps(vec![app(Path::new("/bin/true"))]);
    here.interface.pmi = InterfaceChoice::Pmi1;
    here.layout.virtual_nodes = 2;
    here.apps[0].count = Some(2);
    here.layout.oversubscribe = true;
    let here = plan(here);
    assert!(here.single_host.is_some() && !here.can_grow());
    assert_eq!(here.serving_node(NodeId(1)), NodeId(0));
    let hosts = plan(spec("n1:1,n2:1", Path::new("/bin/true")));
    assert!(hosts.single_host.is_none() && hosts.can_grow());
    assert_eq!(hosts.serving_node(NodeId(1)), NodeId(1));
}
