//! `cargo xtask ci`: everything a change must pass, cheapest first; the first failure ends it.

use std::time::Instant;

use crate::left_out::LeftOut;
use crate::{Failure, cargo, root};

/// One cargo command.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Environment variable and value.
    env: Option<(&'static str, &'static str)>,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", arguments: &["fmt", "--all", "--check"], env: None },
    Step {
        name: "clippy",
        arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: None,
    },
    // With tidy, which is a test of this crate, and with whether the documents made of records are fresh.
    Step { name: TEST, arguments: &["test", "--workspace"], env: None },
    Step {
        name: "doc",
        arguments: &["doc", "--workspace", "--no-deps"],
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
];

const TEST: &str = "test";

/// Runs the steps. `--skip-tests`: all but the tests, for a caller that has just run them.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let skip_tests = match arguments {
        [] => false,
        [word] if word == "--skip-tests" => true,
        _ => return Err(format!("unknown arguments {arguments:?}")),
    };
    let (begin, left_out) = (Instant::now(), LeftOut::new()?);
    for step in STEPS.iter().filter(|step| !(skip_tests && step.name == TEST)) {
        run_step(step, &left_out)?;
    }
    left_out.tell();
    println!("ci: all passed in {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

fn run_step(step: &Step, left_out: &LeftOut) -> Result<(), Failure> {
    println!("ci: {}: cargo {}", step.name, step.arguments.join(" "));
    let begin = Instant::now();
    let mut command = cargo();
    command.args(step.arguments).current_dir(root()).envs(step.env);
    let status =
        left_out.hear(&mut command).status().map_err(|error| format!("cannot run cargo: {error}"))?;
    let took_s = begin.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{} failed after {took_s:.1} s", step.name));
    }
    println!("ci: {}: passed in {took_s:.1} s", step.name);
    Ok(())
}
