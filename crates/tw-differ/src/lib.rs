//! `cargo xtask differ`: finds differences between Tailwater and nginx by generated configurations and requests.
//!
//! A case comes from a seed: a configuration, responses of a scripted origin server, and requests. Both servers are started from
//! the same text and asked the same; everything that the named rules of `compare` do not remove and the table of `excuse` does not
//! excuse is a difference. It is reduced to the smallest case that shows it and put into the group of its signature.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks to its terminal")]

mod case;
mod compare;
mod contest;
mod excuse;
mod generate;
mod group;
mod node;
mod options;
mod origin;
mod request;
mod response;
mod server;
mod shrink;

use std::path::Path;

use options::{Options, Task};

/// Error for the terminal.
pub(crate) type Failure = String;

/// Options, one on a line.
pub const USAGE: &str = "\
--nginx FILE      nginx to compare with                    nginx on the PATH
--binary FILE     server under test                        target/debug/tailwater
--cases N         configurations, each with 40 exchanges   100
--seed N          seed of the first one; the others follow 1
--area NAME       routing, variables, proxy, filters, files, access or messages; all in turn otherwise
--budget N        runs to reduce one difference            150
--seconds N       longest time; no limit otherwise
replay SEED       one case again, with everything about it; the area is needed
report            the groups that the last run found
rules             rules and excuses of the comparison";

/// Runs the command in the workspace at `root`.
///
/// # Errors
/// Options that are wrong, a machine that fails, or differences without an excuse.
pub fn run(words: &[String], root: &Path) -> Result<(), Failure> {
    let options = Options::parse(words)?;
    let groups = root.join("target/differ");
    match options.task {
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
        Task::Run | Task::Replay(_) => {
            let Some(nginx) = options.nginx() else {
                println!("differ: skipped: there is no nginx on the PATH, and --nginx names none");
                return Ok(());
            };
            let binary = options.binary.clone().unwrap_or_else(|| root.join("target/debug/tailwater"));
            let contest = contest::Contest::new(&nginx, &binary)?;
            match options.task {
                Task::Replay(seed) => contest.replay(seed, options.area),
                _ => contest.run(&options, &groups),
            }
        }
    }
}
