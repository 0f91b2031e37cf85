//! Messages of the program: to the terminal, to the control API.

pub mod console;
pub mod json_response;
pub mod recent_messages;
pub mod stdout;
