//! Answering: what a handler decided becomes what the client gets.

pub mod beside;
pub mod body;
pub mod coding;
pub mod early_subrequest;
pub mod respond;
pub mod subrequest;
