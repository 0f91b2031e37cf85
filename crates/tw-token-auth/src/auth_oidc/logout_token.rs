//! Logout tokens, by which a provider ends sessions without the browser (OpenID Connect Back-Channel Logout 1.0).

use std::time::Duration;

use serde_json::Value;
use tw_rt::clock::UnixTime;

use super::claims::{LEEWAY, check_issuer};
use super::session_table::SessionName;
use crate::jose::VerifiedToken;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Age of a logout token.
    pub(super) const LOGOUT_TOKEN_AGE_MAX: Duration = Duration::from_secs(600), time, "400";
}

/// Time for which the identifier of a logout token is remembered: as long as the token is accepted, whatever the clocks show.
pub(super) const IDENTIFIER_TIME: Duration = LOGOUT_TOKEN_AGE_MAX.saturating_add(LEEWAY.saturating_mul(2));
/// Member of `events` that makes a token one of a logout.
const EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// Logout that a token asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Logout<'t> {
    pub(super) name: SessionName<'t>,
    /// Identifier of the token.
    pub(super) identifier: &'t str,
}

/// Checks a token whose signature and times are valid (section 2.6).
pub(super) fn check<'t>(
    token: &'t VerifiedToken,
    issuer: &str,
    client_id: &str,
    now: UnixTime,
) -> Result<Logout<'t>, String> {
    let claims = token.claims();
    let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let kind = token.header().get("typ").map(|kind| kind.as_str().unwrap_or_default());
    if kind.is_some_and(|kind| {
        !["logout+jwt", "jwt"].iter().any(|candidate| kind.eq_ignore_ascii_case(candidate))
    }) {
        return Err("it is no logout token (\"typ\")".to_owned());
    }
    check_issuer(claims, issuer)?;
    let audience = match claims.get("aud") {
        Some(Value::String(one)) => one == client_id,
        Some(Value::Array(all)) => all.iter().any(|one| one == client_id),
        _ => false,
    };
    if !audience {
        return Err("it is for another client".to_owned());
    }
    if !claims.get("events").and_then(|events| events.get(EVENT)).is_some_and(Value::is_object) {
        return Err("it is no logout token (\"events\")".to_owned());
    }
    if claims.contains_key("nonce") {
        return Err("it has a \"nonce\"".to_owned());
    }
    let issued = claims.get("iat").and_then(Value::as_f64).ok_or("it has no \"iat\"")?;
    let age = now.secs as f64 - issued;
    if age < -LEEWAY.as_secs_f64() || age > (LOGOUT_TOKEN_AGE_MAX + LEEWAY).as_secs_f64() {
        return Err("its \"iat\" is not now".to_owned());
    }
    let name = match (text("sid"), text("sub")) {
        (Some(sid), sub) => SessionName::Session(sid, sub),
        (None, Some(sub)) => SessionName::User(sub),
        (None, None) => return Err("it has neither \"sid\" nor \"sub\"".to_owned()),
    };
    Ok(Logout { name, identifier: text("jti").ok_or("it has no \"jti\"")? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn logout_tokens_are_checked_claim_by_claim() {
        let good = json!({
            "iss": "https://i", "aud": "c", "iat": 1000, "exp": 1100, "jti": "j", "sid": "s", "sub": "u",
            "events": { EVENT: {} },
        });
        for (name, value, expected) in [
            ("aud", json!(["d", "c"]), Ok(SessionName::Session("s", Some("u")))),
            ("sub", Value::Null, Ok(SessionName::Session("s", None))),
            ("sid", Value::Null, Ok(SessionName::User("u"))),
            ("iat", json!(1059), Ok(SessionName::Session("s", Some("u")))),
            ("iat", json!(341), Ok(SessionName::Session("s", Some("u")))),
            ("iat", json!(1061), Err("its \"iat\" is not now")),
            ("iat", json!(339), Err("its \"iat\" is not now")),
            ("iat", json!("1000"), Err("it has no \"iat\"")),
            ("iat", Value::Null, Err("it has no \"iat\"")),
            ("iss", json!("https://j"), Err("it is of another issuer")),
            ("aud", json!("d"), Err("it is for another client")),
            ("aud", Value::Null, Err("it is for another client")),
            ("events", json!({}), Err("it is no logout token (\"events\")")),
            ("events", json!([EVENT]), Err("it is no logout token (\"events\")")),
            ("events", json!({ EVENT: true }), Err("it is no logout token (\"events\")")),
            ("events", Value::Null, Err("it is no logout token (\"events\")")),
            ("nonce", json!("n"), Err("it has a \"nonce\"")),
            ("jti", json!(""), Err("it has no \"jti\"")),
            ("jti", Value::Null, Err("it has no \"jti\"")),
        ] {
            let mut claims = good.clone();
            let members = claims.as_object_mut().unwrap();
            match &value {
                Value::Null => drop(members.remove(name)),
                value => drop(members.insert(name.to_owned(), value.clone())),
            }
            let token = VerifiedToken::of_claims(&claims);
            let found_logout = check(&token, "https://i", "c", UnixTime { secs: 1000, msec: 0 });
            let expected = expected.map_err(str::to_owned);
            assert_eq!(found_logout.map(|logout| logout.name), expected, "{name} {value}");
        }
        let mut nobody = good.clone();
        (nobody["sid"], nobody["sub"]) = (json!(""), json!(1));
        let token = VerifiedToken::of_claims(&nobody);
        let found_logout = check(&token, "https://i", "c", UnixTime { secs: 1000, msec: 0 });
        assert_eq!(found_logout, Err("it has neither \"sid\" nor \"sub\"".to_owned()));
    }
}
