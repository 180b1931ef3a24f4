//! Validated launch request of a scheduler; no I/O.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;

use crate::proto::v1;
use wireup_core::job::exit_policy::ExitPolicy;
use wireup_core::job::ids::Rank;
use wireup_core::job::spec::{FenceTimeoutSpec, InterfaceChoice, StdinTarget};
use wireup_core::secret::{Secret, SecretBytes};

mod request_error;
mod requested_layout;

pub use request_error::RequestError;
pub use requested_layout::NodeLayout;

/// Longest name of a launch.
const ID_MAX: usize = 64;
/// Longest name of an allocation, in bytes.
const ALLOCATION_MAX: usize = 256;
/// Most programs of a launch.
const APPS_MAX: usize = 4096;
/// Most names of variables that all programs have together: each program has those of the launch.
const NAMES_MAX: usize = 1 << 20;
/// Longest key of a fabric's service, in bytes.
const KEY_MAX: usize = 256;

/// A launch that makes sense.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaunchRequest {
    pub id: String,
    pub allocation: String,
    /// Nodes of the launch, and ranks of each.
    pub place: NodeLayout,
    /// Programs, at least one; the sum of their ranks is that of the nodes.
    pub programs: Vec<RequestedProgram>,
    /// Variables for all ranks, in ascending order of names.
    pub env: Variables,
    /// Access to the fabric.
    pub cxi: Option<CxiGrant>,
    pub pmi: InterfaceChoice,
    /// User and group that the request names.
    pub run_as: Option<v1::RunAs>,
    /// Directory the ranks start in.
    pub cwd: Option<PathBuf>,
    /// The ranks that read standard input.
    pub stdin: StdinTarget,
    /// Ranks wait while their output has no reader.
    pub hold_output: bool,
    /// Timeout after which the launch is ended.
    pub timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Option<Duration>,
    /// Time limit of fences.
    pub fence_timeout: FenceTimeoutSpec,
    pub exit_policy: ExitPolicy,
    /// Whether all ranks end when one fails; `None`: as the policy implies.
    pub kill_on_bad_exit: Option<bool>,
    /// Ranks that run alone fail the job.
    pub strict_pmi: bool,
    /// File mode creation mask.
    pub umask: Option<u32>,
}

/// One program and its ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestedProgram {
    /// A path, or a name to look up.
    pub program: OsString,
    /// Without the program's own name.
    pub args: Vec<OsString>,
    /// Number of ranks; at least 1.
    pub ranks: u32,
    /// Variables for these ranks alone.
    pub env: Variables,
    /// Directory these ranks start in.
    pub cwd: Option<PathBuf>,
}

/// Variables; their values are never shown.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Variables(pub Vec<(OsString, OsString)>);

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

/// Access to a fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CxiGrant {
    /// Virtual network id (VNI).
    pub vni: u32,
    /// Key of the service; may be empty.
    pub key: SecretBytes,
    /// Service id; 0 for none.
    pub service: u32,
}

impl LaunchRequest {
    /// Checks a request to the agent of the node `agent_name`.
    ///
    /// # Errors
    /// [`RequestError`] for the first thing that is wrong.
    pub fn check(
        mut request: v1::LaunchProcessesRequest,
        agent_name: &str,
    ) -> Result<Self, RequestError> {
        check_id(&request.launch_id)?;
        let allocation = &request.allocation_id;
        if allocation.len() > ALLOCATION_MAX || allocation.contains('\0') {
            return Err(RequestError::Allocation(allocation.len()));
        }
        let job = request.job.take().unwrap_or_default();
        check_apps(job.apps.len())?;
        let place = NodeLayout::check(&mut request, job.layout.as_ref(), agent_name)?;
        let programs = match job.apps.is_empty() {
            true => vec![one_program(request.entrypoint, request.args, place.size)?],
            false if request.entrypoint.is_empty() && request.args.is_empty() => {
                programs(job.apps, place.size)?
            }
            false => return Err(RequestError::TwoPrograms),
        };
        let variables = (programs.len(), request.env.len());
        if variables.0.saturating_mul(variables.1) > NAMES_MAX {
            return Err(RequestError::Names(variables.0, variables.1));
        }
        let env = request.env.into_iter().map(|(name, value)| v1::EnvVar {
            name: name.into(),
            value: value.into(),
        });
        Ok(Self {
            id: request.launch_id,
            allocation: request.allocation_id,
            programs,
            env: self::variables(env)?,
            cxi: request.cxi_credentials.map(cxi).transpose()?,
            pmi: pmi(request.pmi_mode)?,
            run_as: request.run_as,
            cwd: directory(&job.cwd)?,
            stdin: match job.stdin {
                Some(target) => stdin(target, place.size)?,
                None => StdinTarget::None,
            },
            hold_output: job.hold_output,
            timeout: (job.timeout_ms > 0).then(|| Duration::from_millis(job.timeout_ms)),
            grace: job.grace_ms.map(Duration::from_millis),
            fence_timeout: match job.fence_timeout_ms {
                None => FenceTimeoutSpec::Sensible,
                Some(0) => FenceTimeoutSpec::Unlimited,
                Some(time) => FenceTimeoutSpec::After(Duration::from_millis(time)),
            },
            exit_policy: exit_policy(&job.exit_policy, place.size)?,
            kill_on_bad_exit: job.kill_on_bad_exit,
            strict_pmi: job.strict_pmi,
            umask: match job.umask {
                Some(mask) if mask > 0o777 => return Err(RequestError::Umask(mask)),
                mask => mask,
            },
            place,
        })
    }

    /// Applies the time limit of fences that the site has set: a request may have a shorter one.
    pub fn limit_fences(&mut self, site_limit: Option<Duration>) {
        let Some(site_limit) = site_limit else {
            return;
        };
        self.fence_timeout = FenceTimeoutSpec::After(match self.fence_timeout {
            FenceTimeoutSpec::After(requested) => requested.min(site_limit),
            FenceTimeoutSpec::Sensible | FenceTimeoutSpec::Unlimited => site_limit,
        });
    }
}

/// A request whose programs are not decoded.
#[derive(Clone, PartialEq, Message)]
struct EncodedRequest {
    #[prost(message, optional, tag = "13")]
    job: Option<EncodedJob>,
}

#[derive(Clone, PartialEq, Message)]
struct EncodedJob {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    apps: Vec<Bytes>,
}

/// Refuses an encoded request with too many programs, before memory is taken for them.
///
/// # Errors
/// [`RequestError::Apps`], and [`RequestError::Encoding`] for a message that cannot be decoded as a whole either.
pub fn check_encoded(message: Bytes) -> Result<(), RequestError> {
    let request = EncodedRequest::decode(message)
        .map_err(|error| RequestError::Encoding(error.to_string()))?;
    check_apps(request.job.map_or(0, |job| job.apps.len()))
}

fn check_apps(apps: usize) -> Result<(), RequestError> {
    match apps > APPS_MAX {
        true => Err(RequestError::Apps(apps)),
        false => Ok(()),
    }
}

/// Refuses texts that cannot be the name of a launch.
///
/// # Errors
/// [`RequestError::LaunchId`].
pub fn check_id(id: &str) -> Result<(), RequestError> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = id
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    match first && id.len() <= ID_MAX && id.bytes().all(inner) {
        true => Ok(()),
        false => Err(RequestError::LaunchId(id.chars().take(80).collect())),
    }
}

fn one_program(
    entrypoint: String,
    args: Vec<String>,
    size: u32,
) -> Result<RequestedProgram, RequestError> {
    program(v1::App {
        program: entrypoint.into(),
        args: args.into_iter().map(Bytes::from).collect(),
        ranks: size,
        ..Default::default()
    })
}

fn programs(apps: Vec<v1::App>, size: u32) -> Result<Vec<RequestedProgram>, RequestError> {
    let ranks = apps.iter().map(|app| u64::from(app.ranks)).sum::<u64>();
    if ranks != u64::from(size) || apps.iter().any(|app| app.ranks == 0) {
        return Err(RequestError::AppRanks { ranks, size });
    }
    apps.into_iter().map(program).collect()
}

fn program(app: v1::App) -> Result<RequestedProgram, RequestError> {
    if app.program.is_empty() {
        return Err(RequestError::NoProgram);
    }
    Ok(RequestedProgram {
        program: word(&app.program)?,
        args: app
            .args
            .iter()
            .map(|arg| word(arg))
            .collect::<Result<_, _>>()?,
        ranks: app.ranks,
        env: variables(app.env)?,
        cwd: directory(&app.cwd)?,
    })
}

/// Parses a program or argument.
fn word(bytes: &[u8]) -> Result<OsString, RequestError> {
    match bytes {
        bytes if bytes.contains(&0) => Err(RequestError::Nul("a program or argument")),
        bytes => Ok(OsString::from_vec(bytes.to_vec())),
    }
}

fn directory(bytes: &[u8]) -> Result<Option<PathBuf>, RequestError> {
    let path = PathBuf::from(OsString::from_vec(bytes.to_vec()));
    match bytes {
        [] => Ok(None),
        bytes if bytes.contains(&0) => Err(RequestError::Nul("a directory")),
        _ if !path.is_absolute() => Err(RequestError::Directory(path)),
        _ => Ok(Some(path)),
    }
}

fn variables(env: impl IntoIterator<Item = v1::EnvVar>) -> Result<Variables, RequestError> {
    let text = |bytes: &Bytes| OsString::from_vec(bytes.to_vec());
    let mut checked = Vec::new();
    for v1::EnvVar { name, value } in env {
        if name.is_empty() || name.contains(&b'=') || name.contains(&0) {
            return Err(RequestError::VariableName(text(&name)));
        }
        if value.contains(&0) {
            return Err(RequestError::VariableValue(text(&name)));
        }
        checked.push((text(&name), text(&value)));
    }
    Ok(Variables(checked))
}

fn cxi(credentials: v1::CxiCredentials) -> Result<CxiGrant, RequestError> {
    match credentials.auth_key.len() {
        ..=KEY_MAX => Ok(CxiGrant {
            vni: credentials.vni,
            key: Secret::new(credentials.auth_key.to_vec().into()),
            service: credentials.svc_id,
        }),
        long => Err(RequestError::Key(long)),
    }
}

fn pmi(mode: i32) -> Result<InterfaceChoice, RequestError> {
    match v1::PmiMode::try_from(mode) {
        Ok(v1::PmiMode::Pmi2) => Ok(InterfaceChoice::Pmi2),
        Ok(v1::PmiMode::Pmix) => Ok(InterfaceChoice::Pmix),
        Ok(v1::PmiMode::Auto) => Ok(InterfaceChoice::Auto),
        Ok(v1::PmiMode::Pmi1) => Ok(InterfaceChoice::Pmi1),
        Ok(v1::PmiMode::All) => Ok(InterfaceChoice::All),
        Ok(v1::PmiMode::None) => Ok(InterfaceChoice::None),
        Err(_) => Err(RequestError::PmiMode(mode)),
    }
}

fn stdin(stdin: v1::StdinTarget, size: u32) -> Result<StdinTarget, RequestError> {
    use v1::stdin_target::Target;
    match stdin.target {
        Some(Target::Rank(rank)) if rank < size => Ok(StdinTarget::Rank(Rank(rank))),
        Some(Target::Rank(rank)) => Err(RequestError::StdinRank { rank, size }),
        Some(Target::All(true)) => Ok(StdinTarget::All),
        Some(Target::All(false)) | None => Err(RequestError::Stdin),
    }
}

fn exit_policy(text: &str, size: u32) -> Result<ExitPolicy, RequestError> {
    let text = if text.is_empty() { "first" } else { text };
    match text.parse() {
        Ok(ExitPolicy::Rank(rank)) if rank.0 >= size => {
            Err(RequestError::ExitRank { rank: rank.0, size })
        }
        Ok(policy) => Ok(policy),
        Err(remedy) => Err(RequestError::ExitPolicy {
            text: text.to_owned(),
            remedy,
        }),
    }
}

#[cfg(test)]
mod tests;
