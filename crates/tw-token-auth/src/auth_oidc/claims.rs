//! Checks of claims that ID tokens and logout tokens share.

use std::time::Duration;

use serde_json::{Map, Value};

/// Difference between the clocks of the provider and of this server.
pub(super) const LEEWAY: Duration = Duration::from_secs(60);

/// Checks that a token is of this issuer.
pub(super) fn check_issuer(claims: &Map<String, Value>, issuer: &str) -> Result<(), String> {
    match claims.get("iss") {
        Some(Value::String(text)) if text == issuer => Ok(()),
        _ => Err("it is of another issuer".to_owned()),
    }
}
