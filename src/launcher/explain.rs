//! What `-v` and `--explain` tell about a plan. No I/O but asking where temporary files go.

use super::plan::{App, Plan};
use super::reasons::plural;

/// The decisions in short: one line each.
pub fn short(plan: &Plan) -> Vec<String> {
    let mut lines = vec![size(plan)];
    for app in &plan.apps {
        lines.push(program(app));
    }
    if let Some(why) = &plan.offer.without_pmix {
        lines.push(format!("PMIx is not offered: {why}"));
    }
    if let Some(host) = &plan.host {
        lines.push(format!("PMIx server: {}", host.libpmix.source));
    }
    lines.extend(plan.notes.iter().cloned());
    lines
}

/// What was found out about a program; it is named once.
fn program(app: &App) -> String {
    let (path, finding) = (app.program.path().display().to_string(), &app.finding);
    let told = finding.to_string();
    let told = match told.starts_with(&path) {
        true => told,
        false => format!("{path}: {told}"),
    };
    match &app.wrapper {
        Some(wrapper) => format!("{told}; runs under {}", wrapper.program.path().display()),
        None => told,
    }
}

fn size(plan: &Plan) -> String {
    let (size, nodes) = (plan.job.ranks.size(), plan.job.ranks.nodes());
    format!(
        "{size} rank{} on {nodes} {}node{} ({}); offered: {}",
        plural(size),
        if nodes == 1 { "" } else { "virtual " },
        plural(nodes),
        plan.slots,
        plan.offer.names()
    )
}
