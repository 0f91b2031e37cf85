//! Fleets that directives name.

use std::sync::Arc;

use tw_conf::{ConfError, Span};
use tw_log::Text;

use crate::fleet::Fleet;

/// The fleet of this name, which stands at `at`. `find` looks it up among the fleets of the configuration.
///
/// # Errors
/// There is no such fleet.
pub fn find_fleet(
    name: &[u8],
    at: Span,
    find: impl FnOnce(&[u8]) -> Option<Arc<Fleet>>,
) -> Result<Arc<Fleet>, ConfError> {
    find(name).ok_or_else(|| {
        ConfError::new(format!("unknown fleet \"{}\"", Text(name)))
            .at(at)
            .hint("a block \"fleet NAME { … }\" in the main context declares it")
    })
}

/// The fleet of this name, with a key for `what` in its store.
///
/// # Errors
/// There is no such fleet, or it cannot encrypt values in its store.
pub fn find_encrypting_fleet(
    name: &[u8],
    at: Span,
    what: &str,
    find: impl FnOnce(&[u8]) -> Option<Arc<Fleet>>,
) -> Result<Arc<Fleet>, ConfError> {
    let fleet = find_fleet(name, at, find)?;
    if fleet.settings().keys.is_empty() {
        let name = Text(name);
        let message = format!("fleet \"{name}\" has no \"encryption_key\", which {what} in its store need");
        return Err(ConfError::new(message).at(at));
    }
    Ok(fleet)
}
