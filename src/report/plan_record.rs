//! Record of the plan in the status stream.

use std::ffi::OsString;

use crate::plan::HostPlan;
use crate::report::command_line::command_line;
use wireup_core::link::scheduled_launcher;
use wireup_core::record::{
    AppRecord, JobPlanRecord, JobState, PlannedJob, PlannedNode, StatusRecord, VERSION,
};

/// Returns the record of the planned job.
pub(crate) fn planned(plan: &HostPlan) -> StatusRecord<'_> {
    let nodes = plan.job.process_map.node_ids().map(|node| PlannedNode {
        node: node.0,
        host: plan.node_name(node).into(),
        ranks: plan.job.process_map.local_size(node),
    });
    let offered = [("pmi", plan.offer.pmi), ("pmix", plan.offer.pmix)];
    let job = JobPlanRecord {
        version: VERSION,
        job: plan.job.nspace.as_str().into(),
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        size: plan.job.process_map.size(),
        wireup: env!("CARGO_PKG_VERSION").into(),
        command: command(std::env::args_os().collect()),
        libpmix: plan
            .sidecar_files
            .as_ref()
            .map(|host| host.libpmix.to_string()),
        offered: offered
            .into_iter()
            .filter_map(|(name, offered)| offered.then_some(name.into()))
            .collect(),
        nodes: nodes.collect(),
        virtual_nodes: Some(plan.spec.layout.virtual_nodes > 1),
        apps: apps(plan),
    };
    StatusRecord::Job(PlannedJob {
        state: JobState::Planned,
        plan: Some(Box::new(job)),
        cause: None,
    })
}

/// Returns the command line of this launch; `None` for a launch that an agent describes.
fn command(words: Vec<OsString>) -> Option<String> {
    let described = words
        .get(1)
        .is_some_and(|word| word == scheduled_launcher::COMMAND);
    (!described).then(|| command_line(&words))
}

/// Returns the program of an application, as it was found.
pub(crate) fn program(plan: &HostPlan, app: usize) -> String {
    plan.apps[app].program.path().display().to_string()
}

/// Returns the records of the applications.
pub(crate) fn apps(plan: &HostPlan) -> Vec<AppRecord> {
    let apps = plan.apps.iter().enumerate();
    apps.map(|(index, app)| AppRecord {
        app: index as u32,
        program: program(plan, index),
        command: command_line(&[&[app.program.path().into()], &app.args[..]].concat()),
        needs: app.detected.to_string(),
        ranks: app.size,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_of_scheduled_launch_is_unknown() {
        let command = |words: &[&str]| command(words.iter().map(OsString::from).collect());
        assert_eq!(command(&["wireup", scheduled_launcher::COMMAND]), None);
        let known = command(&["mpiexec", "-n", "2", "./a b"]);
        assert_eq!(known.as_deref(), Some("mpiexec -n 2 './a b'"));
    }
}
