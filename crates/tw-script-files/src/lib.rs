//! Commands of the module `fs` of scripts, within directories. Everything here may wait for a disk: callers are jobs of a thread pool, and
//! the program that runs a script by hand.
//!
//! ```text
//! access       directories that a script may use; the place of a path
//! place        a path below a directory, opened without a way out of it
//! flags        flags of open
//! command      one command
//! tree         whole trees: directories with their parents, or with their content
//! status       status of files
//! descriptors  files that a script keeps open
//! error        failures as exceptions
//! ```
//! A path is resolved by the kernel below one of the directories (`openat2` with `RESOLVE_BENEATH`): neither `..` nor a symbolic link leads out of
//! it, even if another process changes the tree meanwhile.

mod access;
mod command;
mod descriptors;
mod error;
mod flags;
mod place;
mod status;
mod tree;

pub use access::{AllowedDirectory, FileAccess};
pub use command::run;
pub use descriptors::Descriptors;

tw_base::limits! {
    /// Limits of files of scripts.
    pub const LIMITS;

    use command::LIMITS;
    use descriptors::LIMITS;
    use tree::LIMITS;
}
