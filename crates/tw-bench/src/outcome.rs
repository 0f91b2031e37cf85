//! Result of a step of a measurement.

/// Result of a step of a measurement; the error is for the terminal.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;
