//! Metrics and status pages.

mod operations;
mod prometheus;
mod status_page;
mod status_zone;
mod stub_status;
mod traffic_status;
