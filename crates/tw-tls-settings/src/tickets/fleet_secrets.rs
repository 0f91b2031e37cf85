//! Parameter `fleet=NAME` of directives whose keys come from the secrets that all nodes of a fleet share.

use std::sync::Arc;

use tw_conf::{ConfError, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_fleet::find_encrypting_fleet;
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
    cx: &Resolve<'_, P>,
) -> Result<Arc<SharedSecrets>, ConfError> {
    let name = word.bytes.strip_prefix(FLEET).unwrap_or_default();
    Ok(find_encrypting_fleet(name, word.span, what, |name| cx.find(name))?.use_secrets())
}

/// Clock of keys with a lifetime.
pub fn clock() -> Clock {
    Arc::new(|| tw_rt::clock::unix().secs.unsigned_abs())
}
