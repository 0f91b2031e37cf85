//! Logins: the authentication request, the exchange of the code, and the checks of the ID token (OpenID Connect Core 1.0,
//! section 3.1; RFC 6749; RFC 7636).

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Map, Value};
use tw_http::escape::{Unescape, unescape};
use tw_http::{Known, base64, target};
use tw_log::Text;
use tw_server::http::request::Request;

use super::discovery::{Caller, ClientAuthentication, Metadata};
use super::endpoint::Content;
use super::provider::{LogoutHint, Pkce, Provider, Userinfo, component};
use super::sealed_state::{Derived, LoginState};
use super::session::{self, OidcSession};
use crate::jose::{Token, TokenError, TokenKind, VerifiedToken};
use crate::secret::is_same;

/// Bytes of a code.
pub(super) const CODE_SIZE_MAX: usize = 2048;
/// Difference between the clocks of the provider and of this server.
const LEEWAY: Duration = Duration::from_secs(60);

/// Redirect that begins a login.
pub(super) struct LoginRedirect {
    pub(super) location: String,
    /// Value of the cookie of the browser.
    pub(super) browser: String,
}

/// Login that the provider has answered.
pub(super) struct Callback {
    /// State as sent.
    state: Vec<u8>,
    code: String,
    /// Path and arguments that the login returns to.
    pub(super) uri: Vec<u8>,
}

/// Reason why a response of the provider is none of a login; `Display` has the text of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallbackError {
    /// Not the state of a login that this browser began here a short time ago.
    State,
    /// `error` of the provider.
    Provider(String),
    /// The response is that of another provider.
    Issuer,
    Code,
}

impl std::fmt::Display for CallbackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::State => f.write_str("its state is not that of a login of this browser"),
            Self::Provider(error) => write!(f, "error \"{error}\""),
            Self::Issuer => f.write_str("it is of another issuer"),
            Self::Code => f.write_str("it has no valid code"),
        }
    }
}

/// `https://host` of a request.
pub(super) fn origin(r: &Request) -> Option<String> {
    let host = r.head.field_known(Known::Host).unwrap_or(&r.route.host);
    let host = str::from_utf8(host).ok().filter(|host| !host.is_empty())?;
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    is_plain.then(|| format!("{}://{host}", r.client().scheme().as_str()))
}

impl Provider {
    /// Arguments of a request to the provider that begins a login for `r`.
    pub(super) fn login(&self, r: &Request, metadata: &Metadata) -> Result<LoginRedirect, String> {
        let failed = |_| "no randomness".to_owned();
        let origin = origin(r).ok_or("the request has no valid host")?;
        let browser = match session::cookie(r, self.login_cookie_name.as_bytes()) {
            Some(known) => String::from_utf8_lossy(known).into_owned(),
            None => session::new_id().map_err(failed)?,
        };
        // Only a path: a login leads nowhere else.
        let uri = Some(r.head.target()).filter(|target| target.starts_with(b"/")).unwrap_or(b"/");
        let state = LoginState { began: tw_rt::clock::unix().secs, uri: uri.to_vec() };
        let state = self.keys.seal(&state, browser.as_bytes()).map_err(failed)?;
        let separator = if metadata.authorization.contains('?') { '&' } else { '?' };
        let mut location = format!(
            "{}{separator}response_type=code&{}&redirect_uri={}&state={state}&nonce={}",
            metadata.authorization,
            self.auth_args,
            component(&format!("{origin}{}", self.redirect_uri)),
            self.keys.derive(Derived::Nonce, state.as_bytes()),
        );
        if self.pkce == Pkce::Sha256 {
            let verifier = self.keys.derive(Derived::CodeVerifier, state.as_bytes());
            let challenge = base64::encode_url(digest(&SHA256, verifier.as_bytes()).as_ref());
            location += &format!("&code_challenge={challenge}&code_challenge_method=S256");
        }
        Ok(LoginRedirect { location, browser })
    }

    /// Reads the response of the provider, which the browser brings.
    pub(super) fn read_callback(&self, r: &Request) -> Result<Callback, CallbackError> {
        let args = r.head.args();
        let arg = |name: &[u8]| {
            target::arg(args, name).map(|value| {
                let mut out = Vec::with_capacity(value.len());
                unescape(value, Unescape::All, &mut out);
                out
            })
        };
        let browser = session::cookie(r, self.login_cookie_name.as_bytes()).ok_or(CallbackError::State)?;
        let text = arg(b"state").ok_or(CallbackError::State)?;
        let state = self.keys.open(&text, browser, tw_rt::clock::unix().secs).ok_or(CallbackError::State)?;
        if arg(b"iss").is_some_and(|issuer| issuer != self.issuer.as_bytes()) {
            return Err(CallbackError::Issuer);
        }
        if let Some(error) = arg(b"error") {
            return Err(CallbackError::Provider(Text(&error).to_string()));
        }
        let code = arg(b"code").and_then(|code| String::from_utf8(code).ok()).ok_or(CallbackError::Code)?;
        if code.is_empty()
            || code.len() > CODE_SIZE_MAX
            || !code.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        {
            return Err(CallbackError::Code);
        }
        Ok(Callback { state: text, code, uri: state.uri })
    }

    /// Exchanges the code for tokens, and checks these. Errors are texts for the log.
    pub(super) async fn exchange(
        &self,
        callback: &Callback,
        origin: &str,
        caller: Caller<'_>,
        metadata: &Metadata,
    ) -> Result<OidcSession, String> {
        let verifier = match self.pkce {
            Pkce::Sha256 => {
                format!("&code_verifier={}", self.keys.derive(Derived::CodeVerifier, &callback.state))
            }
            Pkce::Off => String::new(),
        };
        let mut body = format!(
            "grant_type=authorization_code&code={}&redirect_uri={}{verifier}",
            component(&callback.code),
            component(&format!("{origin}{}", self.redirect_uri)),
        );
        let (id, secret) = (component(&self.client_id), self.client_secret.as_deref().map(component));
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
        let tokens: Value = serde_json::from_slice(&response).map_err(|error| format!("tokens: {error}"))?;
        let text = |name: &str| tokens.get(name).and_then(Value::as_str);
        let id_token = text("id_token").ok_or("the response has no \"id_token\"")?;
        let nonce = self.keys.derive(Derived::Nonce, &callback.state);
        let verified = self.verify(id_token, &nonce, caller, metadata).await?;
        let access_token = text("access_token").unwrap_or_default();
        let userinfo = match (self.userinfo, &metadata.userinfo) {
            (Userinfo::Ignored, _) => None,
            (Userinfo::Fetched, None) => return Err("the provider has no \"userinfo_endpoint\"".to_owned()),
            (Userinfo::Fetched, Some(endpoint)) => {
                if access_token.is_empty() || !access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return Err("the response has no \"access_token\"".to_owned());
                }
                let body = caller.ask(endpoint, Content::Nothing { bearer: Some(access_token) }).await?;
                Some(check_userinfo(body, verified.claims())?)
            }
        };
        let (began, lifetime) = (tw_rt::clock::now(), self.session_timeout);
        let (id_token, access_token) = (id_token.to_owned(), access_token.to_owned());
        Ok(OidcSession { id_token, verified, access_token, userinfo, began, lifetime })
    }

    /// Verifies an ID token, by new keys if those that are kept do not fit.
    async fn verify(
        &self,
        text: &str,
        nonce: &str,
        caller: Caller<'_>,
        metadata: &Metadata,
    ) -> Result<VerifiedToken, String> {
        let mut is_anew = false;
        loop {
            let keys = self.discovery.keys(caller, metadata, is_anew).await?;
            let token = Token::parse(text.as_bytes(), TokenKind::Signed);
            let verified = token.and_then(|token| token.verify([&*keys].into_iter()));
            match verified {
                Err(TokenError::NoKey(_) | TokenError::WrongSignature) if !is_anew => is_anew = true,
                Err(error) => return Err(format!("invalid ID token: {error}")),
                Ok(token) => {
                    let checked = token.check_times(tw_rt::clock::unix(), LEEWAY);
                    checked.map_err(|error| format!("invalid ID token: {error}"))?;
                    check_claims(token.claims(), &self.issuer, &self.client_id, nonce)
                        .map_err(|why| format!("invalid ID token: {why}"))?;
                    return Ok(token);
                }
            }
        }
    }

    /// Destination of a logout: the provider, a page here, or none.
    pub(super) fn logout_location(
        &self,
        origin: &str,
        metadata: Option<&Metadata>,
        session: Option<&Arc<OidcSession>>,
    ) -> Option<String> {
        let after = self.post_logout_uri.as_ref().map(|path| format!("{origin}{path}"));
        let Some(end_session) = metadata.and_then(|metadata| metadata.end_session.as_deref()) else {
            return after;
        };
        let separator = if end_session.contains('?') { '&' } else { '?' };
        let mut location = format!("{end_session}{separator}client_id={}", component(&self.client_id));
        if let Some(after) = after {
            location += &format!("&post_logout_redirect_uri={}", component(&after));
        }
        if let (LogoutHint::IdToken, Some(session)) = (self.logout_token_hint, session) {
            location += &format!("&id_token_hint={}", session.id_token);
        }
        Some(location)
    }
}

/// Checks the claims of an ID token (section 3.1.3.7).
fn check_claims(
    claims: &Map<String, Value>,
    issuer: &str,
    client_id: &str,
    nonce: &str,
) -> Result<(), String> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(issuer) {
        return Err("it is of another issuer".to_owned());
    }
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
    match text("nonce") {
        Some(of_token) if is_same(of_token.as_bytes(), nonce.as_bytes()) => Ok(()),
        _ => Err("it is of another login".to_owned()),
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
            let found = check_claims(claims.as_object().unwrap(), "https://i", "c", "n");
            assert_eq!(found.err().as_deref(), expected, "{claims}");
        }
        let mut several = with("aud", json!(["c", "d"]));
        several["azp"] = json!("c");
        assert_eq!(check_claims(several.as_object().unwrap(), "https://i", "c", "n"), Ok(()));
    }

    #[test]
    fn userinfo_is_about_the_same_user() {
        let claims = json!({ "sub": "u" });
        for (body, is_same_user) in
            [(r#"{"sub":"u","name":"x"}"#, true), (r#"{"sub":"v"}"#, false), ("{}", false), ("x", false)]
        {
            let found = check_userinfo(body.as_bytes().to_vec(), claims.as_object().unwrap());
            assert_eq!(found.is_ok(), is_same_user, "{body}");
        }
    }
}
