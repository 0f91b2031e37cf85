//! Modules that show what the server does: metrics, the status page, the control API, and counters by server and location.

mod api;
mod mail_status_zone;
mod metrics;
mod session_zone;
mod status_page;
mod status_zone;
mod stream_status_zone;
mod stub_status;

pub use api::Api;
pub use metrics::Metrics;
pub use session_zone::SessionStatusZone;
pub use status_page::{StatusPage, numbers_of_process};
pub use status_zone::StatusZone;
pub use stub_status::StubStatus;
