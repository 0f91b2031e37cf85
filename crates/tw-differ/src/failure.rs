//! Failure of the command.

/// Error for the terminal.
pub(crate) type Failure = String;
