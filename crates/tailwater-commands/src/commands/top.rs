//! `tailwater top`: the program that shows a running server in a terminal takes the place of this one.

use std::process::ExitCode;

use super::program_beside::become_program;

/// Becomes `tailwater-top` with these words; returns only if it cannot be started.
pub fn top(words: Vec<Vec<u8>>) -> ExitCode {
    become_program("tailwater-top", words, "cargo install --path crates/tailwater-top")
}
