//! Settings of connections to upstream servers: timeouts, sockets, and the servers that may be connected to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{ConfError, Setting, Word};
use tw_core::load::Resolve;
use tw_core::reach::{BindsTo, Reach};
use tw_core::session::Session;
use tw_core::vars::Template;
use tw_log::Level;
use tw_net::ConnectOptions;

use crate::bind::{Bind, RawBind, bind_address};
use crate::protocol::ConnectingProtocol;

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

/// Settings of connections.
pub struct ConnectionSettings<S> {
    /// `bind`
    bind: Bind<S>,
    /// `bind_dynamic`: set if the address is computed for each connection instead of once for a request.
    bind_dynamic: bool,
    /// `socket_keepalive`, `socket_rcvbuf`, `socket_sndbuf`.
    socket: ConnectOptions,
    /// `allow_upstream`: a server is tried only if all of these are neither empty nor `0`.
    pub allow: Arc<[Template<S>]>,
}

impl<S> Clone for ConnectionSettings<S> {
    fn clone(&self) -> Self {
        Self {
            bind: self.bind.clone(),
            bind_dynamic: self.bind_dynamic,
            socket: self.socket.clone(),
            allow: self.allow.clone(),
        }
    }
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

impl Timeouts {
    /// Resolves the directives against the enclosing block.
    pub fn resolve(raw: RawTimeouts, outer: Option<&Self>) -> Self {
        let minute = Duration::from_secs(60);
        Self {
            connect: raw.connect.or(outer.map(|o| o.connect), minute),
            send: raw.send.or(outer.map(|o| o.send), minute),
            read: raw.read.or(outer.map(|o| o.read), minute),
        }
    }
}

impl<S: Session> ConnectionSettings<S> {
    /// Resolves the directives against the enclosing block.
    ///
    /// # Errors
    /// An unknown variable.
    pub fn resolve<P: ConnectingProtocol<Session = S>>(
        raw: RawConnection,
        outer: Option<&Self>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Self, ConfError> {
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

    /// Adds to `reach` the right to bind.
    pub fn reach(&self, reach: &mut Reach) {
        if let Bind::From { is_transparent, .. } = self.bind {
            reach.binds(if is_transparent { BindsTo::Any } else { BindsTo::Own });
        }
    }

    /// Local address of a connection for `s` (`bind`); `None` if the kernel chooses it.
    pub fn local_address(&self, s: &S) -> Option<SocketAddr> {
        let Bind::From { address, .. } = &self.bind else { return None };
        let text = address.value(s);
        let address = bind_address(&text);
        if address.is_none() && !text.is_empty() {
            s.log(Level::Error, format_args!("invalid local address \"{}\"", tw_log::Text(&text)));
        }
        address
    }

    /// Socket options of a connection that comes from this local address.
    pub fn options_from(&self, local: Option<SocketAddr>) -> ConnectOptions {
        let is_transparent = matches!(self.bind, Bind::From { is_transparent: true, .. });
        let transparent = local.is_some() && is_transparent;
        ConnectOptions { bind: local, transparent, ..self.socket.clone() }
    }

    /// Socket options of a connection for `s`.
    pub fn options(&self, s: &S) -> ConnectOptions {
        self.options_from(self.local_address(s))
    }

    /// Socket options of all connections for `s`, if `bind` is computed once for a request.
    pub fn options_once(&self, s: &S) -> Option<ConnectOptions> {
        let is_once = !self.bind_dynamic && matches!(self.bind, Bind::From { .. });
        is_once.then(|| self.options(s))
    }

    /// Local address of all connections for `s`, if `bind` is computed once for a request; otherwise `None`.
    pub fn local_address_once(&self, s: &S) -> Option<SocketAddr> {
        if self.bind_dynamic { None } else { self.local_address(s) }
    }

    /// Local address of one more connection for `s`, for which [`Self::local_address_once`] was `once`.
    pub fn next_local_address(&self, s: &S, once: Option<SocketAddr>) -> Option<SocketAddr> {
        if self.bind_dynamic { self.local_address(s) } else { once }
    }

    /// Returns true if the server chosen for `s` may be tried.
    pub fn allows(&self, s: &S) -> bool {
        if self.allow.is_empty() {
            return true;
        }
        // DIFF(nginx): what was computed for another server, or for none, says nothing of this one, `volatile` or not.
        s.bindings().forget_computed();
        !self.allow.iter().any(|condition| matches!(&*condition.value(s), b"" | b"0"))
    }
}
