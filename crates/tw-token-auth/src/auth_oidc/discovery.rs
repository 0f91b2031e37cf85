//! Discovery: metadata of a provider (OpenID Connect Discovery 1.0), and the keys of its tokens.
//!
//! Both are asked for when the first login needs them, by one request at a time, and kept for a while.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Semaphore;
use tw_base::FatalMutex;
use tw_connect::Resolving;
use tw_connect::tls_settings::TlsSettings;
use tw_request::config::location::Location;
use tw_request::event_loop::Loop;
use tw_request::request::Request;

use super::endpoint::{Content, Endpoint, ProviderUrl, REQUESTS_AT_ONCE, RequestError};
use crate::jose::KeySet;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Time for which the metadata and the keys of a provider are kept.
    pub(super) const KEPT_TIME: Duration = Duration::from_secs(3600), time, "it is asked again; keys also when a token has another one";
    /// Time before a provider that failed is asked again.
    pub(super) const RETRY_TIME: Duration = Duration::from_secs(10), time, "it is asked again";
}

/// Metadata of a provider, as far as logins need it.
pub(super) struct Metadata {
    pub(super) authorization: Box<str>,
    pub(super) token: Endpoint,
    pub(super) userinfo: Option<Endpoint>,
    pub(super) end_session: Option<Box<str>>,
    pub(super) authentication: ClientAuthentication,
    /// Responses say who sent them (RFC 9207).
    pub(super) names_issuer: bool,
    keys: Endpoint,
}

/// Way in which this server shows its secret (OpenID Connect Core 1.0, section 9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientAuthentication {
    Basic,
    Post,
}

/// Metadata and keys, shared by all loops.
pub(super) struct Discovery {
    metadata: Fetched<Metadata>,
    keys: Fetched<KeySet>,
    /// Requests to the provider.
    pub(super) permits: Semaphore,
}

/// Connections of a request to the provider.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) event_loop: &'a Rc<Loop>,
    pub(super) resolving: &'a Resolving,
    pub(super) permits: &'a Semaphore,
}

impl<'a> Caller<'a> {
    /// Connections of a loop to the provider of `discovery`, as a location resolves names.
    pub(super) fn of(event_loop: &'a Rc<Loop>, core: &'a Location, discovery: &'a Discovery) -> Self {
        Self { event_loop, resolving: &core.resolving, permits: &discovery.permits }
    }
}

impl Caller<'_> {
    pub(super) async fn ask(
        &self,
        endpoint: &Endpoint,
        content: Content<'_>,
    ) -> Result<Vec<u8>, RequestError> {
        endpoint.request(self.event_loop, self.resolving, self.permits, content).await
    }
}

impl Default for Discovery {
    fn default() -> Self {
        Self { metadata: Fetched::new(), keys: Fetched::new(), permits: Semaphore::new(REQUESTS_AT_ONCE) }
    }
}

impl Discovery {
    /// The metadata of `issuer` at `url`.
    pub(super) async fn metadata(
        &self,
        caller: Caller<'_>,
        url: &str,
        issuer: &str,
        tls: &TlsSettings<Request>,
    ) -> Result<Arc<Metadata>, String> {
        let fetch = async {
            let asked = caller.ask(&Endpoint::new(url, tls)?, Content::Nothing { bearer: None }).await;
            let body = asked.map_err(|error| error.why)?;
            Metadata::parse(&body, issuer, tls).map_err(|why| format!("metadata of \"{issuer}\": {why}"))
        };
        self.metadata.get(KEPT_TIME, fetch).await
    }

    /// The keys of tokens; `is_anew` if those that are kept do not fit.
    pub(super) async fn keys(
        &self,
        caller: Caller<'_>,
        metadata: &Metadata,
        is_anew: bool,
    ) -> Result<Arc<KeySet>, String> {
        let fetch = async {
            let asked = caller.ask(&metadata.keys, Content::Nothing { bearer: None }).await;
            let body = asked.map_err(|error| error.why)?;
            KeySet::parse(&body).map_err(|why| format!("keys of the provider: {why}"))
        };
        self.keys.get(if is_anew { RETRY_TIME } else { KEPT_TIME }, fetch).await
    }
}

impl Metadata {
    fn parse(body: &[u8], issuer: &str, tls: &TlsSettings<Request>) -> Result<Self, String> {
        let document: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        if text("issuer") != Some(issuer) {
            return Err("it has another \"issuer\"".to_owned());
        }
        let needed = |name: &str| text(name).ok_or_else(|| format!("it has no \"{name}\""));
        let optional = |name: &str| text(name).map(|url| Endpoint::new(url, tls)).transpose();
        let shown = |url: &str| match ProviderUrl::parse(url) {
            Some(_) => Ok(Box::from(url)),
            None => Err("it has an invalid URL".to_owned()),
        };
        Ok(Self {
            authorization: shown(needed("authorization_endpoint")?)?,
            token: Endpoint::new(needed("token_endpoint")?, tls)?,
            userinfo: optional("userinfo_endpoint")?,
            end_session: text("end_session_endpoint").map(shown).transpose()?,
            authentication: ClientAuthentication::of(&document),
            names_issuer: document.get("authorization_response_iss_parameter_supported")
                == Some(&true.into()),
            keys: Endpoint::new(needed("jwks_uri")?, tls)?,
        })
    }
}

impl ClientAuthentication {
    /// The way that a provider takes; the default of OpenID Connect is `client_secret_basic`.
    fn of(metadata: &Value) -> Self {
        match metadata.get("token_endpoint_auth_methods_supported") {
            Some(Value::Array(methods))
                if methods.contains(&"client_secret_post".into())
                    && !methods.contains(&"client_secret_basic".into()) =>
            {
                Self::Post
            }
            _ => Self::Basic,
        }
    }
}

/// Something that is fetched by one request at a time. Its lock is held for a look-up.
struct Fetched<T> {
    state: FatalMutex<FetchState<T>>,
    turn: Semaphore,
}

struct FetchState<T> {
    value: Option<(Arc<T>, Instant)>,
    failure: Option<(String, Instant)>,
}

impl<T> Fetched<T> {
    fn new() -> Self {
        let state = FatalMutex::new(FetchState { value: None, failure: None });
        Self { state, turn: Semaphore::new(1) }
    }

    /// The value if it is younger than `age`, or a new one. After a failure an older one, if there is one.
    async fn get(
        &self,
        age: Duration,
        fetch: impl Future<Output = Result<T, String>>,
    ) -> Result<Arc<T>, String> {
        if let Some(value) = self.current(age) {
            return value;
        }
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await;
        if let Some(value) = self.current(age) {
            return value;
        }
        let fetched = fetch.await;
        let now = tw_rt::clock::now();
        let mut state = self.state.lock();
        match fetched {
            Ok(value) => {
                let value = Arc::new(value);
                (state.value, state.failure) = (Some((value.clone(), now)), None);
                Ok(value)
            }
            Err(why) => {
                state.failure = Some((why.clone(), now));
                match &state.value {
                    Some((old, _)) => Ok(old.clone()),
                    None => Err(why),
                }
            }
        }
    }

    /// The value, or the failure, that needs no request.
    fn current(&self, age: Duration) -> Option<Result<Arc<T>, String>> {
        let now = tw_rt::clock::now();
        let is_younger = |at: &Instant, than| now.saturating_duration_since(*at) < than;
        let state = self.state.lock();
        let failed = state.failure.as_ref().filter(|(_, at)| is_younger(at, RETRY_TIME));
        match (&state.value, failed) {
            (Some((value, at)), failed) if failed.is_some() || is_younger(at, age) => Some(Ok(value.clone())),
            (None, Some((why, _))) => Some(Err(why.clone())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use serde_json::json;

    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_request_fetches_for_all_and_failures_are_remembered() {
        let fetched = Fetched::new();
        let fail = || async { Err::<u32, _>("no".to_owned()) };
        assert_eq!(now(fetched.get(KEPT_TIME, fail())), Some(Err("no".to_owned())));
        let never = || async { unreachable!("it failed a moment ago") };
        assert_eq!(now(fetched.get(KEPT_TIME, never())), Some(Err("no".to_owned())));
        let fetched = Fetched::new();
        assert_eq!(now(fetched.get(KEPT_TIME, async { Ok(1) })), Some(Ok(Arc::new(1))));
        assert_eq!(now(fetched.get(KEPT_TIME, async { Ok(2) })), Some(Ok(Arc::new(1))));
        assert_eq!(now(fetched.get(Duration::ZERO, async { Ok(3) })), Some(Ok(Arc::new(3))));
        assert_eq!(now(fetched.get(Duration::ZERO, fail())), Some(Ok(Arc::new(3))));
        // A request that goes away leaves its turn to the next one.
        let fetched = Fetched::new();
        assert_eq!(now(fetched.get(KEPT_TIME, std::future::pending())), None::<Result<Arc<u32>, String>>);
        assert_eq!(now(fetched.get(KEPT_TIME, async { Ok(4) })), Some(Ok(Arc::new(4))));
    }

    #[test]
    fn authentication_is_basic_unless_the_provider_has_only_post() {
        for (metadata, expected) in [
            (json!({}), ClientAuthentication::Basic),
            (
                json!({ "token_endpoint_auth_methods_supported": ["client_secret_post"] }),
                ClientAuthentication::Post,
            ),
            (
                json!({ "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"] }),
                ClientAuthentication::Basic,
            ),
            (
                json!({ "token_endpoint_auth_methods_supported": ["private_key_jwt"] }),
                ClientAuthentication::Basic,
            ),
        ] {
            assert_eq!(ClientAuthentication::of(&metadata), expected, "{metadata}");
        }
    }
}
