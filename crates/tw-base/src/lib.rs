//! Basic types without I/O: counters, histograms, limits, texts of system errors and numbers, names with a prefix, random numbers, options of commands, words
//! about faults on purpose, the account of memory, a mutex, a cell and a slab.
//! A type is added here only if two crates need it that must not depend on each other.

pub mod command_line;
pub mod count;
mod errno;
mod fatal_cell;
pub mod fatal_mutex;
pub mod fault;
pub mod hist;
pub mod limit;
pub mod memory;
pub mod num;
mod prefixed_name;
mod rng;
mod slab;

pub use count::Counter;
pub use errno::Errno;
pub use fatal_cell::{FatalCell, FatalRefMut};
pub use fatal_mutex::{FatalMutex, FatalMutexGuard};
pub use hist::Histogram;
pub use limit::Limit;
pub use prefixed_name::PrefixedName;
pub use rng::Rng;
pub use slab::Slab;

limits! {
    /// Limits of the process.
    pub const LIMITS;

    section "connections and loops";
    use memory::LIMITS;
}
