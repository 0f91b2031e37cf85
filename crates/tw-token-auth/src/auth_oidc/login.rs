//! Logins: the authentication request, the response that the browser brings, and the destination of a logout (OpenID Connect Core
//! 1.0, section 3.1; RFC 7636).

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use tw_core::host_names::HostName;
use tw_core::server_names::ServerName;
use tw_http::escape::{Unescape, unescape};
use tw_http::{HeaderName, base64, target};
use tw_log::Text;
use tw_request::request::Request;

use super::discovery::{Caller, Metadata};
use super::provider::{LogoutHint, Pkce, Provider, component};
use super::sealed_state::{Derived, LoginState};
use super::session::{self, OidcSession, UserTokens};

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of the code of a login.
    pub(super) const CODE_SIZE_MAX: usize = 2048, bytes, "403";
}

/// Redirect that begins a login.
pub(super) struct LoginRedirect {
    pub(super) location: String,
    /// Value of the cookie of the browser.
    pub(super) browser: String,
}

/// Login that the provider has answered.
pub(super) struct Callback {
    /// State as sent.
    pub(super) state: Vec<u8>,
    code: String,
    /// Path and arguments that the login returns to.
    pub(super) uri: Vec<u8>,
}

/// Reason why a response of the provider is none of a login; `Display` has the text of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallbackError {
    /// Not the state of a login that this browser began here a short time ago.
    State,
    /// The state was used before.
    Used,
    /// `error` of the provider.
    Provider(String),
    /// The response is that of another provider.
    Issuer,
    Code,
}

impl fmt::Display for CallbackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State => f.write_str("its state is not that of a login of this browser"),
            Self::Used => f.write_str("its state was used before"),
            Self::Provider(error) => write!(f, "error \"{error}\""),
            Self::Issuer => f.write_str("it is of another issuer"),
            Self::Code => f.write_str("it has no valid code"),
        }
    }
}

/// Host of a request that does not become part of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostError {
    Invalid,
    /// No `server_name` of the server, which is the default one of the address.
    Foreign,
}

impl HostError {
    pub(super) fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Foreign => 421,
        }
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "the request has no valid host",
            Self::Foreign => "the host of the request is no \"server_name\" of the server",
        })
    }
}

/// Returns `true` for a server whose names say nothing about its host: it has none, or `_`.
pub(super) fn is_nameless(names: &[ServerName]) -> bool {
    names
        .iter()
        .all(|name| matches!(name, ServerName::Host(HostName::Exact(name)) if matches!(&**name, b"" | b"_")))
}

/// Host and port of a request. The name is the one that has selected the server; `Host` may have another one beside it.
fn authority(r: &Request) -> Option<String> {
    let name = str::from_utf8(&r.route.host).ok().filter(|name| !name.is_empty())?;
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    let field = r.head.field_known(HeaderName::Host).and_then(|field| field.split_at_checked(name.len()));
    let rest = field.filter(|(host, _)| host.eq_ignore_ascii_case(name.as_bytes())).map(|(_, rest)| rest);
    let port = rest.and_then(|rest| str::from_utf8(rest.strip_prefix(b":")?).ok()?.parse::<u16>().ok());
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    is_plain.then(|| format!("{name}{port}"))
}

impl Provider {
    /// `https://host` of this server for the client of a request.
    pub(super) fn origin(&self, r: &Request) -> Result<String, HostError> {
        if let Some(origin) = &self.origin {
            return Ok(origin.to_string());
        }
        // DIFF(nginx): a host that is no name of the server becomes part of no URL.
        let names = &r.plan().server.names;
        if !is_nameless(names) && !names.iter().any(|name| name.matches(&r.route.host)) {
            return Err(HostError::Foreign);
        }
        let authority = authority(r).ok_or(HostError::Invalid)?;
        Ok(format!("{}://{authority}", r.client().scheme().as_str()))
    }

    /// Returns `true` if the browser uses HTTPS, with this server or with one before it.
    pub(super) fn is_secure(&self, r: &Request) -> bool {
        match &self.origin {
            Some(origin) => origin.starts_with("https:"),
            None => r.client().scheme().is_secure(),
        }
    }

    /// Arguments of a request to the provider that begins a login for `r`.
    pub(super) fn login(
        &self,
        r: &Request,
        origin: &str,
        metadata: &Metadata,
    ) -> Result<LoginRedirect, String> {
        let failed = |_| "no randomness".to_owned();
        let browser = match session::cookie(r, self.login_cookie_name.as_bytes()) {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            None => session::new_id().map_err(failed)?,
        };
        // Only a path is kept, so that a login never leads to another site.
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
        let browser = session::cookie(r, self.login_cookie_name.as_bytes()).ok_or(CallbackError::State)?;
        let text = arg(r, b"state").ok_or(CallbackError::State)?;
        let state = self.keys.open(&text, browser, tw_rt::clock::unix().secs).ok_or(CallbackError::State)?;
        if arg(r, b"iss").is_some_and(|issuer| issuer != self.issuer.as_bytes()) {
            return Err(CallbackError::Issuer);
        }
        if let Some(error) = arg(r, b"error") {
            return Err(CallbackError::Provider(Text(&error).to_string()));
        }
        let code =
            arg(r, b"code").and_then(|code| String::from_utf8(code).ok()).ok_or(CallbackError::Code)?;
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
    ) -> Result<UserTokens, String> {
        let verifier = match self.pkce {
            Pkce::Sha256 => {
                format!("&code_verifier={}", self.keys.derive(Derived::CodeVerifier, &callback.state))
            }
            Pkce::Off => String::new(),
        };
        let form = format!(
            "grant_type=authorization_code&code={}&redirect_uri={}{verifier}",
            component(&callback.code),
            component(&format!("{origin}{}", self.redirect_uri)),
        );
        let nonce = self.keys.derive(Derived::Nonce, &callback.state);
        self.exchange_code(form, &nonce, caller, metadata).await
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
            location += &format!("&id_token_hint={}", session.tokens.id_token);
        }
        Some(location)
    }
}

/// Argument of a request, decoded.
pub(super) fn arg(r: &Request, name: &[u8]) -> Option<Vec<u8>> {
    target::arg(r.head.args(), name).map(decoded)
}

/// Decodes a value among arguments or in a form.
pub(super) fn decoded(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    unescape(value, Unescape::All, &mut out);
    out
}
