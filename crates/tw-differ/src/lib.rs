//! `cargo xtask differ`: finds differences between Tailwater and nginx by generated configurations and requests.
//!
//! A case comes from a seed: a configuration, responses of a scripted origin server, and requests. Both servers are started from
//! the same text and asked the same; everything that the named rules of `compare` do not remove and the table of `excuse` does not
//! excuse is a difference. It is reduced to the smallest case that shows it and put into the group of its signature.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks to its terminal")]

mod answers;
mod case;
mod case_file;
mod compare;
mod contest;
mod excuse;
mod failure;
mod generate;
mod group;
mod http2_client;
mod node;
mod options;
mod origin;
mod recorded;
mod request;
mod response;
mod server;
mod shrink;

use std::path::Path;

use failure::Failure;
pub use options::USAGE;
use options::{Options, Task};

/// Runs the command in the workspace at `root`.
///
/// # Errors
/// Options that are wrong, a machine that fails, or differences without an excuse.
pub fn run(words: &[String], root: &Path) -> Result<(), Failure> {
    let options = Options::parse(words)?;
    let groups = root.join("target/differ");
    match &options.task {
        Task::Rules => {
            for rule in compare::RULES {
                println!("{:<12} {}", rule.name, rule.reason);
            }
            excuse::table().iter().for_each(|excuse| println!("excused: {}", excuse.explain()));
            Ok(())
        }
        Task::Report => {
            print!("{}", group::report(&groups)?);
            Ok(())
        }
        Task::Check => recorded::check(&options.binary(root), &recorded::directory(root)),
        Task::Run | Task::Replay(_) | Task::ReplayFile(_) | Task::Minimise(_) | Task::Record => {
            let Some(nginx) = options.nginx() else {
                println!("differ: skipped: there is no nginx on the PATH, and --nginx names none");
                return Ok(());
            };
            let contest = contest::Contest::new(&nginx, &options.binary(root))?;
            match &options.task {
                Task::Replay(seed) => contest.replay(*seed, options.area),
                Task::ReplayFile(file) => contest.replay_file(file),
                Task::Minimise(file) => contest.minimise(file, options.budget),
                Task::Record => {
                    recorded::record(&contest, &recorded::directory(root), options.seed, options.cases)
                }
                _ => contest.run(&options, &groups),
            }
        }
    }
}
