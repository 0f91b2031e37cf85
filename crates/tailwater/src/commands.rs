//! Commands of the command line, one file each: what they do before, or in the place of, a server.

pub(crate) mod authority;
pub(crate) mod cache_directory;
pub(crate) mod check;
pub(crate) mod explain;
pub(crate) mod fleet_commands;
pub(crate) mod hash_password;
pub(crate) mod proxy;
pub(crate) mod reference;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod tls;
pub(crate) mod top;
pub(crate) mod trust;
pub(crate) mod version;
