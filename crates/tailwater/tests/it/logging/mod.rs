//! Access logs, error logs and the debug log.

mod access_log;
mod debug_log;
mod destinations;
mod error_log;
mod error_log_json;
mod session_log;
mod variable_paths;
