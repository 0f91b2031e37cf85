//! The settings that belong to the server itself: `main` and `events`, `server`, `location`.
//!
//! Each level is one [`Settings`](tw_core::module::Settings) type with its records, like any module's.

pub mod block;
pub mod directories;
pub mod error_page;
pub mod listen;
pub mod location;
pub mod media_types;
pub mod memory;
pub mod permissions;
pub mod server;
pub mod upstream;
