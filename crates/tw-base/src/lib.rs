//! Words without I/O that every crate shares: counters, histograms, limits, texts of system errors, one lock, one cell and nothing else.
//! A type comes here only when two crates that must not know each other need it.

pub mod count;
mod errno;
pub mod hist;
pub mod limit;
pub mod whole;
mod whole_cell;

pub use count::Counter;
pub use errno::Errno;
pub use hist::Histogram;
pub use limit::Limit;
pub use whole::{Whole, WholeGuard};
pub use whole_cell::{WholeCell, WholeRefMut};
