//! What every gateway can be told, whatever its upstream servers speak: written once, for any prefix.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tw_conf::{Buffers, ConfError, Setting, Word};
use tw_core::reach::{BindsTo, Reach};
use tw_net::ConnectOptions;

use super::bind::{Bind, RawBind};
use super::store::{RawStore, Store};
use super::upstream_tls::{self, Inside, Tls, UpstreamTls};
use crate::config::location::{Location, TempPath, resolver};
use crate::http::cache::settings::HasCacheSettings;
use crate::http::cache::{self, CacheSettings};
use crate::http::forward_head::ForwardRules;
use crate::http::header_names::IgnoredHeaders;
use crate::http::plan::Plan;
use crate::http::request::Request;
use crate::http::retry_conditions::RetryOn;
use crate::load::Resolve;
use crate::vars::Template;

/// Settings of a gateway at one location.
#[derive(Clone)]
pub struct ProxySettings {
    /// `connect_timeout`
    pub connect_timeout: Duration,
    /// `send_timeout`, between two writes.
    pub send_timeout: Duration,
    /// `read_timeout`, between two reads.
    pub read_timeout: Duration,
    /// `next_upstream`
    pub next: RetryOn,
    /// `next_upstream_tries`; 0 is no limit.
    pub next_tries: u64,
    /// `next_upstream_timeout`; zero is no limit.
    pub next_timeout: Duration,
    /// `buffer_size`: bytes of the head of a response.
    pub buffer_size: usize,
    /// `buffers`: what is kept of a body in memory.
    pub buffers: Buffers,
    /// `max_temp_file_size`: bytes of a body in a file; 0 is none.
    pub max_temp_file_size: u64,
    /// `temp_path`; `None` where nothing is ever kept in a file.
    pub temp_path: Option<Arc<TempPath>>,
    /// `buffering`
    pub buffering: bool,
    /// `request_buffering`
    pub request_buffering: bool,
    /// `pass_request_headers`
    pub pass_request_headers: bool,
    /// `pass_request_body`
    pub pass_request_body: bool,
    /// `ignore_client_abort`
    pub ignore_client_abort: bool,
    /// `hide_header`, `ignore_headers`, `intercept_errors` and others: rules for the heads of responses.
    pub forward: ForwardRules,
    /// `limit_rate`: bytes per second that are read of a response.
    pub limit_rate: Option<Template>,
    /// `store`: where copies of responses go.
    pub store: Option<Store>,
    store_access: u32,
    /// `bind`
    pub bind: Bind,
    /// `bind_dynamic`: whether that is computed for each connection, and not once for a request.
    pub bind_dynamic: bool,
    /// `request_dynamic`: whether a request is made anew for each server.
    pub request_dynamic: bool,
    /// `socket_keepalive`, `socket_rcvbuf`, `socket_sndbuf`.
    pub socket: ConnectOptions,
    /// TLS to upstream servers, if one may need it.
    tls: Option<Arc<Tls>>,
    tls_written: Arc<upstream_tls::Written>,
    /// `ssl_name`
    tls_name: Option<Template>,
    /// `allow_upstream`: a server is asked only if all of these are neither empty nor `0`.
    pub allow: Arc<[Template]>,
    /// `cache` and its kin.
    pub cache: CacheSettings,
    /// Tells these settings from all others of the process, be they gone: connections that are kept belong to it.
    pub(super) number: u64,
    hide: Arc<[Box<[u8]>]>,
    pass: Arc<[Box<[u8]>]>,
}

/// The next number of settings; 0 is nobody's.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// The same as written.
#[derive(Default)]
pub struct Raw {
    /// `connect_timeout`
    pub connect_timeout: Setting<Duration>,
    /// `send_timeout`
    pub send_timeout: Setting<Duration>,
    /// `read_timeout`
    pub read_timeout: Setting<Duration>,
    /// `next_upstream`
    pub next: Setting<u32>,
    /// `next_upstream_tries`
    pub next_tries: Setting<u64>,
    /// `next_upstream_timeout`
    pub next_timeout: Setting<Duration>,
    /// `buffer_size`
    pub buffer_size: Setting<usize>,
    /// `buffers`
    pub buffers: Setting<Buffers>,
    /// `busy_buffers_size`
    pub busy_buffers_size: Setting<usize>,
    /// `max_temp_file_size`
    pub max_temp_file_size: Setting<u64>,
    /// `temp_file_write_size`
    pub temp_file_write_size: Setting<usize>,
    /// `temp_path`
    pub temp_path: Setting<TempPath>,
    /// `buffering`
    pub buffering: Setting<bool>,
    /// `request_buffering`
    pub request_buffering: Setting<bool>,
    /// `pass_request_headers`
    pub pass_request_headers: Setting<bool>,
    /// `pass_request_body`
    pub pass_request_body: Setting<bool>,
    /// `intercept_errors`
    pub intercept_errors: Setting<bool>,
    /// `ignore_client_abort`
    pub ignore_client_abort: Setting<bool>,
    /// `force_ranges`
    pub force_ranges: Setting<bool>,
    /// `ignore_headers`
    pub ignored: Setting<u32>,
    /// `hide_header`
    pub hide: Setting<Vec<Box<[u8]>>>,
    /// `pass_header`
    pub pass: Setting<Vec<Box<[u8]>>>,
    /// `limit_rate`
    pub limit_rate: Setting<Word>,
    /// `store`
    pub store: Setting<RawStore>,
    /// `store_access`
    pub store_access: Setting<u32>,
    /// `bind`
    pub bind: Setting<RawBind>,
    /// `bind_dynamic`
    pub bind_dynamic: Setting<bool>,
    /// `request_dynamic`
    pub request_dynamic: Setting<bool>,
    /// `socket_keepalive`
    pub socket_keepalive: Setting<bool>,
    /// `socket_rcvbuf`
    pub socket_rcvbuf: Setting<usize>,
    /// `socket_sndbuf`
    pub socket_sndbuf: Setting<usize>,
    /// `allow_upstream`
    pub allow: Setting<Vec<Word>>,
    /// `ssl_verify` and its kin.
    pub ssl: upstream_tls::Raw,
    /// `cache` and its kin.
    pub cache: cache::settings::Raw,
}

/// A module's settings as written, in which there are those of a gateway.
pub trait HasGateway {
    /// Those.
    fn settings(&mut self) -> &mut Raw;
}

impl<T: HasGateway> HasCacheSettings for T {
    fn cache_settings(&mut self) -> &mut cache::settings::Raw {
        &mut self.settings().cache
    }
}

/// What differs between the gateways.
pub struct Kind {
    /// Prefix of its directives, such as `proxy_`.
    pub prefix: &'static str,
    /// Name of its directory for temporary files, if it has one.
    pub temp_path: Option<&'static [u8]>,
    /// Fields of responses that are not passed on unless `pass_header` says so.
    pub hidden: &'static [&'static str],
    /// Whether a 404 is answered here.
    pub answers_404: bool,
    /// Whether a response is read ahead of a slow client unless the configuration says otherwise.
    pub buffers: bool,
    /// Whether GET can be asked in the place of HEAD, to keep the response.
    pub converts_head: bool,
}

/// Fields of the response of an application that are not passed on unless `pass_header` says so.
pub const HIDDEN_OF_APPLICATIONS: &[&str] = &[
    "Status",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];

impl ProxySettings {
    /// From settings as written to what is used.
    pub fn resolve(
        raw: Raw,
        outer: Option<&Self>,
        kind: &Kind,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let prefix = kind.prefix;
        let page = rustix::param::page_size();
        let minute = Duration::from_secs(60);
        let next = match raw.next.take() {
            Some(bits) => RetryOn::of_bits(bits),
            None => outer.map_or(RetryOn::ERROR.and(RetryOn::TIMEOUT), |o| o.next),
        };
        let buffer_size = raw.buffer_size.or(outer.map(|o| o.buffer_size), page);
        let buffers = raw.buffers.or(outer.map(|o| o.buffers), Buffers { count: 8, size: page });
        if buffers.count < 2 {
            return Err(ConfError::new(format!("there must be at least 2 \"{prefix}buffers\"")));
        }
        let larger = buffer_size.max(buffers.size);
        let all_but_one = (buffers.count - 1) * buffers.size;
        if let Some(busy) = raw.busy_buffers_size.get() {
            let busy = *busy;
            if busy < larger {
                return Err(ConfError::new(format!(
                    "\"{prefix}busy_buffers_size\" must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
                )));
            }
            if busy > all_but_one {
                return Err(ConfError::new(format!(
                    "\"{prefix}busy_buffers_size\" must be less than the size of all \"{prefix}buffers\" minus one buffer"
                )));
            }
        }
        if raw.temp_file_write_size.get().is_some_and(|size| *size < larger) {
            return Err(ConfError::new(format!(
                "\"{prefix}temp_file_write_size\" must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
            )));
        }
        let max_temp_file_size = raw.max_temp_file_size.or(outer.map(|o| o.max_temp_file_size), 1 << 30);
        if max_temp_file_size != 0 && max_temp_file_size < larger as u64 {
            return Err(ConfError::new(format!(
                "\"{prefix}max_temp_file_size\" must be equal to zero to disable temporary files usage or must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
            )));
        }
        let span = raw.temp_path.span();
        let temp_path = match (raw.temp_path.take(), outer) {
            (Some(path), _) => Some(cx.block.temp_path(path, span)),
            (None, Some(outer)) => outer.temp_path.clone(),
            (None, None) => kind.temp_path.map(|name| {
                let path = cx.full_path_c(name);
                cx.block.temp_path(TempPath { path, levels: [0; 3] }, None)
            }),
        };
        let list = |own: Setting<Vec<Box<[u8]>>>, outer: Option<&Arc<[Box<[u8]>]>>| match own.take() {
            Some(own) => own.into(),
            None => outer.cloned().unwrap_or_else(|| [].into()),
        };
        let cache =
            CacheSettings::resolve(raw.cache, outer.map(|o| &o.cache), prefix, kind.converts_head, cx)?;
        let hide = list(raw.hide, outer.map(|o| &o.hide));
        let pass = list(raw.pass, outer.map(|o| &o.pass));
        let usual = kind.hidden.iter().map(|name| name.as_bytes());
        let usual = usual.filter(|name| !pass.iter().any(|passed| passed.eq_ignore_ascii_case(name)));
        // With the time of this server in its place, what comes from the cache would be younger than it is.
        let usual = usual.filter(|name| !(cache.is_rfc9111() && name.eq_ignore_ascii_case(b"Date")));
        let hidden = Arc::new(usual.chain(hide.iter().map(|name| &**name)).collect());
        let outer_rules = outer.map(|o| &o.forward);
        let ignored = raw.ignored.take().map(IgnoredHeaders::of_bits);
        let forward = ForwardRules {
            ignored: ignored.or(outer_rules.map(|o| o.ignored)).unwrap_or_default(),
            hidden,
            force_ranges: raw.force_ranges.or(outer_rules.map(|o| o.force_ranges), false),
            intercept_errors: raw.intercept_errors.or(outer_rules.map(|o| o.intercept_errors), false),
            intercepts_404: kind.answers_404,
        };
        let limit_rate = match raw.limit_rate.take() {
            Some(word) if &*word.bytes == b"0" => None,
            Some(word) => Some(cx.template(&word)?),
            None => outer.and_then(|o| o.limit_rate.clone()),
        };
        let store_access = raw.store_access.or(outer.map(|o| o.store_access), 0o600);
        let store = match raw.store.take() {
            Some(store) => store.resolve(store_access, cx)?,
            None => outer.and_then(|o| o.store.as_ref()).map(|store| store.with_access(store_access)),
        };
        let bind = match raw.bind.take() {
            Some(RawBind::Off) => Bind::Off,
            Some(RawBind::From(address, is_transparent)) => {
                Bind::From { address: cx.template(&address)?, is_transparent }
            }
            None => outer.map_or(Bind::Off, |o| o.bind.clone()),
        };
        let mut ssl = raw.ssl;
        let tls_name = match std::mem::take(&mut ssl.name).take() {
            Some(word) => Some(cx.template(&word)?),
            None => outer.and_then(|o| o.tls_name.clone()),
        };
        let tls_written = upstream_tls::Written::resolve(ssl, outer.map(|o| &o.tls_written));
        let allow = match raw.allow.take() {
            Some(words) => words.iter().map(|word| cx.template(word)).collect::<Result<Arc<[_]>, _>>()?,
            None => outer.map_or_else(|| [].into(), |o| o.allow.clone()),
        };
        Ok(Self {
            connect_timeout: raw.connect_timeout.or(outer.map(|o| o.connect_timeout), minute),
            send_timeout: raw.send_timeout.or(outer.map(|o| o.send_timeout), minute),
            read_timeout: raw.read_timeout.or(outer.map(|o| o.read_timeout), minute),
            next,
            next_tries: raw.next_tries.or(outer.map(|o| o.next_tries), 0),
            next_timeout: raw.next_timeout.or(outer.map(|o| o.next_timeout), Duration::ZERO),
            buffer_size,
            buffers,
            max_temp_file_size,
            temp_path,
            buffering: raw.buffering.or(outer.map(|o| o.buffering), kind.buffers),
            request_buffering: raw.request_buffering.or(outer.map(|o| o.request_buffering), true),
            pass_request_headers: raw.pass_request_headers.or(outer.map(|o| o.pass_request_headers), true),
            pass_request_body: raw.pass_request_body.or(outer.map(|o| o.pass_request_body), true),
            ignore_client_abort: raw.ignore_client_abort.or(outer.map(|o| o.ignore_client_abort), false),
            forward,
            limit_rate,
            store,
            store_access,
            bind,
            bind_dynamic: raw.bind_dynamic.or(outer.map(|o| o.bind_dynamic), false),
            request_dynamic: raw.request_dynamic.or(outer.map(|o| o.request_dynamic), false),
            socket: ConnectOptions {
                keepalive: raw.socket_keepalive.or(outer.map(|o| o.socket.keepalive), false),
                receive_buffer: raw.socket_rcvbuf.take().or(outer.and_then(|o| o.socket.receive_buffer)),
                send_buffer: raw.socket_sndbuf.take().or(outer.and_then(|o| o.socket.send_buffer)),
                ..ConnectOptions::default()
            },
            tls: None,
            tls_written,
            tls_name,
            allow,
            cache,
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            hide,
            pass,
        })
    }

    /// Reads what TLS needs, where servers are, or may be, asked over it.
    pub fn secure(&mut self, kind: &Kind, inside: Inside, cx: &mut Resolve<'_>) -> Result<(), ConfError> {
        self.tls = Some(self.tls_written.tls(kind.prefix, inside, cx)?);
        Ok(())
    }

    /// How connections for `r` to a server called `host` are secured. After [`upstream_tls`](Self::secure).
    pub fn secured(&self, r: &Request, host: &[u8]) -> Option<UpstreamTls> {
        let tls = self.tls.clone()?;
        Some(match &self.tls_name {
            Some(name) => UpstreamTls::new(tls, &name.value(r), r),
            None => UpstreamTls::new(tls, host, r),
        })
    }

    /// Whether the server may be asked that was chosen for `r`.
    pub(super) fn allows(&self, r: &Request) -> bool {
        if self.allow.is_empty() {
            return true;
        }
        // DIFF(nginx): what was computed for another server, or for none, says nothing of this one, `volatile` or not.
        r.bindings.forget_computed();
        !self.allow.iter().any(|condition| matches!(&*condition.value(r), b"" | b"0"))
    }

    /// Whether the name of a server's certificate may be another one for each server.
    pub(super) fn names_each(&self) -> bool {
        self.tls_name.as_ref().is_some_and(|name| name.constant().is_none())
    }

    /// Whether where connections come from is computed once for a request.
    pub(super) fn binds_once(&self) -> bool {
        !self.bind_dynamic && matches!(self.bind, Bind::From { .. })
    }

    /// Bytes of a body in memory at most.
    pub fn memory(&self) -> usize {
        self.buffers.count * self.buffers.size
    }

    /// Returns true if there is a content handler besides that of the module: a location that purges a cache.
    pub fn has_handler(&self) -> bool {
        self.cache.purge_location().is_some()
    }

    /// Installs it.
    pub fn install(&self, plan: &mut Plan) {
        if let Some(location) = self.cache.purge_location() {
            plan.set_content(location);
        }
    }

    /// What the sandbox must allow where the gateway is in use.
    pub fn reach(&self, core: &Location, reach: &mut Reach) {
        reach.connects();
        resolver::reach(reach);
        if let Bind::From { is_transparent, .. } = self.bind {
            reach.binds(if is_transparent { BindsTo::Any } else { BindsTo::Own });
        }
        if let Some(temp) = &self.temp_path {
            reach.changes(&Template::text(temp.path.to_bytes()), None);
        }
        if let Some(store) = &self.store {
            store.reach(core, reach);
        }
        self.cache.reach(reach);
        if let Some(tls) = &self.tls {
            tls.reach(reach);
        }
    }
}
