//! The loops that serve HTTP: those of the kernel, with what runs on them named.

use crate::http::Http;
use crate::http::generation::Config;

/// One loop's state.
pub type Loop = tw_core::event_loop::Loop<Http>;
/// Orders to a loop.
pub type LoopCommand = tw_core::event_loop::LoopCommand<Config>;
