//! A request as a session: what the kernel and the modules of all protocols ask of it.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use tw_connect::{AttemptFailure, AttemptPeer, AttemptingSession, PassedSession};
use tw_core::session::Session;
use tw_core::vars::{Bindings, ServedSession};
use tw_log::Level;
use tw_net::{Addr, proxy_protocol};
use tw_tls_settings::{TlsInfo, TlsSession};

use super::request::Request;
use super::upstream_state::{Attempt, HttpAttempt};
use crate::vars::{Computed, Slots};

impl Session for Request {
    const TELLS_FORWARDED: bool = true;

    fn client_addr(&self) -> &Addr {
        Self::client_addr(self)
    }

    fn forwarded(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.head.field_all(b"X-Forwarded-For")
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        Self::log(self, level, message);
    }

    fn slots(&self) -> &Slots {
        &self.generation().slots
    }

    fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    fn scratch(&self) -> &Cell<Vec<u8>> {
        &self.client().event_loop.buffers.path
    }

    fn hold<T: 'static>(&mut self, value: Rc<T>) {
        self.extensions.put(value);
    }

    fn block_computation(&self, slot: u16) -> Option<&Computed> {
        self.plan().computed(slot)
    }

    fn warns_of_uninitialized(&self) -> bool {
        self.plan().core.uninitialized_variable_warn
    }
}

impl ServedSession for Request {
    fn loop_index(&self) -> usize {
        self.client().event_loop.index
    }

    fn hostname(&self) -> &[u8] {
        &self.generation().process.hostname
    }

    fn connection_id(&self) -> u64 {
        self.client().id
    }

    fn client_text(&self) -> &str {
        Self::client_text(self)
    }

    fn local_addr(&self) -> &Addr {
        Self::local_addr(self)
    }

    fn proxy_header(&self) -> Option<&proxy_protocol::Header> {
        self.client().proxy.get().map(|header| &**header)
    }
}

impl PassedSession for Request {
    type OwnAttempt = HttpAttempt;

    fn attempts(&self) -> &[Attempt] {
        &self.upstream.attempts
    }

    fn passes(&self) -> impl Iterator<Item = &[Attempt]> {
        self.upstream.passes().map(|pass| pass.attempts)
    }
}

impl AttemptingSession for Request {
    fn begin_attempt(&mut self, to: AttemptPeer, queued: Option<Duration>) {
        self.upstream.begin(to, queued);
    }

    fn record_failure(&mut self, failure: &AttemptFailure) {
        if let Some(attempt) = self.upstream.current() {
            attempt.end();
            attempt.status = failure.cause.status();
        }
        self.upstream.record_failure(failure.cause.cause());
        if let Some(level) = failure.cause.level() {
            self.log(level, format_args!("{failure}"));
        }
    }
}

impl TlsSession for Request {
    fn tls(&self) -> Option<&TlsInfo> {
        self.client().tls.get().map(|tls| &**tls)
    }
}
