//! `cargo xtask torture`: many requests to an origin that does everything wrong, with a seed that was not there before.
//!
//! The test of the same name does the work; in `cargo test` it asks for few requests, always the same ones. What fails here
//! fails again with the seed that is told.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Failure, cargo, root};

const REQUESTS_DEFAULT: u64 = 100_000;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    requests: u64,
    seed: Option<u64>,
}

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let Options { requests, seed } = options(words)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = seed.unwrap_or(now);
    println!("torture: {requests} requests of seed {seed}");
    let mut command = cargo();
    command.args(["test", "--package", "tailwater", "--test", "it", "--", "torture::", "--nocapture"]);
    command.env("TAILWATER_TORTURE", requests.to_string()).env("TAILWATER_TORTURE_SEED", seed.to_string());
    let status =
        command.current_dir(root()).status().map_err(|error| format!("cannot run cargo: {error}"))?;
    let again = format!("cargo xtask torture --requests {requests} --seed {seed}");
    if status.success() { Ok(()) } else { Err(format!("again: {again}")) }
}

fn options(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options { requests: REQUESTS_DEFAULT, seed: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = words.next().and_then(|number| number.parse().ok());
        let number = number.ok_or_else(|| format!("{word} needs a number"));
        match word.as_str() {
            "--requests" => options.requests = number?,
            "--seed" => options.seed = Some(number?),
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_numbers() {
        let of = |text: &str| options(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of(""), Ok(Options { requests: REQUESTS_DEFAULT, seed: None }));
        assert_eq!(of("--seed 7 --requests 5"), Ok(Options { requests: 5, seed: Some(7) }));
        for wrong in ["--seed", "--seed x", "--runs 1", "7"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
