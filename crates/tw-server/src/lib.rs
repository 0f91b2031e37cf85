//! Running it: what the configuration becomes, the loops, the module contract, variables, and HTTP.
//!
//! [`load`] turns a configuration into plans; [`http`] serves requests by them on the loops of [`event_loop`].

pub mod core;
pub mod event_loop;
pub mod http;
pub mod limits;
pub mod load;
#[cfg(test)]
mod testing;
pub mod vars;
