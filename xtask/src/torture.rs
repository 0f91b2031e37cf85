//! `cargo xtask torture`: many requests to an origin that does everything wrong, a cache whose server is killed many times with
//! each store, with a new seed, many short sessions of `stream`, and downloads over HTTP/3 while the server is upgraded, reloaded and killed.
//!
//! The tests `proxy::torture`, `cache::kill_and_restart`, `stream::short_sessions` and `http3::process_torture` do the work; in `cargo test` they
//! run few requests, kills, sessions and downloads with a fixed seed. A failure of requests repeats with the printed seed; the exact moment of a kill does not depend on
//! the seed.

use std::thread::available_parallelism;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Failure, cargo, root};

const REQUESTS_DEFAULT: u64 = 100_000;
/// Kills of the server of a cache with each store.
const KILLS_DEFAULT: u64 = 50;
/// Sessions of each kind.
const SESSIONS_DEFAULT: u64 = 100_000;
/// Downloads over HTTP/3: with 50 reloads, 5 upgrades and 5 kills.
const DOWNLOADS_DEFAULT: u64 = 200;

/// Options of the command.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    requests: u64,
    kills: u64,
    sessions: u64,
    downloads: u64,
    seed: Option<u64>,
}

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let Options { requests, kills, sessions, downloads, seed } = options(words)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = seed.unwrap_or(now);
    // A server waits for its disk and for its death as often as it works.
    let at_once = 2 * available_parallelism().map_or(1, |count| count.get());
    println!(
        "torture: {requests} requests, {kills} kills with each store and {downloads} downloads of seed {seed}, {sessions} sessions of each kind"
    );
    let mut command = cargo();
    command.args(["test", "--package", "tailwater", "--test", "it", "--", "--nocapture"]);
    // Tests run one after the other, because each would change what another measures.
    command.arg("--test-threads=1");
    let filters = [
        (requests, "proxy::torture::"),
        (kills, "cache::kill_and_restart::"),
        (sessions, "stream::short_sessions::"),
        (downloads, "http3::process_torture::"),
    ];
    command.args(filters.iter().filter(|(count, _)| *count > 0).map(|(_, filter)| filter));
    command.env("TAILWATER_TORTURE", requests.to_string()).env("TAILWATER_KILLS", kills.to_string());
    command.env("TAILWATER_KILLED_AT_ONCE", at_once.to_string());
    command.env("TAILWATER_SESSIONS", sessions.to_string());
    command.env("TAILWATER_DOWNLOADS", downloads.to_string());
    command.env("TAILWATER_TORTURE_SEED", seed.to_string());
    let status =
        command.current_dir(root()).status().map_err(|error| format!("cannot run cargo: {error}"))?;
    let again = format!(
        "cargo xtask torture --requests {requests} --kills {kills} --sessions {sessions} --downloads {downloads} --seed {seed}"
    );
    if status.success() { Ok(()) } else { Err(format!("again: {again}")) }
}

fn options(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options {
        requests: REQUESTS_DEFAULT,
        kills: KILLS_DEFAULT,
        sessions: SESSIONS_DEFAULT,
        downloads: DOWNLOADS_DEFAULT,
        seed: None,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let number = words.next().and_then(|number| number.parse().ok());
        let number = number.ok_or_else(|| format!("{word} needs a number"));
        match word.as_str() {
            "--requests" => options.requests = number?,
            "--kills" | "--rounds" => options.kills = number?,
            "--sessions" => options.sessions = number?,
            "--downloads" => options.downloads = number?,
            "--seed" => options.seed = Some(number?),
            _ => return Err(format!("unknown argument {word}")),
        }
    }
    if options.requests + options.kills + options.sessions + options.downloads == 0 {
        return Err("nothing to do".to_owned());
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_numbers() {
        let of = |text: &str| options(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let usual = Options {
            requests: REQUESTS_DEFAULT,
            kills: KILLS_DEFAULT,
            sessions: SESSIONS_DEFAULT,
            downloads: DOWNLOADS_DEFAULT,
            seed: None,
        };
        assert_eq!(of(""), Ok(usual));
        let given = Options { requests: 5, kills: 0, sessions: 9, downloads: 3, seed: Some(7) };
        assert_eq!(of("--seed 7 --requests 5 --kills 0 --sessions 9 --downloads 3"), Ok(given));
        assert_eq!(of("--rounds 1000").map(|options| options.kills), Ok(1000));
        assert!(of("--requests 0 --kills 0 --sessions 0 --downloads 0").is_err());
        for wrong in ["--seed", "--seed x", "--runs 1", "7"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
