//! Name of a run of measurements: its cgroups and directories have it.

use std::env;
use std::process;

/// Variable with the number of the run, for its processes.
pub(super) const RUN: &str = "TAILWATER_BENCH_RUN";
/// Beginning of the names of cgroups and directories of a run; its number follows.
pub(super) const PREFIX: &str = "tailwater-bench-";

/// Name of this run.
pub(super) fn run_name() -> String {
    let run = env::var(RUN).unwrap_or_else(|_| process::id().to_string());
    format!("{PREFIX}{run}")
}
