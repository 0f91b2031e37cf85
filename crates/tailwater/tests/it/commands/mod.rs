//! Commands that need no configuration file: `tailwater serve`, `proxy` and `trust`.

mod local_authority;
pub(crate) mod proxy;
mod proxy_with_apps;
mod serve;
