//! Running it: what the configuration becomes, the loops, the module contract, variables, and HTTP.
//!
//! [`load`] turns a configuration into plans; [`http`] serves requests by them on the loops of [`worker`].

pub mod config_thread;
pub mod core;
pub mod event_loop;
pub mod http;
pub mod limits;
pub mod load;
pub mod log;
pub mod metrics;
pub mod module;
pub mod pools;
pub mod reach;
#[cfg(test)]
mod testing;
pub mod vars;

/// The version of nginx whose configuration, variables and texts these are: `$nginx_version`, `-v`.
pub const NGINX_VERSION: &str = "1.31.4";
