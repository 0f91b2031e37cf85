//! Modules that define variables: `map`, `geo`, `geoip2`, `json_set`, `keyval`, `split_clients`, `modern_browser`.

mod browser;
mod geo;
mod geoip2;
mod json;
mod keyval;
mod map;
mod split_clients;
