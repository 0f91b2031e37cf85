//! Settings of attempts: whatever travels over a connection to an upstream server, and CONNECT tunnels, have these.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tw_conf::{ConfError, Setting, Word};
use tw_core::reach::{BindsTo, Reach};
use tw_log::Level;
use tw_net::ConnectOptions;

use super::tls::TlsSettings;
use crate::config::location::resolver;
use crate::http::proxy::bind::{Bind, RawBind, bind_address};
use crate::http::proxy::upstream_tls;
use crate::http::request::Request;
use crate::http::retry_conditions::RetryOn;
use crate::load::Resolve;
use crate::vars::Template;

/// Settings of connections to upstream servers and of the attempts made on them.
#[derive(Clone)]
pub struct UpstreamSettings {
    /// Timeouts of one attempt.
    pub timeouts: Timeouts,
    /// Conditions and limits of further attempts.
    pub retry: RetryPolicy,
    /// Sockets, and the servers that may be connected to.
    pub connection: ConnectionSettings,
    /// `buffer_size`: bytes of a response head, or of each read of a tunnel.
    pub buffer_size: usize,
    /// TLS to upstream servers.
    pub tls: TlsSettings,
    /// Number that no other settings of the process have or had: keep-alive connections belong to it.
    pub(in crate::http::proxy) number: u64,
}

/// Timeouts of one attempt.
#[derive(Clone, Copy)]
pub struct Timeouts {
    /// `connect_timeout`
    pub connect: Duration,
    /// `send_timeout`, between two writes.
    pub send: Duration,
    /// `read_timeout`, between two reads.
    pub read: Duration,
}

/// Conditions and limits of retries.
#[derive(Clone, Copy)]
pub struct RetryPolicy {
    /// `next_upstream`
    pub on: RetryOn,
    /// `next_upstream_tries`; 0 is no limit.
    pub tries: u64,
    /// `next_upstream_timeout`; zero is no limit.
    pub timeout: Duration,
}

/// Settings of connections.
#[derive(Clone)]
pub struct ConnectionSettings {
    /// `bind`
    bind: Bind,
    /// `bind_dynamic`: set if the address is computed for each connection instead of once for a request.
    bind_dynamic: bool,
    /// `socket_keepalive`, `socket_rcvbuf`, `socket_sndbuf`.
    socket: ConnectOptions,
    /// `allow_upstream`: a server is tried only if all of these are neither empty nor `0`.
    pub allow: Arc<[Template]>,
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
    pub tls: upstream_tls::RawUpstreamTls,
}

/// Directives of [`Timeouts`] as written.
#[derive(Default)]
pub struct RawTimeouts {
    /// `connect_timeout`
    pub connect: Setting<Duration>,
    /// `send_timeout`
    pub send: Setting<Duration>,
    /// `read_timeout`
    pub read: Setting<Duration>,
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
}

/// Directives of [`ConnectionSettings`] as written.
#[derive(Default)]
pub struct RawConnection {
    /// `bind`
    pub bind: Setting<RawBind>,
    /// `bind_dynamic`
    pub bind_dynamic: Setting<bool>,
    /// `socket_keepalive`
    pub socket_keepalive: Setting<bool>,
    /// `socket_rcvbuf`
    pub socket_rcvbuf: Setting<usize>,
    /// `socket_sndbuf`
    pub socket_sndbuf: Setting<usize>,
    /// `allow_upstream`
    pub allow: Setting<Vec<Word>>,
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

    /// Adds to `reach` what the sandbox must allow.
    pub fn reach(&self, reach: &mut Reach) {
        reach.connects();
        resolver::reach(reach);
        if let Bind::From { is_transparent, .. } = self.connection.bind {
            reach.binds(if is_transparent { BindsTo::Any } else { BindsTo::Own });
        }
        self.tls.reach(reach);
    }
}

impl Timeouts {
    fn resolve(raw: RawTimeouts, outer: Option<&Self>) -> Self {
        let minute = Duration::from_secs(60);
        Self {
            connect: raw.connect.or(outer.map(|o| o.connect), minute),
            send: raw.send.or(outer.map(|o| o.send), minute),
            read: raw.read.or(outer.map(|o| o.read), minute),
        }
    }
}

impl RetryPolicy {
    fn resolve(raw: RawRetryPolicy, outer: Option<&Self>) -> Self {
        let on = raw.on.take().map(RetryOn::of_bits).or(outer.map(|o| o.on));
        Self {
            on: on.unwrap_or(RetryOn::ERROR.and(RetryOn::TIMEOUT)),
            tries: raw.tries.or(outer.map(|o| o.tries), 0),
            timeout: raw.timeout.or(outer.map(|o| o.timeout), Duration::ZERO),
        }
    }
}

impl ConnectionSettings {
    fn resolve(raw: RawConnection, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let bind = match raw.bind.take() {
            Some(RawBind::Off) => Bind::Off,
            Some(RawBind::From(address, is_transparent)) => {
                Bind::From { address: cx.template(&address)?, is_transparent }
            }
            None => outer.map_or(Bind::Off, |o| o.bind.clone()),
        };
        let allow = match raw.allow.take() {
            Some(words) => words.iter().map(|word| cx.template(word)).collect::<Result<Arc<[_]>, _>>()?,
            None => outer.map_or_else(|| [].into(), |o| o.allow.clone()),
        };
        Ok(Self {
            bind,
            bind_dynamic: raw.bind_dynamic.or(outer.map(|o| o.bind_dynamic), false),
            socket: ConnectOptions {
                keepalive: raw.socket_keepalive.or(outer.map(|o| o.socket.keepalive), false),
                receive_buffer: raw.socket_rcvbuf.take().or(outer.and_then(|o| o.socket.receive_buffer)),
                send_buffer: raw.socket_sndbuf.take().or(outer.and_then(|o| o.socket.send_buffer)),
                ..ConnectOptions::default()
            },
            allow,
        })
    }

    /// Socket options of a connection for `r`.
    pub(in crate::http::proxy) fn options(&self, r: &Request) -> ConnectOptions {
        let mut options = self.socket.clone();
        if let Bind::From { address, is_transparent } = &self.bind {
            let text = address.value(r);
            match bind_address(&text) {
                Some(address) => (options.bind, options.transparent) = (Some(address), *is_transparent),
                None if text.is_empty() => {}
                None => {
                    r.log(Level::Error, format_args!("invalid local address \"{}\"", tw_log::Text(&text)))
                }
            }
        }
        options
    }

    /// Socket options of all connections for `r`, if `bind` is computed once for a request.
    pub(in crate::http::proxy) fn options_once(&self, r: &Request) -> Option<ConnectOptions> {
        let is_once = !self.bind_dynamic && matches!(self.bind, Bind::From { .. });
        is_once.then(|| self.options(r))
    }

    /// Returns true if the server chosen for `r` may be tried.
    pub(in crate::http::proxy) fn allows(&self, r: &Request) -> bool {
        if self.allow.is_empty() {
            return true;
        }
        // DIFF(nginx): what was computed for another server, or for none, says nothing of this one, `volatile` or not.
        r.bindings.forget_computed();
        !self.allow.iter().any(|condition| matches!(&*condition.value(r), b"" | b"0"))
    }
}
