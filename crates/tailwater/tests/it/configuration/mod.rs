//! The command line, and reading and explaining configurations.

mod command_line;
mod diagnostics;
mod environment;
mod explain;
mod large_configurations;
mod new_prefix;
