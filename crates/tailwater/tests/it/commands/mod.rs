//! Commands that need no configuration file: `tailwater serve`, `proxy`, `trust`, `cache`, `hash-password`, `help`, `top` and `js`.

mod cache;
mod hash_password;
mod help;
mod js;
mod local_authority;
mod proxy;
mod proxy_with_apps;
mod serve;
mod top;
