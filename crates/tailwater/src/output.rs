//! Messages of the program: to the terminal, to the control API.

pub(crate) mod console;
pub(crate) mod json_response;
pub(crate) mod recent_messages;
