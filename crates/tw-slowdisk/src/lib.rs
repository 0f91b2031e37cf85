//! Disk that is slow or failing on demand: a FUSE file system, in memory for tests, or over a directory for rehearsals.
//!
//! Two things decide about an operation. [`Settings`] are for all operations, by chance: delays, stalls, errors. A fault that
//! a test [injects](Scope::inject) is for certain operations, until it is lifted. Tests mount a disk in memory
//! ([`Store`]: [`Memory`]), the program `tailwater-slowdisk` one that passes everything on to a directory ([`Directory`]).
//!
//! An operation that is held occupies nothing: others go on, in the same directory too as far as Linux itself allows.
//! By default the kernel may remember neither names nor attributes, and forgets data at each open, so every operation
//! reaches the disk.

mod command_line;
mod directory;
mod fault;
mod front;
mod inodes;
mod mount;
mod settings;
mod store;
mod tree;

pub use command_line::{ABOUT, Command, LINES, OPTIONS, Options, help, parse, parse_line};
pub use directory::Directory;
pub use fault::{Fault, Injected, Op, Scope};
pub use mount::{Access, Mount, Unavailable};
pub use settings::{NoSpace, Settings};
pub use store::Store;
pub use tree::Memory;
