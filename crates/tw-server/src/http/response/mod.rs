//! Responses: from the outcome of a handler to the bytes for the client.

pub mod background_subrequest;
#[cfg(test)]
mod body_tests;
pub mod content_coding;
pub mod early_subrequest;
pub mod forward_head;
pub(crate) mod hop_fields;
pub mod prepare_response;
pub(crate) mod send_error_log;
pub mod send_response;
pub mod subrequest;
