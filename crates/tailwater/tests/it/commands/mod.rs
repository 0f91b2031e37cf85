//! Commands that need no configuration file: `tailwater serve`, `proxy`, `trust` and `top`.

mod local_authority;
mod proxy;
mod proxy_with_apps;
mod serve;
mod top;
