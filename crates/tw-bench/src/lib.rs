//! `cargo xtask bench`: the measurements behind every number in the documentation.
//!
//! One server core against one load core, contestants in turn within each round, medians over the rounds, and a target
//! beside each number. Everything a measurement needs is made here or named in an error: files, configurations,
//! cgroups, load scripts. Results go to the terminal and to `target/bench/NAME.json`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "measurements speak to their terminal")]

mod accept;
mod all;
mod bare;
mod bulk;
mod cache;
mod cgroup;
mod conf;
mod connection_memory;
mod contestant;
mod data;
mod directory;
mod disk;
mod exec;
mod filters;
mod first_byte;
mod gateways;
mod grpc;
mod h2load;
mod hit_ratio;
mod http2;
mod http3;
mod idle;
mod instructions;
mod load;
mod loops;
mod machine;
mod mail;
mod neighbour;
mod open;
mod options;
mod outcome;
mod paced_client;
mod plot;
mod pools;
mod prometheus;
mod proxy;
mod reload;
mod remaining_time;
mod render;
mod report;
mod run_name;
mod sampler;
mod scripts;
mod sharding;
mod spans;
mod stalls;
mod static_files;
mod stream;
mod supervise;
mod targets;
mod tls;
mod turns;
mod usage;
mod waf;

pub(crate) use self::directory::{home, root};
pub use self::options::USAGE;
pub(crate) use self::outcome::Outcome;

use self::supervise::{End, Supervisor};

/// Function of a word after `bench`, with the words that follow.
type Run = fn(&[String]) -> Outcome;

const MEASUREMENTS: &[(&str, Run)] = &[
    ("accept", accept::run),
    ("cache", cache::run),
    ("static", static_files::run),
    ("filters", filters::run),
    ("waf", waf::run),
    ("scripts", scripts::run),
    ("disk", disk::run),
    ("pools", pools::run),
    ("open", open::run),
    ("sharding", sharding::run),
    ("idle", idle::run),
    ("reload", reload::run),
    ("proxy", proxy::run),
    ("gateways", gateways::run),
    ("grpc", grpc::run),
    ("tls", tls::run),
    ("h2", http2::run),
    ("h3", http3::run),
    ("stream", stream::run),
    ("mail", mail::run),
    ("instructions", instructions::run),
];

/// Words that need no supervision; the last ones are started by the measurements themselves.
const OTHERS: &[(&str, Run)] = &[
    ("all", all::run),
    ("report", render::run),
    ("hit-ratio", hit_ratio::run),
    ("bare-loop", bare::run),
    ("origin", proxy::origin::run),
    ("relay", proxy::relay::run),
    ("stream-peer", stream::peer::run),
    ("responder", gateways::responder::run),
    ("echo", grpc::echo::run),
    ("exec", exec::run),
    (instructions::WORKER, instructions::work),
];

/// Runs one of the measurements, supervised: the words after `cargo xtask bench`.
///
/// # Errors
///
/// Says for the terminal why nothing was measured or which target was missed; empty if that was already printed.
pub fn run(args: &[String]) -> Result<(), String> {
    let Some((name, rest)) = args.split_first() else { return Err(USAGE.to_owned()) };
    let find = |list: &[(&str, Run)]| list.iter().find(|(other, _)| other == name).map(|(_, run)| *run);
    let outcome = if let Some(run) = find(MEASUREMENTS) {
        if supervise::is_supervised() {
            supervise::end_with_parent().and_then(|()| run(rest))
        } else {
            supervised(args)
        }
    } else if let Some(run) = find(OTHERS) {
        run(rest)
    } else {
        return Err(USAGE.to_owned());
    };
    outcome.map_err(|error| error.to_string())
}

/// Runs one measurement in a process of its own.
fn supervised(args: &[String]) -> Outcome {
    let keeps_data = args.iter().any(|arg| arg == "--keep-data");
    match Supervisor::new(keeps_data)?.run(args, &[], None)? {
        End::Succeeded => Ok(()),
        End::Interrupted => Err("interrupted".into()),
        // The process has printed the reason.
        End::Failed | End::TooLong => Err("".into()),
    }
}

/// Prints instructions per request and their changes, for `cargo xtask ci`: fewer requests than usual, and no failure
/// because of a change.
///
/// # Errors
///
/// Says why nothing could be measured.
pub fn compare_instructions() -> Result<(), String> {
    if let Some(missing) = instructions::lacks() {
        return Err(missing);
    }
    let measured = instructions::run(&["--quick".to_owned()]);
    measured.map_err(|_| "the measurement failed".to_owned())
}
