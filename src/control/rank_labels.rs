//! The labels of ranks before their output (`--label`).

use super::launch_context::LaunchContext;
use crate::plan::planned_jobs::Plans;
use crate::stdio::output_label::{Label, LabelFields};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spec::LabelSpec;
use wireup_sys::time_zone::local_clock;

/// Sets the label of a process before its first output, if the user chose a pattern.
pub(super) fn set_label(cx: &mut LaunchContext, process: KnownRank) {
    let Some(LabelSpec::Pattern(pattern)) = &cx.plan.spec.stdio.label else {
        return;
    };
    let speaker = process.into();
    if cx.streams.has_label(speaker) {
        return;
    }
    let (plan, rank) = cx.jobs.plan_of(process);
    let label = Label::fill(
        pattern,
        &LabelFields {
            fields: plan.fields(rank),
            size: plan.job.process_map.size(),
            job: process.job(),
            pid: cx.ranks.get(process).pid.unwrap_or_default(),
            clock: local_clock(cx.started_at),
        },
    );
    // The command line refuses other patterns.
    if let Ok(label) = label {
        cx.streams.set_label(speaker, &label);
    }
}
