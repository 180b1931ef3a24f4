//! Directives of the PMIx tool that started the launcher, in an indirect launch. No I/O.

use std::ffi::{CString, OsStr};
use std::sync::Arc;

use super::environment::Variable;
use super::rank_env::entry;
use super::{HostPlan, spawned};
use wireup_core::job::debug::{DebugDirectives, IndirectLaunchTool};
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::job::spawn::{SpawnFailure, SpawnInfo};
use wireup_core::node::JobContext;

/// Variable with the address of the tool that started the launcher. libpmix's server connects to it.
pub const URI: &str = "PMIX_LAUNCHER_RNDZ_URI";

/// Variable that makes the launcher wait until a tool, or the one that started it, releases the ranks.
pub const PAUSE: &str = "PMIX_LAUNCHER_PAUSE_FOR_TOOL";

/// Variable with the path of the file to which the launcher's PMIx server writes its address.
pub const RENDEZVOUS: &str = "PMIX_LAUNCHER_RENDEZVOUS_FILE";

/// Finds the tool of an indirect launch by the launcher's variables.
pub fn director(variables: &[Variable]) -> Option<IndirectLaunchTool> {
    let value = |variable: &str| {
        let mut found = variables.iter().filter(|(name, _)| name == variable);
        found.next().map(|(_, value)| value.as_os_str())
    };
    let text = |variable: &str| value(variable).and_then(OsStr::to_str);
    value(URI).or_else(|| value(PAUSE))?;
    let nspace = text("PMIX_SERVER_NSPACE").and_then(|name| Nspace::new(name).ok());
    let rank = text("PMIX_SERVER_RANK").and_then(|rank| rank.parse().ok());
    Some(IndirectLaunchTool {
        uri: text(URI).map(str::to_owned),
        server: nspace.zip(rank.map(Rank)),
    })
}

/// Environment of the head node's sidecar, from that of all sidecars: it connects to the tool that started the launcher.
pub fn environment_of_sidecar(plan: &HostPlan, env: &[CString]) -> Vec<CString> {
    let debug = &plan.spec.debug;
    let uri = debug.director.as_ref().and_then(|tool| tool.uri.as_ref());
    let file = debug.rendezvous.as_ref();
    let mut env = env.to_vec();
    env.extend(uri.and_then(|uri| entry(URI, uri)));
    env.extend(file.and_then(|file| entry(RENDEZVOUS, file)));
    env
}

/// Directives of the indirect launch's tool for the initial job.
///
/// # Errors
/// [`SpawnFailure`] for ranks that the job does not have, and for required infos that are not supported.
pub fn tool_directives(
    plan: &HostPlan,
    infos: &[SpawnInfo],
) -> Result<DebugDirectives, SpawnFailure> {
    let own = &plan.job.debug;
    let directives = spawned::directed(infos, plan.job.process_map.size())?;
    Ok(DebugDirectives {
        on_exec: directives.on_exec.or_else(|| own.on_exec.clone()),
        in_init: directives.in_init.or_else(|| own.in_init.clone()),
        in_app: directives.in_app,
        ..DebugDirectives::default()
    })
}

/// Plan of the initial job with the directives of a tool.
pub fn directed(plan: &HostPlan, debug: DebugDirectives) -> HostPlan {
    let mut plan = plan.clone();
    plan.spec.debug.stop_on_exec.clone_from(&debug.on_exec);
    plan.spec.debug.stop_in_init.clone_from(&debug.in_init);
    plan.job_plan.job = Arc::new(JobContext {
        debug,
        ..(*plan.job).clone()
    });
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_is_directed_by_tool_in_its_environment() {
        let variables = |text: &str| -> Vec<Variable> {
            let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
            pairs
                .map(|(name, value)| (name.into(), value.into()))
                .collect()
        };
        assert_eq!(director(&variables("PMIX_SERVER_NSPACE=t:1 HOME=/")), None);
        let uri = "PMIX_LAUNCHER_RNDZ_URI=t.0;tcp4://127.0.0.1:1 PMIX_SERVER_NSPACE=t:1 PMIX_SERVER_RANK=0";
        let found = director(&variables(uri));
        let server = Nspace::new("t:1").ok().zip(Some(Rank(0)));
        let uri = Some("t.0;tcp4://127.0.0.1:1".to_owned());
        assert_eq!(found, Some(IndirectLaunchTool { uri, server }));
        let paused = director(&variables("PMIX_LAUNCHER_PAUSE_FOR_TOOL=t:0"));
        assert_eq!(paused, Some(IndirectLaunchTool::default()));
    }
}
