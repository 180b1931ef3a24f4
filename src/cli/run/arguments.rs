//! `wireup run` as far as it does no I/O: words to [`LaunchArguments`], and these, with what was looked up, to a [`JobSpec`].
//!
//! ```text
//! words ─▶ CommandLine ─▶ RunArgs ─▶ LaunchArguments ─▶ JobSpec
//!                           ▲            ▲           ▲
//!                 defaults files    rankfile     LaunchLookups     (all read by `launch_lookups`)
//! ```

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::cli::apps::{app_requests, split_apps};
use crate::cli::config::Defaults;
use crate::cli::foreign_options::option_table::OWN;
use crate::cli::foreign_options::{self, ForeignError};
use crate::cli::impi::ImpiSpec;
use crate::cli::option_scan::OptionTable;
use crate::cli::options::HostsArgs;
use crate::cli::run_args::{RunArgs, parse};
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::lookup::needed;
use wireup_core::job::hosts::{HERE, HostSpec};
use wireup_core::job::rankfile::Rankfile;
use wireup_core::job::spec::{AgentLaunchCommand, JobSpec, StatusSpec};

/// Words of a line of `wireup run` in our own spelling.
#[derive(Debug)]
pub(super) struct CommandLine {
    /// Options of the job, and the first program.
    pub(super) first: Vec<OsString>,
    /// Options and programs behind each `:`.
    next_programs: Vec<Vec<OsString>>,
    /// Options of other launchers that hold for every program.
    everywhere: Vec<OsString>,
    /// Options without effect, each with the reason.
    idle: Vec<String>,
}

/// A rankfile, and its path for messages.
#[derive(Debug)]
pub(super) struct ReadRankfile {
    pub(super) path: PathBuf,
    pub(super) ranks: Rankfile,
}

/// A line of `wireup run`, parsed and checked.
#[derive(Debug)]
pub(super) struct LaunchArguments {
    /// The job, without what is looked up.
    pub(super) spec: JobSpec,
    pub(super) hosts: HostsArgs,
    pub(super) rankfile: Option<ReadRankfile>,
    pub(super) impi: Option<ImpiSpec>,
}

/// Facts about the surroundings of a launch, each of which was looked up once. The default is a launch on this machine
/// alone.
#[derive(Debug, Default)]
pub(super) struct LaunchLookups {
    /// The hosts; none for this machine alone.
    pub(super) hosts: Vec<HostSpec>,
    /// Command that starts agents on these.
    pub(super) starter: Option<AgentLaunchCommand>,
    /// Names of the nodes that this machine acts as.
    pub(super) node_names: Vec<String>,
    /// CPUs of this machine, where they are counted.
    pub(super) cpus: Option<u32>,
    /// Filter of the log, of the environment if the line gives none.
    pub(super) log: Option<String>,
}

/// Whether a line that has not been parsed has an option that begins with one of these.
pub(super) fn has_option(args: &[OsString], options: &[&[u8]]) -> bool {
    args.iter().any(|word| {
        let name = word.as_bytes();
        let dashes = name.iter().take_while(|byte| **byte == b'-').count();
        let name = &name[dashes..];
        dashes > 0 && options.iter().any(|option| name.starts_with(option))
    })
}

impl CommandLine {
    /// The words behind `wireup run`.
    ///
    /// # Errors
    /// [`ForeignError`] for an option of another launcher that cannot be taken.
    pub(super) fn new(
        table: &OptionTable,
        words: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, ForeignError> {
        let (mut everywhere, mut idle) = (Vec::new(), Vec::new());
        let parts = split_apps(words).into_iter().map(|part| {
            let translated = foreign_options::translate(table, &OWN, part)?;
            everywhere.extend(translated.everywhere);
            idle.extend(translated.notes);
            Ok(translated.words)
        });
        let mut parts = parts.collect::<Result<Vec<_>, _>>()?.into_iter();
        Ok(Self {
            first: parts.next().unwrap_or_default(),
            next_programs: parts.collect(),
            everywhere,
            idle,
        })
    }

    /// Parses its options behind these defaults.
    ///
    /// # Errors
    /// Clap's, which may be an answer.
    pub(super) fn parse(
        &self,
        table: OptionTable,
        defaults: &Defaults,
    ) -> Result<RunArgs, clap::Error> {
        let mut words = defaults.words();
        words.extend_from_slice(&self.everywhere);
        words.extend_from_slice(&self.first);
        let mut args = parse(table, words)?;
        let is_given = |words: &[OsString]| has_option(words, &[b"launch-agents"]);
        args.hosts.launch_agents_by_default = !is_given(&self.everywhere) && !is_given(&self.first);
        Ok(args)
    }
}

impl LaunchArguments {
    /// Checks the options of a line together with its other programs.
    ///
    /// # Errors
    /// [`CommandError`] for a wrong option of another program, and options that contradict each other or the rankfile.
    pub(super) fn new(
        mut args: RunArgs,
        line: CommandLine,
        defaults: &Defaults,
        rankfile: Option<ReadRankfile>,
    ) -> Result<Self, CommandError> {
        let verbose = args.verbosity();
        // Options for every program precede each one's own.
        let mut shared = defaults.words_of_every_program();
        shared.extend(line.everywhere);
        let is_job_option = |word: &OsStr| OptionTable::from_parser::<RunArgs>().knows(word);
        let mut apps = app_requests(args.app, &shared, line.next_programs, is_job_option)?;
        if let (Some(file), [app]) = (&rankfile, &mut apps[..]) {
            app.count = app.count.or_else(|| Some(file.ranks.size()));
        }
        args.ending.check()?;
        if apps
            .iter()
            .any(|app| app.preload.stage && app.preload.program)
        {
            return Err(CommandError::request(
                "--stage=all and --stage=program contradict each other: give one",
            ));
        }
        let slots = rankfile.as_ref().and_then(|file| file.ranks.slots.clone());
        let mut notes = defaults.describe(args.no_config);
        notes.extend(line.idle);
        let spec = JobSpec {
            apps,
            psets: std::mem::take(&mut args.layout.psets),
            layout: args.layout.layout(args.hosts.agent_tree())?,
            binding: args.binding.resolve(&args.layout, slots)?,
            container: args.container.resolve()?,
            fabric: args.fabric.into(),
            stdio: args.stdio.into(),
            ending: args.ending.into(),
            status: StatusSpec::from(args.status),
            interface: args.interface.into(),
            debug: args.debug.into(),
            impi: None,
            dry_run: args.dry_run,
            notes,
            verbose,
            log: args.log,
        };
        Ok(Self {
            spec,
            hosts: args.hosts,
            rankfile,
            impi: args.impi,
        })
    }

    /// Whether this machine is to act as several nodes.
    pub(super) fn is_virtual(&self) -> bool {
        self.spec.layout.virtual_nodes > 1
    }

    /// Number of hosts that a launch needs, by the slots of each.
    pub(super) fn needed_hosts(&self, slots: Option<u32>) -> u32 {
        let slots = slots.map(|slots| self.divided(slots));
        needed(self.ranks(), slots, self.spec.layout.ppn)
    }

    /// The job.
    ///
    /// # Errors
    /// [`CommandError`] for a rankfile that does not fit the hosts.
    pub(super) fn into_spec(mut self, lookups: LaunchLookups) -> Result<JobSpec, CommandError> {
        let mut hosts = lookups.hosts;
        for host in &mut hosts {
            host.slots = host.slots.map(|slots| match slots {
                0 => 0,
                slots => self.divided(slots),
            });
        }
        let mut slots = None;
        if let [only] = &hosts[..]
            && only.is_here()
            && self.spec.layout.spread.agent.is_none()
            && lookups.starter.is_none()
        {
            slots = only.slots.filter(|slots| *slots > 0);
            hosts.clear();
        }
        if hosts.is_empty() && slots.is_none() && self.spec.binding.cpus_per_rank > 1 {
            slots = lookups.cpus.map(|cpus| self.divided(cpus));
        }
        if let Some(ReadRankfile { path, ranks: file }) = &self.rankfile {
            let names: Vec<&str> = match hosts.is_empty() {
                true => lookups.node_names.iter().map(String::as_str).collect(),
                false => hosts.iter().map(|host| host.name.as_str()).collect(),
            };
            let here: &[&str] = if names.len() == 1 { &HERE } else { &[] };
            let size = self.ranks().unwrap_or_else(|| file.size());
            let found = file.runs(size, &names, here);
            self.spec.layout.runs = found.map_err(|error| wrong_rankfile(path, &error))?;
        }
        let mut spec = self.spec;
        spec.layout.hosts = hosts;
        spec.layout.spread.starter = lookups.starter;
        spec.layout.slots = slots;
        spec.log = lookups.log;
        Ok(spec)
    }

    /// The ranks of all programs, if known.
    fn ranks(&self) -> Option<u32> {
        self.spec.apps.iter().map(|app| app.count).sum()
    }

    /// Ranks that these CPUs or slots are for.
    fn divided(&self, slots: u32) -> u32 {
        (slots / self.spec.binding.cpus_per_rank).max(1)
    }
}

/// The refusal of a rankfile.
pub(super) fn wrong_rankfile(path: &Path, problem: &dyn fmt::Display) -> CommandError {
    CommandError::request(format!("--rankfile {}: {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use wireup_core::job::hosts::{HostList, merge};

    use super::*;

    fn arguments(line: &str) -> LaunchArguments {
        let own = OptionTable::from_parser::<RunArgs>();
        let words = line.split(' ').map(OsString::from);
        let line = CommandLine::new(&own, words).unwrap();
        let defaults = Defaults::default();
        let args = line.parse(own, &defaults).unwrap();
        LaunchArguments::new(args, line, &defaults, None).unwrap()
    }

    fn found(hosts: &str) -> LaunchLookups {
        let list: HostList = hosts.parse().unwrap();
        LaunchLookups {
            hosts: merge(list.0).unwrap(),
            cpus: Some(8),
            ..LaunchLookups::default()
        }
    }

    #[test]
    fn looked_up_hosts_become_nodes() {
        let spec = |line: &str, lookups| arguments(line).into_spec(lookups).unwrap();
        let job = spec("-n 4 --cpus-per-rank 4 a", found("n1:8,n2:2,n3:0"));
        let slots: Vec<_> = job.layout.hosts.iter().map(|host| host.slots).collect();
        assert_eq!(slots, [Some(2), Some(1), Some(0)]);
        let job = spec("a : -n 2 b", found("localhost:3"));
        assert_eq!((job.layout.hosts.len(), job.layout.slots), (0, Some(3)));
        let job = spec(
            "--cpus-per-rank 2 a",
            LaunchLookups {
                cpus: Some(8),
                ..Default::default()
            },
        );
        assert_eq!(job.layout.slots, Some(4));
    }

    #[test]
    fn needed_hosts_follow_from_ranks_and_slots() {
        let needed = |line: &str, slots| arguments(line).needed_hosts(slots);
        assert_eq!(needed("-n 8 a", Some(4)), 2);
        assert_eq!(needed("-n 8 --cpus-per-rank 2 a", Some(4)), 4);
        assert_eq!(needed("-n 8 --ppn 1 a", Some(4)), 8);
        assert_eq!(needed("-n 8 a : -n 8 b", Some(4)), 4);
        assert_eq!(needed("a", Some(4)), 1);
    }

    /// Old spellings of options, each with the present one.
    const OLD_SPELLINGS: [(&str, &str); 16] = [
        ("--explain", "-v"),
        ("--label-pattern %h:", "--label=%h:"),
        ("--timing", "--report -"),
        ("--trace t.json", "--report t.json"),
        ("--trace t", "--report trace:t"),
        ("--preload-binary", "--stage=program"),
        ("--preload-files a,b", "--stage=a,b"),
        ("--stop-on-exec=1", "--stop-at exec:1"),
        ("--stop-in-init", "--stop-at init"),
        ("--meet m", "--names meet=m"),
        ("--pmix-host h", "--libpmix host=h"),
        ("--shim s", "--libpmix shim=s"),
        ("--keep-names=1h", "--names keep=1h"),
        ("--star-limit 1 --tree-width 3", "--tree-width 3"),
        ("--image /r --runtime crun", "--image crun:/r"),
        ("--on-terminal-loss keep", "--detach=on-loss"),
    ];

    #[test]
    fn old_spelling_has_same_meaning() {
        for (old, new) in OLD_SPELLINGS {
            let [old_words, new_words] = [old, new].map(|words| format!("{words} a"));
            let specs = [old_words, new_words].map(|line| arguments(&line).spec);
            assert_eq!(specs[0], specs[1], "{old}");
        }
        // These are in a file of settings now.
        let fabric = "--fabric cxi=https://h --fabric-token /t --fabric-ca /c a";
        let fabric = arguments(fabric).spec.fabric.unwrap();
        let files = [fabric.token, fabric.authorities];
        assert_eq!(files, ["/t", "/c"].map(|file| Some(PathBuf::from(file))));
    }

    #[test]
    fn hidden_option_is_old_spelling() {
        let own = OptionTable::from_parser::<RunArgs>();
        for arg in own.options().filter(|arg| arg.is_hide_set()) {
            let name = format!("--{}", arg.get_long().unwrap());
            let is_old = |(old, _): &(&str, &str)| old.contains(&name);
            let is_fabric = name.starts_with("--fabric-");
            assert!(is_fabric || OLD_SPELLINGS.iter().any(is_old), "{name}");
        }
    }

    #[test]
    fn conflicting_options_are_refused_without_lookup() {
        for line in [
            "--ppn 2 --map-by ppr:2:node a",
            "--openmp a",
            "--on-failure continue --restartable a",
            "--stage --stage=program a",
            "a : --label b",
        ] {
            let own = OptionTable::from_parser::<RunArgs>();
            let words = line.split(' ').map(OsString::from);
            let line_read = CommandLine::new(&own, words).unwrap();
            let defaults = Defaults::default();
            let args = line_read.parse(own, &defaults).unwrap();
            assert!(
                LaunchArguments::new(args, line_read, &defaults, None).is_err(),
                "{line}"
            );
        }
    }
}
