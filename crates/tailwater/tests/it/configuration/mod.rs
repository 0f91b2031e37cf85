//! The command line, and reading and explaining configurations.

mod command_line;
mod explain;
mod large_configurations;
mod new_prefix;
