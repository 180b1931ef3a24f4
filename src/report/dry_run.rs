//! `--dry-run`: everything up to the first process, and the plan as a text on standard output.
//!
//! A dry run refuses what a launch would refuse, with the same messages. It creates no process, directory or
//! file; images are mounted for this process, to search for programs in them.

use std::collections::HashSet;
use std::ffi::{CString, OsStr};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::time::SystemTime;

use crate::plan::directory::{self, JobDirectory};
use crate::plan::rank_plans::{app_exec, host_requests};
use crate::plan::staged_files::pack_files;
use crate::plan::{HostPlan, Variable, environment, rank_env};
use crate::report::command_line::HIDDEN;
use crate::report::plan_record::planned;
use crate::report::status_stream::{StatusOutput, report_files};
use crate::report::{explain, node_texts};
use crate::stdio::rank_files;
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{AppNum, JobIndex, NodeId, Rank};
use wireup_core::job::spec::StatusTarget;
use wireup_core::node::{CollectivePolicy, HEAD, NodeCore};
use wireup_core::printable::printable;
use wireup_core::record::{RankChange, RankLocation, RankState, StatusRecord};
use wireup_core::shell_words::quoted;
use wireup_core::wording::{counted, without_error_codes};
use wireup_sys::inherited_state::InheritedState;

/// Makes the checks of a launch that go beyond the plan, and prints the plan.
///
/// # Errors
/// [`CommandError`] as in a launch.
pub(crate) fn show(plan: HostPlan, surroundings: &InheritedState) -> Result<u8, CommandError> {
    for warning in &plan.warnings {
        eprintln!(
            "wireup: warning: {}",
            printable(&without_error_codes(warning))
        );
    }
    check(&plan)?;
    // Nothing is created: the stream is written only to a descriptor that is open already.
    let target = match plan.spec.status.json {
        Some(StatusTarget::File(_)) => None,
        _ => StatusOutput::open(&plan.spec.status, SystemTime::now())?,
    };
    if let Some(target) = &target {
        for record in records(&plan) {
            target.write_now(&record);
        }
    }
    if !target.is_some_and(|target| target.is_stdout()) {
        let text = text(&plan, surroundings)?;
        std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| CommandError::system("standard output", error))?;
    }
    if plan.spec.verbose > 0 {
        for line in explain::lines(&plan) {
            eprintln!("wireup: {}", printable(&line));
        }
    }
    Ok(0)
}

/// Returns the records of the plan for the status stream: the job, then the location of each rank.
fn records(plan: &HostPlan) -> impl Iterator<Item = StatusRecord<'_>> {
    let ranks = (0..plan.job.process_map.size()).map(Rank).map(|rank| {
        let node = plan.job.process_map.node_of(rank).unwrap_or_default();
        let host = plan.node_name(node);
        let speaker = (JobIndex::INITIAL, rank).into();
        StatusRecord::Rank(RankChange {
            state: RankState::Planned,
            place: RankLocation::new(speaker, node, host, plan.job.app_map.appnum_of(rank)),
            pid: None,
            end: None,
            usage: None,
        })
    });
    std::iter::once(planned(plan)).chain(ranks)
}

/// Makes the checks of a launch before its first process.
fn check(plan: &HostPlan) -> Result<(), CommandError> {
    StatusOutput::check(&plan.spec.status)?;
    report_files::check(&plan.spec.status)?;
    rank_files::check(plan)?;
    pack_files(plan)?;
    let job = directory::job_directory(&plan.job.nspace);
    if plan.sidecar_files.is_some() {
        JobDirectory::check(&job)?;
    }
    // The first node refuses each job that another node would refuse.
    NodeCore::new(
        HEAD,
        Arc::clone(&plan.job),
        plan.offer.pmi,
        plan.offer.pmix,
        CollectivePolicy::from_spec(&plan.spec),
    )
    .map_err(|error| CommandError::system("cannot serve this job", error))?;
    if plan.offer.pmix {
        let directories = directory::node_directories(&job, HEAD, &plan.job.nspace);
        host_requests(plan, HEAD, &directories)?;
    }
    Ok(())
}

/// Width of the column of names.
const NAMES: usize = 11;

/// Text of lines with a name at the left, given once for several lines.
#[derive(Default)]
struct Sheet(String);

impl Sheet {
    fn add(&mut self, name: &str, text: &str) {
        self.line(&format!("{name:NAMES$}{text}"));
    }

    /// Adds one line, with escapes for control characters in names of files and variables.
    fn line(&mut self, text: &str) {
        self.0.push_str(&printable(text));
        self.0.push('\n');
    }
}

fn text(plan: &HostPlan, surroundings: &InheritedState) -> Result<String, CommandError> {
    let mut sheet = Sheet::default();
    let more = if plan.oversubscribed {
        ", oversubscribed"
    } else {
        ""
    };
    sheet.add(
        "job",
        &format!(
            "{} on {}{more} ({})",
            counted(plan.job.process_map.size(), "rank"),
            node_texts::nodes(plan),
            node_texts::slots(plan)
        ),
    );
    for place in explain::places(plan) {
        sheet.add("placement", &place);
    }
    let mut name = "binding";
    if plan.spec.binding.asks() {
        for line in explain::binding(plan, true) {
            sheet.add(std::mem::take(&mut name), &line);
        }
    }
    let mut name = "image";
    for line in explain::images(plan) {
        sheet.add(std::mem::take(&mut name), &line);
    }
    let mut last = "";
    for (topic, text) in node_texts::connections(plan) {
        sheet.add(if topic == last { "" } else { topic }, &text);
        last = topic;
    }
    for (index, app) in plan.apps.iter().enumerate() {
        let mut command = quoted(app.program.path().as_os_str());
        for arg in &app.args {
            command.push(' ');
            command.push_str(&quoted(arg));
        }
        let ranks = counted(app.size, "rank");
        sheet.add(
            &format!("program {}", index + 1),
            &format!("{command} ({ranks})"),
        );
        sheet.add("", &format!("starts in {}", explain::start(plan, index)));
        sheet.add("", &app.detected.to_string());
        if let Some(wrapper) = &app.wrapper {
            sheet.add("", &wrapper.to_string());
        }
        let request = &plan.spec.apps[index];
        if let Some(mask) = request.umask {
            sheet.add("", &format!("makes files with the mask {mask:03o}"));
        }
        for limit in &request.limits {
            sheet.add("", &format!("has the limit {limit}"));
        }
    }
    let offer = &plan.offer;
    sheet.add("interface", &format!("{}: {}", offer.names(), offer.why));
    if let Some(why) = &offer.without_pmix {
        sheet.add("", &format!("PMIx is left out: {why}"));
    }
    if offer.pmix && plan.sidecar_files.is_none() {
        sheet.add("server", "every host finds its own, and libpmix");
    }
    if let Some(host) = &plan.sidecar_files {
        sheet.add("libpmix", &host.libpmix.to_string());
        sheet.add("server", &host.program.display().to_string());
        sheet.add("", &host.shim.display().to_string());
        let directory = directory::job_directory(&plan.job.nspace);
        sheet.add(
            "directory",
            &format!("{} (another name in every run)", directory.display()),
        );
    }
    if let Some(pattern) = &plan.spec.stdio.output {
        sheet.add("output", &pattern.to_string_lossy());
    }
    if let Some(rank) = plan.spec.stdio.pty {
        sheet.add("terminal", &format!("of rank {rank}"));
    }
    for note in &plan.notes {
        sheet.add("note", note);
    }
    for index in 0..plan.apps.len() {
        surroundings_of(plan, AppNum(index as u32), surroundings, &mut sheet)?;
    }
    Ok(sheet.0)
}

/// Adds the differences between the environment of the first rank of a program and that of this process.
fn surroundings_of(
    plan: &HostPlan,
    app: AppNum,
    surroundings: &InheritedState,
    sheet: &mut Sheet,
) -> Result<(), CommandError> {
    let rank = (0..plan.job.process_map.size())
        .map(Rank)
        .find(|rank| plan.app_of(*rank) == app.index())
        .expect("every program has a rank");
    let node = plan.job.process_map.node_of(rank).unwrap_or(NodeId(0));
    let mut own = rank_env::job_variables(plan);
    // It is known only when virtual nodes are made whether they can have names of their own.
    own.extend(rank_env::node_variables(plan, node, None, None, true));
    own.extend(rank_env::rank_variables(
        plan,
        JobIndex::INITIAL,
        rank,
        None,
    ));
    let names = rank_env::names(&own);
    let start = app_exec(plan, app, &names, surroundings.nofile)?;
    let ours: HashSet<&Variable> = plan.inheritance.vars.iter().collect();
    let mut set: Vec<&CString> = start.env.iter().chain(&own).collect();
    set.sort();
    sheet.line("");
    sheet.line(&format!(
        "environment of rank {rank}, where it differs from this one:"
    ));
    let mut set_names = HashSet::new();
    for entry in set {
        let bytes = entry.to_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=');
        let (name, value) = bytes.split_at(at.unwrap_or(bytes.len()));
        let name = OsStr::from_bytes(name);
        let value = OsStr::from_bytes(value.get(1..).unwrap_or_default());
        set_names.insert(name.to_owned());
        if !ours.contains(&(name.to_owned(), value.to_owned())) {
            let value = match environment::is_hidden(name) {
                true => HIDDEN.to_owned(),
                false => quoted(value),
            };
            sheet.line(&format!("  {}={value}", name.to_string_lossy()));
        }
    }
    if plan.offer.pmix {
        let variables = "PMIX_NAMESPACE, PMIX_RANK, PMIX_SERVER_URI…, PMIX_…";
        sheet.line(&format!("  and what the PMIx server gives: {variables}"));
    }
    let mut removed: Vec<String> = ours
        .iter()
        .filter(|(name, _)| !set_names.contains(name) && name != environment::PERSONALITY)
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .collect();
    removed.sort();
    if !removed.is_empty() {
        sheet.line(&format!("  not passed on: {}", removed.join(" ")));
    }
    Ok(())
}
