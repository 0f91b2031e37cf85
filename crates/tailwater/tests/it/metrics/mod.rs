//! Metrics and status pages.

mod prometheus;
mod status_page;
mod status_zone;
mod stub_status;
