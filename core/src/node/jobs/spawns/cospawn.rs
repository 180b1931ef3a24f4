//! Spawns in which some programs are a debugger's daemons or jobs of their own (co-spawn): the ranks become one job; when that
//! has been started follow the daemons, as another one whose target it is, and each other program that is so designated.
//!
//! Rule: daemons and designated programs are not in the world of the ranks. Source: `PMIX_DEBUGGER_DAEMONS` and `PMIX_COSPAWN_APP` of the
//! PMIx Standard.

use std::collections::VecDeque;

use super::PendingSpawns;
use crate::job::ids::Nspace;
use crate::job::job_control::{JobControlAction, JobControlRequest};
use crate::job::proc::PMIX_RANK_WILDCARD;
use crate::job::spawn::{SpawnApp, SpawnInfo, SpawnRequest, SpawnRequester};
use crate::node::context::NodeContext;
use crate::node::event::NodeReport;

/// Declares programs to be daemons.
const DAEMONS: [&str; 2] = ["pmix.debugger", "PMIX_DEBUGGER_DAEMONS"];

/// Designates a program as a job of its own.
const COSPAWN: [&str; 2] = ["pmix.cospawn", "PMIX_COSPAWN_APP"];

/// Keys of the job that daemons debug.
const TARGET: [&str; 4] = [
    "pmix.dbg.tgt",
    "PMIX_DEBUG_TARGET",
    "pmix.dbg.job",
    "PMIX_DEBUG_JOB",
];

/// Keys of the number of daemons.
const NUMBER: [&str; 4] = [
    "pmix.dbg.dpnd",
    "PMIX_DEBUG_DAEMONS_PER_NODE",
    "pmix.dbg.dpproc",
    "PMIX_DEBUG_DAEMONS_PER_PROC",
];

/// Attributes of a whole spawn that concern its ranks alone. The output of one job can be forwarded to a tool with
/// the answer: libpmix subscribes to the job that this names.
const OF_RANKS: [&str; 18] = [
    "pmix.dbg.exec",
    "PMIX_DEBUG_STOP_ON_EXEC",
    "pmix.dbg.init",
    "PMIX_DEBUG_STOP_IN_INIT",
    "pmix.dbg.notify",
    "PMIX_DEBUG_STOP_IN_APP",
    "pmix.fwd.stdin",
    "PMIX_FWD_STDIN",
    "pmix.fwd.stdout",
    "PMIX_FWD_STDOUT",
    "pmix.fwd.stderr",
    "PMIX_FWD_STDERR",
    "pmix.stdin",
    "PMIX_STDIN_TGT",
    "pmix.mapby",
    "PMIX_MAPBY",
    "pmix.ppr",
    "PMIX_PPR",
];

fn is(info: &SpawnInfo, keys: &[&str]) -> bool {
    keys.contains(&&*info.key)
}

fn declares_daemons(infos: &[SpawnInfo]) -> bool {
    has_set(infos, &DAEMONS)
}

fn has_set(infos: &[SpawnInfo], keys: &[&str]) -> bool {
    infos
        .iter()
        .any(|info| is(info, keys) && info.value != "false")
}

/// Moves those attributes of daemons that decide their placement from the applications to the whole request.
fn lift(request: &mut SpawnRequest) {
    let keys = [&DAEMONS[..], &TARGET, &NUMBER].concat();
    for app in &mut request.apps {
        let own = std::mem::take(&mut app.infos);
        let (lifted, left): (Vec<_>, Vec<_>) = own.into_iter().partition(|info| is(info, &keys));
        request.infos.extend(lifted);
        app.infos = left;
    }
}

/// Divides a spawn into the request for the ranks and the requests for the additional jobs, in their start order.
pub(super) fn divide(mut request: SpawnRequest) -> (SpawnRequest, VecDeque<SpawnRequest>) {
    let is_beside = |app: &SpawnApp| declares_daemons(&app.infos) || has_set(&app.infos, &COSPAWN);
    if declares_daemons(&request.infos) || !request.apps.iter().any(is_beside) {
        return (request, VecDeque::new());
    }
    let apps = std::mem::take(&mut request.apps).into_iter();
    let (beside, mut ranks): (Vec<_>, Vec<_>) = apps.partition(is_beside);
    let (daemons, others): (Vec<_>, Vec<_>) = beside
        .into_iter()
        .partition(|app| declares_daemons(&app.infos));
    let mut others = VecDeque::from(others);
    for app in &mut others {
        app.infos.retain(|info| !is(info, &COSPAWN));
    }
    // The first of them is the job that is the answer.
    ranks.extend(ranks.is_empty().then(|| others.pop_front()).flatten());
    if ranks.is_empty() {
        request.apps = daemons;
        lift(&mut request);
        return (request, VecDeque::new());
    }
    let mut infos = request.infos.clone();
    infos.retain(|info| !is(info, &OF_RANKS) && !is(info, &TARGET));
    let job = |apps| SpawnRequest {
        apps,
        infos: infos.clone(),
        preputs: Vec::new(),
    };
    let mut jobs = VecDeque::new();
    if !daemons.is_empty() {
        let mut daemons = job(daemons);
        lift(&mut daemons);
        jobs.push_back(daemons);
    }
    request
        .infos
        .retain(|info| !is(info, &TARGET) && !is(info, &NUMBER));
    infos.retain(|info| !is(info, &NUMBER));
    let job = |apps| SpawnRequest {
        apps,
        infos: infos.clone(),
        preputs: Vec::new(),
    };
    jobs.extend(others.into_iter().map(|app| job(vec![app])));
    request.apps = ranks;
    (request, jobs)
}

/// Returns the request for an additional job after the job of the ranks has started. Daemons get that job as their
/// target.
pub(super) fn targeting(mut daemons: SpawnRequest, job: &Nspace) -> SpawnRequest {
    if !declares_daemons(&daemons.infos) {
        return daemons;
    }
    daemons.infos.retain(|info| !is(info, &TARGET));
    daemons.infos.push(SpawnInfo {
        key: TARGET[0].to_owned(),
        value: format!("{job}:{PMIX_RANK_WILDCARD}"),
        required: true,
    });
    daemons
}

impl PendingSpawns {
    /// Ends the started jobs of a co-spawn, one of whose jobs cannot be started.
    pub(super) fn end_cospawned(
        &mut self,
        requester: &SpawnRequester,
        nspace: &Nspace,
        cx: &mut NodeContext,
    ) {
        let Some((job, _)) = cx.find_job(nspace.as_str()) else {
            return;
        };
        let ranks = cx.jobs.processes_of(job).collect();
        cx.report_to_launcher(NodeReport::JobControl(JobControlRequest {
            requester: match requester {
                SpawnRequester::Rank(process) => Some(*process),
                SpawnRequester::Tool(_) => None,
            },
            action: JobControlAction::Kill,
            ranks: Some(ranks),
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infos(keys: &[&str]) -> Vec<SpawnInfo> {
        let info = |key: &&str| SpawnInfo {
            key: (*key).to_owned(),
            value: "true".to_owned(),
            required: false,
        };
        keys.iter().map(info).collect()
    }

    fn request(job: &[&str], apps: &[&[&str]]) -> SpawnRequest {
        let app = |keys: &&[&str]| SpawnApp {
            program: "prog".into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            count: 1,
            infos: infos(keys),
        };
        SpawnRequest {
            apps: apps.iter().map(app).collect(),
            infos: infos(job),
            preputs: Vec::new(),
        }
    }

    #[test]
    fn ranks_and_daemons_of_one_spawn_are_two_jobs() {
        let job = ["pmix.dbg.init", "pmix.fwd.stdout", "pmix.timeout"];
        let whole = request(
            &job,
            &[
                &["pmix.wdir"],
                &["pmix.debugger", "pmix.dbg.dpnd", "pmix.host"],
            ],
        );
        let (ranks, daemons) = divide(whole);
        assert_eq!(ranks, request(&job, &[&["pmix.wdir"]]));
        let expected = ["pmix.timeout", "pmix.debugger", "pmix.dbg.dpnd"];
        let [daemons] = <[SpawnRequest; 1]>::try_from(Vec::from(daemons)).unwrap();
        assert_eq!(daemons, request(&expected, &[&["pmix.host"]]));
        let daemons = targeting(daemons, &Nspace::new("job").unwrap());
        let target = daemons.infos.last().unwrap();
        assert_eq!(
            (&*target.key, &*target.value),
            ("pmix.dbg.tgt", "job:4294967294")
        );
    }

    #[test]
    fn cospawn_app_is_separate_job() {
        let job = ["pmix.mapby", "pmix.dbg.dpnd", "pmix.timeout"];
        let own = ["pmix.cospawn", "pmix.wdir"];
        let whole = request(&job, &[&own, &[], &["pmix.debugger"], &own]);
        let (ranks, beside) = divide(whole);
        assert_eq!(ranks, request(&["pmix.mapby", "pmix.timeout"], &[&[]]));
        let other = || request(&["pmix.timeout"], &[&["pmix.wdir"]]);
        let daemons = request(&["pmix.dbg.dpnd", "pmix.timeout", "pmix.debugger"], &[&[]]);
        assert_eq!(beside, [daemons, other(), other()]);
        let name = Nspace::new("job").unwrap();
        assert_eq!(targeting(other(), &name), other());
        // Without others the first is the answer.
        let (first, beside) = divide(request(&["pmix.timeout"], &[&own, &own]));
        assert_eq!((first, beside), (other(), [other()].into()));
    }

    #[test]
    fn spawn_of_one_kind_is_one_job() {
        let plain = request(&["pmix.timeout"], &[&[], &["pmix.wdir"]]);
        assert_eq!(divide(plain.clone()), (plain, [].into()));
        let whole = request(&["pmix.debugger", "pmix.dbg.dpnd"], &[&[], &[]]);
        assert_eq!(divide(whole.clone()), (whole, [].into()));
        let alone = request(&["pmix.timeout"], &[&["pmix.debugger", "pmix.dbg.tgt"]]);
        let lifted = request(&["pmix.timeout", "pmix.debugger", "pmix.dbg.tgt"], &[&[]]);
        assert_eq!(divide(alone), (lifted, [].into()));
    }
}
