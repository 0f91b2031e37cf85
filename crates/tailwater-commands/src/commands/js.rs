//! `tailwater js`: the program that runs scripts takes the place of this one, and runs a file by hand.

use std::process::ExitCode;

use super::program_beside::become_program;

/// Becomes `tailwater-scripts` for a script with its words; returns only if it cannot be started.
pub fn js(words: Vec<Vec<u8>>) -> ExitCode {
    let words = [b"run".to_vec()].into_iter().chain(words).collect();
    become_program("tailwater-scripts", words, "cargo build -p tailwater-scripts")
}
