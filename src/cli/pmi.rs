//! `wireup pmi`: queries the PMI server of this process's launcher, which may be any launcher.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueHint};

use crate::pmi_client::{ClientError, PmiConnection, proxy};
use wireup_core::failure::CommandError;
use wireup_sys::access::is_program;

const EXAMPLES: &str = "\
It is started as the ranks of a job, by any launcher that serves PMI-1: wireup run, Hydra's mpiexec, srun --mpi=pmi2.

Examples:
  srun --mpi=pmi2 -n 4 wireup pmi exchange            does every rank get what each other one has put?
  mpiexec -n 2 wireup pmi attr                        the attributes that MPI_Init would get
  wireup run --pmi pmi1 -n 2 wireup pmi barrier 100   how long barriers take
  wireup run -n 2 wireup pmi proxy -o pmi.%r ./app    write down what the program and the server say";

/// Arguments of `wireup pmi`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PmiArgs {
    #[command(subcommand)]
    command: PmiSubcommand,
}

#[derive(Debug, Subcommand)]
enum PmiSubcommand {
    /// Enter barriers, and print how long they took
    #[command(after_help = "Examples:\n  mpiexec -n 4 wireup pmi barrier 100")]
    Barrier {
        /// How many
        #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        count: u32,
    },
    /// Print the value of a key after a barrier
    #[command(after_help = "Examples:\n  mpiexec -n 2 wireup pmi get PMI_process_mapping")]
    Get {
        key: String,
        /// Name of the store [default: that of the job]
        #[arg(long, value_name = "NAME")]
        kvs: Option<String>,
    },
    /// Put a key, enter a barrier, and print what rank 0 has put; `%r` is the rank
    #[command(after_help = "Examples:\n  mpiexec -n 2 wireup pmi put card-%r value-of-%r")]
    Put { key: String, value: String },
    /// Put a value for each rank, enter a barrier, get the values of all others and compare
    #[command(after_help = "Examples:\n  mpiexec -n 4 wireup pmi exchange 500")]
    Exchange {
        /// Bytes of each value
        #[arg(default_value_t = 100, value_parser = clap::value_parser!(u32).range(16..=1023))]
        bytes: u32,
    },
    /// Print the server's information about the job: rank, size, names and attributes
    #[command(after_help = "Examples:\n  mpiexec -n 1 wireup pmi attr")]
    Attr {
        /// Further attributes
        keys: Vec<String>,
    },
    /// Run a program, and record its messages and the server's, with times
    #[command(after_help = "Examples:\n  wireup run -n 2 wireup pmi proxy -o pmi.%r ./app")]
    Proxy {
        /// File for it; `%r` is the rank [default: standard error]
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
        /// Program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        #[arg(value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
        program: Vec<OsString>,
    },
}

/// Attributes that MPI libraries ask for.
const ATTRIBUTES: [&str; 4] = [
    "PMI_process_mapping",
    "PMI_hwloc_xmlfile",
    "PMI_mpi_memory_alloc_kinds",
    "PMI_dead_processes",
];

/// Sends the requests of the subcommand and prints the replies.
pub(super) fn execute(args: PmiArgs) -> Result<u8, CommandError> {
    if let PmiSubcommand::Proxy { output, program } = &args.command {
        return stand_between(output.as_ref(), program);
    }
    let mut client = PmiConnection::new().map_err(CommandError::request)?;
    let text = run_subcommand(&mut client, args.command).map_err(CommandError::job)?;
    client.finalize().map_err(CommandError::job)?;
    super::print(text.as_bytes())
}

fn run_subcommand(client: &mut PmiConnection, what: PmiSubcommand) -> Result<String, AskError> {
    let rank = client.rank;
    Ok(match what {
        PmiSubcommand::Barrier { count } => {
            let times = (0..count).map(|_| client.barrier());
            let times = times.collect::<Result<Vec<Duration>, _>>()?;
            let micros = |time: Option<&Duration>| time.map_or(0, Duration::as_micros);
            let all: Duration = times.iter().sum();
            format!(
                "barrier rank={rank} size={} count={count} min_us={} mean_us={} max_us={}\n",
                client.size,
                micros(times.iter().min()),
                (all / count).as_micros(),
                micros(times.iter().max())
            )
        }
        PmiSubcommand::Get { key, kvs } => {
            client.barrier()?;
            let value = client.get(kvs.as_deref(), &key)?;
            let value = value.ok_or_else(|| AskError::NoKey(key.clone()))?;
            format!("get rank={rank} {key}={value}\n")
        }
        PmiSubcommand::Put { key, value } => {
            let of = |text: &str, rank: u32| text.replace("%r", &rank.to_string());
            client.put(&of(&key, rank), &of(&value, rank))?;
            client.barrier()?;
            let key = of(&key, 0);
            let value = client.get(None, &key)?;
            let value = value.ok_or_else(|| AskError::NoKey(key.clone()))?;
            format!("put rank={rank} {key}={value}\n")
        }
        PmiSubcommand::Exchange { bytes } => exchange(client, bytes as usize)?,
        PmiSubcommand::Attr { keys } => attributes(client, &keys)?,
        PmiSubcommand::Proxy { .. } => String::new(),
    })
}

/// Error: a request fails, or its result is wrong.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("unknown key {0}")]
    NoKey(String),
    #[error("rank {rank} gets another value for rank {of} than that one has put")]
    Differs { rank: u32, of: u32 },
}

/// Returns the value that a rank puts.
fn card(rank: u32, bytes: usize) -> String {
    let mut card = format!("card-of-{rank}-");
    while card.len() < bytes {
        card.push(char::from(b'a' + (card.len() % 26) as u8));
    }
    card
}

fn exchange(client: &mut PmiConnection, bytes: usize) -> Result<String, AskError> {
    let (rank, size) = (client.rank, client.size);
    client.put(&format!("wireup-{rank}"), &card(rank, bytes))?;
    let barrier = client.barrier()?;
    let start = Instant::now();
    for of in (0..size).filter(|of| *of != rank) {
        let value = client.get(None, &format!("wireup-{of}"))?;
        if value.as_deref() != Some(&card(of, bytes)) {
            return Err(AskError::Differs { rank, of });
        }
    }
    let gets = start.elapsed().as_micros();
    // Nobody leaves while others read.
    client.barrier()?;
    Ok(format!(
        "exchange rank={rank} size={size} bytes={bytes} barrier_us={} gets_us={gets}\n",
        barrier.as_micros()
    ))
}

fn attributes(client: &mut PmiConnection, further: &[String]) -> Result<String, AskError> {
    let mut text = format!(
        "rank={} size={} kvsname={}\n",
        client.rank, client.size, client.kvsname
    );
    for (name, request) in [("appnum", "get_appnum"), ("size", "get_universe_size")] {
        let answer = client.send_request(&format!("cmd={request}"))?;
        let value = answer.field(name).unwrap_or("?");
        text.push_str(&format!("{}={value}\n", &request["get_".len()..]));
    }
    let known = ATTRIBUTES.iter().map(|key| (*key).to_owned());
    for key in known.chain(further.iter().cloned()) {
        let value = client.get(None, &key)?;
        text.push_str(&format!("{key}={}\n", value.as_deref().unwrap_or("(none)")));
    }
    Ok(text)
}

fn stand_between(output: Option<&PathBuf>, program: &[OsString]) -> Result<u8, CommandError> {
    let to: Box<dyn Write> = match output {
        None => Box::new(io::stderr()),
        Some(path) => {
            let rank = std::env::var("PMI_RANK").unwrap_or_default();
            let path = path.to_string_lossy().replace("%r", &rank);
            if is_program(Path::new(&path)) {
                return Err(CommandError::request(format!(
                    "-o {path} would overwrite a program; name a file for the transcript before the program"
                )));
            }
            let file = File::create(&path);
            Box::new(file.map_err(|error| CommandError::system(path, error))?)
        }
    };
    let ran = proxy::run(program, to);
    ran.map_err(|error| CommandError::system("wireup pmi proxy", error))
}
