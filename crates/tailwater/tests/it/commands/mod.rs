//! Commands that need no configuration file: `tailwater serve`, `proxy` and `trust`.

mod local_authority;
mod proxy;
mod proxy_with_apps;
mod serve;
