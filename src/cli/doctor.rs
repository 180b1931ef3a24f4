//! `wireup doctor`: checks hosts for problems that would make a launch fail.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::json;

use super::node_status::query_nodes;
use super::options::{HostsListArgs, ImageArgs, image_words};
use crate::doctor::ping_pong_run::{PingPongProgram, ping_pong};
use crate::doctor::{DoctorSubject, facts, image_trial, network_libraries, worker, worker_launch};
use wireup_core::doctor::report::{FindingGroup, grouped};
use wireup_core::doctor::{CHECKS, DoctorHost, LaunchNeeds, Severity, judge};
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::HostSpec;
use wireup_core::link::agent_protocol::NodeStatus;
use wireup_core::text_table;
use wireup_core::wording::counted;

const AFTER_HELP: &str = "\
Examples:
  wireup doctor                           this machine
  wireup doctor ./app                     also the program, its libraries and its MPI
  wireup doctor --hosts n[01-32] ./app    all hosts, and what they see of each other
  wireup doctor --image /shared/rootfs --hosts n[01-32] /opt/app/bin/app
                                          also whether ranks can run in the image, and find the program there
  wireup doctor --run --hosts n[01-04]    two ranks of your MPI send messages, pair by pair
  wireup doctor --json | jq '.findings[]'
  wireup doctor --list                    the checks

How:
  On other hosts it runs through their agents, on all at once. Each host connects to two others, which
  are the next in the list and its parent in a tree, and not to all. Nothing is changed on any host. With --run
  the same pairs of hosts launch two ranks each of a program that is compiled here by mpicc.

Exit status:
  0    nothing is wrong, or there are warnings only
  1    there are problems: a launch is likely to fail
  125  wireup itself failed or was called wrongly";

/// Arguments of `wireup doctor`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    hosts: HostsListArgs,

    /// Judge for this number of ranks on each host [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ppn: Option<u32>,

    /// Print a JSON object with all facts and findings
    #[arg(long)]
    json: bool,

    /// Print what is checked, and check nothing
    #[arg(long, conflicts_with = "json")]
    list: bool,

    /// Also let two ranks send messages to and fro between hosts, and show latency and bandwidth of each pair
    #[arg(long, conflicts_with = "list")]
    run: bool,

    /// The compiler of your MPI for --run [default: $MPICC, or mpicc]
    #[arg(long, value_name = "COMMAND", requires = "run", value_hint = ValueHint::CommandName)]
    mpicc: Option<OsString>,

    /// Run this program with two ranks instead of one that is compiled; it may print latency_us=N and bandwidth_mb_s=N
    #[arg(long, value_name = "FILE", requires = "run", conflicts_with = "mpicc", value_hint = ValueHint::FilePath)]
    run_program: Option<PathBuf>,

    /// Open the network libraries that these directories have, or the system
    #[arg(long, hide = true, value_name = "DIRECTORY", num_args = 0..)]
    providers: Option<Vec<PathBuf>>,

    #[command(flatten)]
    image: ImageArgs,

    /// Make a container with this number here, and report what its ranks would find
    #[arg(long, hide = true, requires = "image", value_name = "NUMBER", value_parser = container_number)]
    container: Option<u64>,

    /// Report the facts of this host to `wireup doctor` elsewhere
    #[arg(long, hide = true)]
    facts: bool,

    /// Where ranks start [default: this directory]
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    wdir: Option<PathBuf>,

    /// The program to look at, with its arguments
    #[arg(trailing_var_arg = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

fn container_number(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| "expected a hexadecimal number".to_owned())
}

/// Checks the hosts and shows findings; exit code 1 if there are problems.
///
/// # Errors
/// [`CommandError`] when the hosts cannot be queried.
pub(super) fn execute(args: DoctorArgs) -> Result<u8, CommandError> {
    if args.list {
        return list();
    }
    if let Some(directories) = &args.providers {
        return super::print(network_libraries::opened(directories).as_bytes());
    }
    let ping_pong_program = args.run.then(|| match args.run_program {
        Some(program) => PingPongProgram::User(program),
        None => {
            let variable = std::env::var_os("MPICC").filter(|command| !command.is_empty());
            let compiler = args.mpicc.or(variable);
            PingPongProgram::Compiled(compiler.unwrap_or_else(|| "mpicc".into()))
        }
    });
    let cwd = match args.wdir {
        Some(directory) => std::path::absolute(directory),
        None => std::env::current_dir(),
    };
    let cwd =
        cwd.map_err(|error| CommandError::system("cannot find the working directory", error))?;
    let image = args.image.resolve()?;
    if let Some((image, number)) = image.as_ref().zip(args.container) {
        return super::print(
            image_trial::report_trial(number, image, &args.program, &cwd).as_bytes(),
        );
    }
    let subject = DoctorSubject {
        program: args.program,
        image_words: image.as_ref().map(image_words).unwrap_or_default(),
        image,
    };
    if args.facts {
        let own = std::env::var("WIREUP_RANK")
            .ok()
            .and_then(|it| it.parse().ok());
        let worked = worker::work(&subject, &cwd, own.unwrap_or(0));
        return worked
            .map(|()| 0)
            .map_err(|error| CommandError::system("wireup doctor elsewhere is lost", error));
    }
    let agent = args.hosts.agent.clone().map(PathBuf::into_os_string);
    let members = args.hosts.resolve()?;
    let specs = members.clone();
    let mut found = match members.is_empty() {
        true => vec![local_host(&subject, &cwd)],
        false => {
            let mut words: Vec<OsString> = vec!["doctor".into(), "--facts".into(), "--wdir".into()];
            words.push(cwd.into_os_string());
            words.extend(subject.image_words);
            words.push("--".into());
            words.extend(subject.program);
            across(members, agent.as_ref(), &words)?
        }
    };
    if let Some(program) = &ping_pong_program {
        ping_pong(&mut found, &specs, agent.as_ref(), program)?;
    }
    let needs = LaunchNeeds {
        ranks: args.ppn,
        hosts: found.len() as u32,
    };
    let groups = grouped(&judge(&found, &needs), &found);
    let text = match args.json {
        true => json(&found, &groups),
        false => text(&found, &groups),
    };
    super::show(&text);
    let problem = |group: &FindingGroup| group.severity == Severity::Problem;
    Ok(u8::from(groups.iter().any(problem)))
}

/// This machine alone.
fn local_host(subject: &DoctorSubject, cwd: &std::path::Path) -> DoctorHost {
    let facts = facts(subject, cwd);
    DoctorHost {
        name: facts.name.clone(),
        agent: None,
        facts: Ok(facts),
        clock: None,
        neighbours: Vec::new(),
        pairs: Vec::new(),
    }
}

/// Hosts with agents.
fn across(
    members: Vec<HostSpec>,
    agent: Option<&OsString>,
    words: &[OsString],
) -> Result<Vec<DoctorHost>, CommandError> {
    let nodes = query_nodes(agent.map(AsRef::as_ref), &members)?;
    let state = |node: NodeStatus| match node.problem {
        Some(problem) => Err(problem),
        None => Ok(node.version),
    };
    let states = nodes.into_iter().map(state);
    worker_launch::check_hosts(members.into_iter().zip(states).collect(), agent, words)
}

fn text(hosts: &[DoctorHost], groups: &[FindingGroup]) -> String {
    let mut text = String::new();
    for group in groups {
        let severity = match group.severity {
            Severity::Problem => "problem",
            Severity::Warning => "warning",
        };
        text.push_str(&format!(
            "{severity}  {}: {} [{}]\n         {}\n",
            group.names(),
            group.observation,
            group.check,
            group.remedy
        ));
    }
    for host in hosts {
        for pair in &host.pairs {
            let other = match hosts[pair.host].name == host.name {
                true => "another rank here",
                false => &hosts[pair.host].name,
            };
            let result = match &pair.result {
                Ok(measured) => measured.text(),
                Err(_) => "failed, see above".to_owned(),
            };
            text.push_str(&format!("{} - {other}: {result}\n", host.name));
        }
    }
    let count = |severity| {
        groups
            .iter()
            .filter(|group| group.severity == severity)
            .count()
    };
    text.push_str(&format!(
        "{}, {}: {}, {}\n",
        counted(hosts.len(), "host"),
        counted(CHECKS.len(), "check"),
        counted(count(Severity::Problem), "problem"),
        counted(count(Severity::Warning), "warning"),
    ));
    text
}

fn json(hosts: &[DoctorHost], groups: &[FindingGroup]) -> String {
    let host = |host: &DoctorHost| {
        json!({
            "name": host.name,
            "agent": host.agent.as_ref().and_then(|agent| agent.as_ref().ok()),
            "agent_problem": host.agent.as_ref().and_then(|agent| agent.as_ref().err()),
            "facts": host.reported_facts(),
            "problem": host.facts.as_ref().err(),
            "clock": host.clock.map(|clock| json!({"ahead": clock.ahead, "error": clock.error})),
            "neighbours": host.neighbours,
            "pairs": host.pairs,
        })
    };
    let hosts: Vec<_> = hosts.iter().map(host).collect();
    let all = json!({"checks": CHECKS.len(), "findings": groups, "hosts": hosts});
    format!("{all:#}\n")
}

fn list() -> Result<u8, CommandError> {
    let rows: Vec<Vec<String>> = CHECKS
        .iter()
        .map(|check| vec![check.name.to_owned(), check.reads.to_owned()])
        .collect();
    super::print(text_table::render(&["CHECK", "READS"], &rows, None).as_bytes())
}
