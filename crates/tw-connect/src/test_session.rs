//! Session of unit tests: attempts and lines of a log, without a protocol.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use tw_core::session::Session;
use tw_core::vars::{Bindings, Slots, VarTable};
use tw_log::Level;
use tw_net::Addr;
use tw_upstream::{AdminState, BalanceMethod, Group, PeerParams, Server};

use crate::attempts::AttemptingSession;
use crate::failure::AttemptFailure;
use crate::upstream_attempt::{AttemptPeer, PassedSession, UpstreamAttempt};

/// A session that remembers its attempts and what it would log.
pub(crate) struct TestSession {
    pub(crate) attempts: Vec<UpstreamAttempt<()>>,
    /// Number of attempts of each pass.
    pub(crate) passes: Vec<usize>,
    pub(crate) lines: RefCell<Vec<String>>,
    client: Addr,
    slots: Slots<Self>,
    bindings: Bindings,
    scratch: Cell<Vec<u8>>,
}

impl TestSession {
    pub(crate) fn new() -> Self {
        Self {
            attempts: Vec::new(),
            passes: Vec::new(),
            lines: RefCell::default(),
            client: Addr::Inet((Ipv4Addr::LOCALHOST, 1).into()),
            slots: VarTable::default().finish(),
            bindings: Bindings::default(),
            scratch: Cell::default(),
        }
    }
}

impl Session for TestSession {
    fn client_addr(&self) -> &Addr {
        &self.client
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.lines.borrow_mut().push(format!("{}: {message}", level.word()));
    }

    fn slots(&self) -> &Slots<Self> {
        &self.slots
    }

    fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    fn scratch(&self) -> &Cell<Vec<u8>> {
        &self.scratch
    }

    fn hold<T: 'static>(&mut self, _: Rc<T>) {
        unreachable!("attempts hold nothing")
    }
}

impl PassedSession for TestSession {
    type OwnAttempt = ();

    fn attempts(&self) -> &[UpstreamAttempt<()>] {
        &self.attempts
    }

    fn passes(&self) -> impl Iterator<Item = &[UpstreamAttempt<()>]> {
        let mut rest = &self.attempts[..];
        self.passes.iter().map(move |count| {
            let (pass, others) = rest.split_at(*count);
            rest = others;
            pass
        })
    }
}

impl AttemptingSession for TestSession {
    fn begin_attempt(&mut self, to: AttemptPeer, _: Option<Duration>) {
        self.attempts.push(UpstreamAttempt::begin(to, ()));
    }

    fn record_failure(&mut self, _: &AttemptFailure) {}
}

/// A group of a server with these parameters, and of one that is down: the failures of a single server do not count.
pub(crate) fn group(params: PeerParams) -> Group {
    let address = |port| Addr::Inet((Ipv4Addr::LOCALHOST, port).into());
    let server = Server { params, ..Server::fixed("127.0.0.1:9", [address(9)]) };
    let down = PeerParams { admin: AdminState::Down, ..PeerParams::default() };
    let down = Server { params: down, ..Server::fixed("127.0.0.1:10", [address(10)]) };
    Group::new("test", BalanceMethod::RoundRobin, vec![server, down], None)
}
