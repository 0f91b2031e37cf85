//! `stream` as the protocol that settings and groups of upstream servers name. `block` says what belongs to it.

/// The protocol.
pub struct Stream;

/// Method by which a group binds sessions to servers: there is none, `sticky` stands in `http` only.
pub enum NoSticky {}
