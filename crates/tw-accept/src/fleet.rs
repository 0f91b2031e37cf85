//! Fleets that directives name.

use std::sync::Arc;

use tw_conf::{ConfError, Span};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_fleet::Fleet;
use tw_log::Text;

/// The fleet of this name, which stands at `at`.
///
/// # Errors
/// There is no such fleet.
pub fn find_fleet<P: Protocol>(name: &[u8], at: Span, cx: &Resolve<'_, P>) -> Result<Arc<Fleet>, ConfError> {
    cx.find::<Fleet>(name).ok_or_else(|| {
        ConfError::new(format!("unknown fleet \"{}\"", Text(name)))
            .at(at)
            .hint("a block \"fleet NAME { … }\" in the main context declares it")
    })
}

/// The fleet of this name, with a key for `what` in its store.
///
/// # Errors
/// There is no such fleet, or it cannot encrypt values in its store.
pub fn find_encrypting_fleet<P: Protocol>(
    name: &[u8],
    at: Span,
    what: &str,
    cx: &Resolve<'_, P>,
) -> Result<Arc<Fleet>, ConfError> {
    let fleet = find_fleet(name, at, cx)?;
    if fleet.settings().keys.is_empty() {
        let name = Text(name);
        let message = format!("fleet \"{name}\" has no \"encryption_key\", which {what} in its store need");
        return Err(ConfError::new(message).at(at));
    }
    Ok(fleet)
}
