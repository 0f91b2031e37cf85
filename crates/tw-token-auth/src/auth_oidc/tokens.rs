//! Tokens of a provider: the requests for them, and the checks of ID tokens (OpenID Connect Core 1.0, sections 3.1.3 and 12;
//! RFC 6749).

use std::sync::Arc;

use serde_json::{Map, Value};
use tw_http::base64;
use tw_module_support::secret::is_same;

use super::claims::{LEEWAY, check_issuer};
use super::discovery::{Caller, ClientAuthentication, Metadata};
use super::endpoint::{Content, RequestError};
use super::provider::{Provider, Userinfo, component};
use super::session::{UserTokens, life_of};
use crate::jose::{SignatureCheck, Token, TokenError, TokenKind, VerifiedToken};

/// Origin of an ID token, which its claims have to fit.
#[derive(Clone, Copy)]
pub(super) enum IdTokenOrigin<'a> {
    /// Login with this nonce.
    Login { nonce: &'a str },
    /// Renewal of a session with these claims.
    Renewal { claims: &'a Map<String, Value> },
}

/// Failure of a renewal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RenewalError {
    /// The provider ends the session.
    Refused(String),
    /// The provider did not do its part.
    Failed(String),
}

impl Provider {
    /// Exchanges a code for tokens; `form` has its arguments. Errors are texts for the log.
    pub(super) async fn exchange_code(
        &self,
        form: String,
        nonce: &str,
        caller: Caller<'_>,
        metadata: &Metadata,
    ) -> Result<UserTokens, String> {
        let tokens = self.ask_tokens(form, caller, metadata).await.map_err(|error| error.why)?;
        let text = |name: &str| tokens.get(name).and_then(Value::as_str);
        let id_token = text("id_token").ok_or("the response has no \"id_token\"")?;
        let verified = self.verify(id_token.as_bytes(), caller, metadata).await?;
        let verified = self.check_id_token(verified, IdTokenOrigin::Login { nonce })?;
        let access_token = text("access_token").unwrap_or_default();
        let userinfo = self.ask_userinfo(access_token, caller, metadata).await?;
        Ok(UserTokens {
            userinfo: userinfo.map(|body| check_userinfo(body, verified.claims())).transpose()?,
            life: life_of(tokens.get("expires_in"), Some(&verified), tw_rt::clock::unix()),
            id_token: id_token.to_owned(),
            verified: Arc::new(verified),
            access_token: access_token.to_owned(),
            refresh_token: text("refresh_token").map(str::to_owned),
        })
    }

    /// Renews tokens.
    pub(super) async fn renew_tokens(
        &self,
        old: &UserTokens,
        refresh_token: &str,
        caller: Caller<'_>,
        metadata: &Metadata,
    ) -> Result<UserTokens, RenewalError> {
        let form = format!("grant_type=refresh_token&refresh_token={}", component(refresh_token));
        let asked = self.ask_tokens(form, caller, metadata).await;
        let tokens = asked.map_err(|RequestError { error, why }| match error.as_deref() {
            // RFC 6749 section 5.2: the refresh token is not valid any more.
            Some("invalid_grant") => RenewalError::Refused(why),
            _ => RenewalError::Failed(why),
        })?;
        let text = |name: &str| tokens.get(name).and_then(Value::as_str);
        // The old refresh token may be used up, so the new one is kept though keys or userinfo cannot be had now.
        let mut id_token = (old.id_token.clone(), old.verified.clone());
        let mut is_new = false;
        if let Some(new) = text("id_token")
            && let Ok(verified) = self.verify(new.as_bytes(), caller, metadata).await
        {
            let origin = IdTokenOrigin::Renewal { claims: old.verified.claims() };
            let verified = self.check_id_token(verified, origin).map_err(RenewalError::Refused)?;
            (id_token, is_new) = ((new.to_owned(), Arc::new(verified)), true);
        }
        let (id_token, verified) = id_token;
        let access_token = text("access_token").unwrap_or_default();
        let userinfo = match self.ask_userinfo(access_token, caller, metadata).await {
            Ok(Some(body)) => Some(check_userinfo(body, verified.claims()).map_err(RenewalError::Refused)?),
            Ok(None) => None,
            Err(_) => old.userinfo.clone(),
        };
        Ok(UserTokens {
            userinfo,
            life: life_of(
                tokens.get("expires_in"),
                Some(&*verified).filter(|_| is_new),
                tw_rt::clock::unix(),
            ),
            access_token: access_token.to_owned(),
            // RFC 6749 section 6: without a new one the old one goes on.
            refresh_token: Some(text("refresh_token").unwrap_or(refresh_token).to_owned()),
            id_token,
            verified,
        })
    }

    /// Sends a form to the token endpoint, and returns the response.
    async fn ask_tokens(
        &self,
        mut body: String,
        caller: Caller<'_>,
        metadata: &Metadata,
    ) -> Result<Value, RequestError> {
        let id = component(&self.client_id);
        let secret = self.client_secret.as_deref().map(component);
        // RFC 6749 section 2.3.1: both are encoded as in a form first.
        let authorization = match (&secret, metadata.authentication) {
            (Some(secret), ClientAuthentication::Basic) => {
                let encoded = base64::encode(format!("{id}:{secret}").as_bytes());
                Some(format!("Basic {}", String::from_utf8_lossy(&encoded)))
            }
            (Some(secret), ClientAuthentication::Post) => {
                body += &format!("&client_id={id}&client_secret={secret}");
                None
            }
            (None, _) => {
                body += &format!("&client_id={id}");
                None
            }
        };
        let content = Content::Form { body, authorization: authorization.as_deref() };
        let response = caller.ask(&metadata.token, content).await?;
        serde_json::from_slice(&response).map_err(|error| RequestError::new(format!("tokens: {error}")))
    }

    /// Response of the userinfo endpoint; `None` if it is not used.
    async fn ask_userinfo(
        &self,
        access_token: &str,
        caller: Caller<'_>,
        metadata: &Metadata,
    ) -> Result<Option<Vec<u8>>, String> {
        if self.userinfo == Userinfo::Ignored {
            return Ok(None);
        }
        let endpoint = metadata.userinfo.as_ref().ok_or("the provider has no \"userinfo_endpoint\"")?;
        if access_token.is_empty() || !access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the response has no \"access_token\"".to_owned());
        }
        let asked = caller.ask(endpoint, Content::Nothing { bearer: Some(access_token) }).await;
        asked.map(Some).map_err(|error| error.why)
    }

    fn check_id_token(
        &self,
        verified: Result<VerifiedToken, TokenError>,
        origin: IdTokenOrigin<'_>,
    ) -> Result<VerifiedToken, String> {
        let token = verified.map_err(|error| format!("invalid ID token: {error}"))?;
        check_claims(token.claims(), &self.issuer, &self.client_id, origin)
            .map_err(|why| format!("invalid ID token: {why}"))?;
        Ok(token)
    }

    /// Verifies the signature and the times of a token, by new keys if those that are kept do not fit.
    ///
    /// # Errors
    /// The keys could not be fetched.
    pub(super) async fn verify(
        &self,
        text: &[u8],
        caller: Caller<'_>,
        metadata: &Metadata,
    ) -> Result<Result<VerifiedToken, TokenError>, String> {
        let mut is_anew = false;
        loop {
            let keys = self.discovery.keys(caller, metadata, is_anew).await?;
            let token = Token::parse(text, TokenKind::Signed, SignatureCheck::On);
            match token.and_then(|token| token.verify([&*keys].into_iter())) {
                Err(TokenError::NoKey(_) | TokenError::WrongSignature) if !is_anew => is_anew = true,
                verified => {
                    let checked = verified
                        .and_then(|token| token.check_times(tw_rt::clock::unix(), LEEWAY).map(|()| token));
                    return Ok(checked);
                }
            }
        }
    }
}

/// Checks the claims of an ID token (sections 3.1.3.7 and 12.2).
fn check_claims(
    claims: &Map<String, Value>,
    issuer: &str,
    client_id: &str,
    origin: IdTokenOrigin<'_>,
) -> Result<(), String> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    check_issuer(claims, issuer)?;
    let audience = match claims.get("aud") {
        Some(Value::String(one)) => one == client_id,
        Some(Value::Array(all)) => {
            all.iter().any(|one| one == client_id) && (all.len() == 1 || text("azp") == Some(client_id))
        }
        _ => false,
    };
    if !audience || text("azp").is_some_and(|party| party != client_id) {
        return Err("it is for another client".to_owned());
    }
    if text("sub").is_none_or(str::is_empty) || !claims.contains_key("exp") {
        return Err("it has no \"sub\" or no \"exp\"".to_owned());
    }
    match (origin, text("nonce")) {
        (IdTokenOrigin::Login { nonce }, Some(found_text))
            if is_same(found_text.as_bytes(), nonce.as_bytes()) =>
        {
            Ok(())
        }
        (IdTokenOrigin::Login { .. }, _) => Err("it is of another login".to_owned()),
        (IdTokenOrigin::Renewal { claims: old }, _) if claims.get("sub") != old.get("sub") => {
            Err("it is of another user".to_owned())
        }
        (IdTokenOrigin::Renewal { claims: old }, Some(_)) if claims.get("nonce") != old.get("nonce") => {
            Err("it is of another login".to_owned())
        }
        (IdTokenOrigin::Renewal { .. }, _) => Ok(()),
    }
}

/// Checks that a response of the userinfo endpoint is about the user of the ID token (section 5.3.2).
fn check_userinfo(body: Vec<u8>, claims: &Map<String, Value>) -> Result<Vec<u8>, String> {
    let document: Value = serde_json::from_slice(&body).map_err(|error| format!("userinfo: {error}"))?;
    match document.get("sub") {
        Some(sub) if Some(sub) == claims.get("sub") => Ok(body),
        _ => Err("userinfo is that of another user".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn id_tokens_belong_to_issuer_client_and_login() {
        let good = json!({ "iss": "https://i", "aud": "c", "sub": "u", "exp": 1, "nonce": "n" });
        let with = |name: &str, value: Value| {
            let mut claims = good.clone();
            claims[name] = value;
            claims
        };
        let without = |name: &str| {
            let mut claims = good.clone();
            claims.as_object_mut().unwrap().remove(name);
            claims
        };
        for (claims, expected) in [
            (good.clone(), None),
            (with("aud", json!(["c"])), None),
            (with("azp", json!("c")), None),
            (with("iss", json!("https://i/")), Some("it is of another issuer")),
            (without("iss"), Some("it is of another issuer")),
            (with("aud", json!("d")), Some("it is for another client")),
            (with("aud", json!(["c", "d"])), Some("it is for another client")),
            (with("aud", json!([])), Some("it is for another client")),
            (with("azp", json!("d")), Some("it is for another client")),
            (without("aud"), Some("it is for another client")),
            (with("nonce", json!("m")), Some("it is of another login")),
            (with("nonce", json!("")), Some("it is of another login")),
            (without("nonce"), Some("it is of another login")),
            (with("sub", json!("")), Some("it has no \"sub\" or no \"exp\"")),
            (without("exp"), Some("it has no \"sub\" or no \"exp\"")),
        ] {
            let origin = IdTokenOrigin::Login { nonce: "n" };
            let result = check_claims(claims.as_object().unwrap(), "https://i", "c", origin);
            assert_eq!(result.err().as_deref(), expected, "{claims}");
        }
        for (claims, expected) in [
            (good.clone(), None),
            (without("nonce"), None),
            (with("nonce", json!("m")), Some("it is of another login")),
            (with("sub", json!("v")), Some("it is of another user")),
            (with("aud", json!("d")), Some("it is for another client")),
        ] {
            let origin = IdTokenOrigin::Renewal { claims: good.as_object().unwrap() };
            let result = check_claims(claims.as_object().unwrap(), "https://i", "c", origin);
            assert_eq!(result.err().as_deref(), expected, "{claims}");
        }
        let mut several = with("aud", json!(["c", "d"]));
        several["azp"] = json!("c");
        let origin = IdTokenOrigin::Login { nonce: "n" };
        assert_eq!(check_claims(several.as_object().unwrap(), "https://i", "c", origin), Ok(()));
    }

    #[test]
    fn userinfo_is_about_the_same_user() {
        let claims = json!({ "sub": "u" });
        for (body, is_same_user) in
            [(r#"{"sub":"u","name":"x"}"#, true), (r#"{"sub":"v"}"#, false), ("{}", false), ("x", false)]
        {
            let result = check_userinfo(body.as_bytes().to_vec(), claims.as_object().unwrap());
            assert_eq!(result.is_ok(), is_same_user, "{body}");
        }
    }
}
