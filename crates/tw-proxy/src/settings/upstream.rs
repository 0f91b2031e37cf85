//! Settings of attempts: whatever travels over a connection to an upstream server, and CONNECT tunnels, have these.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tw_conf::{ConfError, Setting};
use tw_connect::AttemptLimits;
use tw_connect::settings::{ConnectionSettings, RawConnection, RawTimeouts, Timeouts};
use tw_connect::tls_settings::TlsSettings;
use tw_connect::upstream_tls::RawUpstreamTls;
use tw_core::reach::Reach;
use tw_upstream::RetryBudget;

use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::retry_conditions::RetryOn;

/// Settings of connections to upstream servers and of the attempts made on them.
#[derive(Clone)]
pub struct UpstreamSettings {
    /// Timeouts of one attempt.
    pub timeouts: Timeouts,
    /// Conditions and limits of further attempts.
    pub retry: RetryPolicy,
    /// Sockets, and the servers that may be connected to.
    pub connection: ConnectionSettings<Request>,
    /// `buffer_size`: bytes of a response head, or of each read of a tunnel.
    pub buffer_size: usize,
    /// TLS to upstream servers.
    pub tls: TlsSettings<Request>,
    /// Number that no other settings of the process have or had: keep-alive connections belong to it.
    pub(crate) number: u64,
}

/// Conditions and limits of retries.
#[derive(Clone, Copy)]
pub struct RetryPolicy {
    /// `next_upstream`
    pub on: RetryOn,
    /// `next_upstream_tries` and `next_upstream_timeout`
    pub limits: AttemptLimits,
    /// `next_upstream_budget`; `None` is no limit.
    pub budget: Option<RetryBudget>,
}

/// Directives of [`UpstreamSettings`] as written.
#[derive(Default)]
pub struct RawUpstream {
    /// Directives of [`Timeouts`].
    pub timeouts: RawTimeouts,
    /// Directives of [`RetryPolicy`].
    pub retry: RawRetryPolicy,
    /// Directives of [`ConnectionSettings`].
    pub connection: RawConnection,
    /// `buffer_size`
    pub buffer_size: Setting<usize>,
    /// `ssl_verify` and the other `ssl_` directives.
    pub tls: RawUpstreamTls,
}

/// Directives of [`RetryPolicy`] as written.
#[derive(Default)]
pub struct RawRetryPolicy {
    /// `next_upstream`
    pub on: Setting<u32>,
    /// `next_upstream_tries`
    pub tries: Setting<u64>,
    /// `next_upstream_timeout`
    pub timeout: Setting<Duration>,
    /// `next_upstream_budget`
    pub budget: Setting<Option<RetryBudget>>,
}

/// Module settings as written that contain those of [`UpstreamSettings`].
pub trait HasUpstream {
    /// Returns that part.
    fn upstream(&mut self) -> &mut RawUpstream;
}

/// Next [`UpstreamSettings::number`]; 0 belongs to no settings.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

impl UpstreamSettings {
    /// Resolves the directives against the enclosing block. `buffer_size` is the default.
    pub fn resolve(
        raw: RawUpstream,
        outer: Option<&Self>,
        buffer_size: usize,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        Ok(Self {
            timeouts: Timeouts::resolve(raw.timeouts, outer.map(|o| &o.timeouts)),
            retry: RetryPolicy::resolve(raw.retry, outer.map(|o| &o.retry)),
            connection: ConnectionSettings::resolve(raw.connection, outer.map(|o| &o.connection), cx)?,
            buffer_size: raw.buffer_size.or(outer.map(|o| o.buffer_size), buffer_size),
            tls: TlsSettings::resolve(raw.tls, outer.map(|o| &o.tls), cx)?,
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
        })
    }

    /// Adds to `reach` what the sandbox must allow, but for names of servers.
    pub fn reach(&self, reach: &mut Reach) {
        reach.connects();
        self.connection.reach(reach);
        self.tls.reach(reach);
    }
}

impl RetryPolicy {
    fn resolve(raw: RawRetryPolicy, outer: Option<&Self>) -> Self {
        let on = raw.on.take().map(RetryOn::of_bits).or(outer.map(|o| o.on));
        Self {
            on: on.unwrap_or(RetryOn::ERROR.and(RetryOn::TIMEOUT)),
            limits: AttemptLimits {
                tries: raw.tries.or(outer.map(|o| o.limits.tries), 0),
                timeout: raw.timeout.or(outer.map(|o| o.limits.timeout), Duration::ZERO),
            },
            budget: raw.budget.or(outer.map(|o| o.budget), None),
        }
    }
}
