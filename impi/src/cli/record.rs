//! `wireup impi proxy` and `wireup impi decode`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use wireup_impi_cli::proxy_options::{DecodeArgs, ProxyArgs};
use wireup_impi_core::kit::Observer;
use wireup_impi_core::kit::conformance_rules::Level;
use wireup_impi_core::kit::conversation_record::{RecordedEvent, TITLE};

use crate::kit::recorder::Recorder;
use crate::kit::recording_proxy;
use crate::rendezvous;

/// A file to which events are written as they happen.
pub(super) fn record_file(
    path: &PathBuf,
) -> anyhow::Result<impl FnMut(&RecordedEvent) + Send + 'static> {
    let name = path.display().to_string();
    let mut file = BufWriter::new(File::create(path).with_context(|| name.clone())?);
    writeln!(file, "{TITLE}").with_context(|| name.clone())?;
    let mut broken = false;
    Ok(move |event: &RecordedEvent| {
        // The job goes on without a record.
        if let Err(error) = writeln!(file, "{event}").and_then(|()| file.flush())
            && !std::mem::replace(&mut broken, true)
        {
            eprintln!("wireup impi: {name}: {error}; the record is not complete");
        }
    })
}

/// Stands between.
pub(super) fn proxy(args: &ProxyArgs) -> anyhow::Result<u8> {
    let listener = rendezvous::bind(args.address, args.port..=args.port)
        .with_context(|| format!("cannot listen at {}:{}", args.address, args.port))?;
    let mut write = record_file(&args.record)?;
    let recorder = Recorder::new(Box::new(move |event| write(&event)));
    let mut out = io::stdout().lock();
    writeln!(out, "{}", listener.local_addr()?).and_then(|()| out.flush())?;
    drop(out);
    recording_proxy::run(&listener, &args.server, args.address, recorder)
        .with_context(|| format!("server {}", args.server))?;
    Ok(0)
}

/// Explains.
pub(super) fn decode(args: &DecodeArgs) -> anyhow::Result<u8> {
    let name = args.record.as_ref().map(|path| path.display().to_string());
    explain(args).with_context(|| name.unwrap_or_else(|| "standard input".to_owned()))
}

fn explain(args: &DecodeArgs) -> anyhow::Result<u8> {
    let input: Box<dyn BufRead> = match &args.record {
        Some(path) => Box::new(BufReader::new(File::open(path)?)),
        None => Box::new(io::stdin().lock()),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut lines = input.lines();
    if lines.next().transpose()?.as_deref() != Some(TITLE) {
        bail!("not a record: its first line must be {TITLE:?}");
    }
    let mut observer = Observer::new(args.program);
    for line in lines {
        for note in observer.event(&line?.parse()?) {
            if !args.findings {
                writeln!(out, "{note}")?;
            }
        }
    }
    observer.finish();
    let findings = observer.findings();
    for finding in &findings {
        writeln!(out, "{finding}")?;
    }
    out.flush()?;
    let violated = findings
        .iter()
        .any(|finding| finding.rule.level() == Level::Must);
    Ok(u8::from(violated))
}
