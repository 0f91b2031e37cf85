//! Modules that define variables: `map`, `geo`, `geoip2`, `json_set`, `keyval`, `num_map`, `split_clients`, `modern_browser`.

mod browser;
mod definable;
mod geo;
mod geoip2;
mod json;
mod keyval;
mod map;
mod num_map;
mod split_clients;
