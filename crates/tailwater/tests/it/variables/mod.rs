//! Modules that define variables: `map`, `geo`, `geoip2`, `split_clients`, `modern_browser`.

mod browser;
mod geo;
mod geoip2;
mod map;
mod split_clients;
