//! Renewal of the tokens of a session by its refresh token (OpenID Connect Core 1.0, section 12).
//!
//! ```text
//! request ─ tokens end soon ──► passes; a task of the loop renews them
//!         └ tokens have ended ► waits for the task
//! ```
//! Only requests begin renewals, so a session that nobody uses asks the provider for nothing. A session has one renewal at a time,
//! whatever loop its requests are on: providers that rotate refresh tokens end sessions whose token comes twice. The task belongs to
//! no request, so the new token is kept also if all clients have gone.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tw_log::Level;
use tw_request::config::location::Location;
use tw_request::event_loop::Loop;
use tw_request::request::Request;
use tw_rt::watch::Subject;

use super::discovery::Caller;
use super::provider::Provider;
use super::session::{OidcSession, RenewalNeed, UserTokens};
use super::tokens::RenewalError;

/// Renewal of one session.
struct RenewalTask {
    provider: Arc<Provider>,
    session: Arc<OidcSession>,
    event_loop: Rc<Loop>,
    /// Location of the request that has begun it.
    core: Arc<Location>,
    /// Given back when the session has the new tokens.
    _turn: OwnedSemaphorePermit,
}

/// Begins the renewal of a session, unless one is under way.
pub(super) fn begin(provider: &Arc<Provider>, r: &Request, session: &Arc<OidcSession>) {
    let Ok(turn) = session.renewal.turn.clone().try_acquire_owned() else { return };
    // Another renewal may have ended since this session was looked up.
    if !provider.sessions.is_current(session) {
        return;
    }
    let event_loop = r.client().event_loop.clone();
    let task = RenewalTask {
        provider: provider.clone(),
        session: session.clone(),
        core: r.plan().core.clone(),
        event_loop: event_loop.clone(),
        _turn: turn,
    };
    let subject = Subject { kind: "token renewal", id: event_loop.index as u64 };
    event_loop.connections.spawn_counted(subject, task.run());
}

/// Finds the session of an identifier whose tokens have ended, after a renewal. If the provider cannot be reached, the session goes
/// on as it is; if the provider refuses, it has ended.
pub(super) async fn wait(provider: &Arc<Provider>, r: &Request, id: &[u8]) -> Option<Arc<OidcSession>> {
    // The second time only if the task has ended without a result, with its loop.
    for _ in 0..2 {
        let session = provider.sessions.find(id, tw_rt::clock::now())?;
        if session.renewal_need(tw_rt::clock::now()) != RenewalNeed::Now {
            return Some(session);
        }
        begin(provider, r, &session);
        drop(session.renewal.turn.acquire().await);
    }
    provider.sessions.find(id, tw_rt::clock::now())
}

impl RenewalTask {
    async fn run(self) {
        let Self { provider, session, .. } = &self;
        // The semaphore is never closed.
        let _permit = provider.renewals.acquire().await;
        match self.renew().await {
            Ok(tokens) => {
                provider.counts.renewed.add(1);
                provider.sessions.replace(session.renewed(tokens, provider.session_timeout));
            }
            Err(RenewalError::Refused(why)) => {
                provider.counts.refused.add(1);
                provider.sessions.end(session);
                self.log(Level::Info, format_args!("session ended: {why}"));
            }
            Err(RenewalError::Failed(why)) => {
                provider.counts.failed.add(1);
                session.renewal.note_failure(tw_rt::clock::now());
                self.log(Level::Error, format_args!("tokens are not renewed: {why}"));
            }
        }
    }

    async fn renew(&self) -> Result<UserTokens, RenewalError> {
        let Self { provider, session, .. } = self;
        let caller = Caller::of(&self.event_loop, &self.core, &provider.discovery);
        let Some(refresh_token) = &session.tokens.refresh_token else {
            return Err(RenewalError::Failed("the session has no refresh token".to_owned()));
        };
        let metadata = provider.metadata(caller).await.map_err(RenewalError::Failed)?;
        provider.renew_tokens(&session.tokens, refresh_token, caller, &metadata).await
    }

    fn log(&self, level: Level, text: std::fmt::Arguments<'_>) {
        let process = self.event_loop.process();
        process.error_log.write(level, None, format_args!("OpenID provider: {text}"));
    }
}
