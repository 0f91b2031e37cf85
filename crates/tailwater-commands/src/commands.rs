//! Commands of the command line, one file each: what they do before, or in the place of, a server.

pub(crate) mod authority;
pub mod cache_directory;
pub mod explain;
pub mod fleet_commands;
pub mod hash_password;
pub mod js;
mod program_beside;
pub mod proxy;
pub mod reference;
pub mod serve;
pub mod session;
pub(crate) mod tls;
pub mod top;
pub mod trust;
pub mod version;
pub mod waf;
