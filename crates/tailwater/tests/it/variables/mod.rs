//! Modules that define variables: `map`, `geo`, `split_clients`, `modern_browser`.

mod browser;
mod geo;
mod map;
mod split_clients;
