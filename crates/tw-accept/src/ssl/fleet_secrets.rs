//! Parameter `fleet=NAME` of directives whose keys come from the secrets that all nodes of a fleet share.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_fleet::Fleet;
use tw_tls::{Clock, SharedSecrets};

/// Beginning of a parameter that names a fleet.
const FLEET: &[u8] = b"fleet=";

/// Returns true for a parameter that names a fleet.
pub fn names_fleet(word: &Word) -> bool {
    word.bytes.starts_with(FLEET)
}

/// Secrets of the fleet that a parameter names; `what` are the keys that are made of them.
///
/// # Errors
/// There is no such fleet, or it cannot encrypt secrets in its store.
pub fn fleet_secrets<P: Protocol>(
    word: &Word,
    what: &str,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<SharedSecrets>, ConfError> {
    let name = word.bytes.strip_prefix(FLEET).unwrap_or_default();
    let shown = tw_log::Text(name);
    let fleet = cx.find::<Fleet>(name).ok_or_else(|| {
        ConfError::new(format!("unknown fleet \"{shown}\""))
            .at(word.span)
            .hint("a block \"fleet NAME { … }\" in the main context declares it")
    })?;
    if fleet.settings().keys.is_empty() {
        let message = format!("fleet \"{shown}\" has no \"encryption_key\", which {what} in its store need");
        return Err(ConfError::new(message).at(word.span));
    }
    Ok(fleet.use_secrets())
}

/// Clock of keys with a lifetime.
pub fn clock() -> Clock {
    Arc::new(|| tw_rt::clock::unix().secs.unsigned_abs())
}
