//! Sessions over datagrams that go on in the next process: taking one over.
//!
//! ```text
//! HandedSession ─► record, listening socket, server ─► phases ─► proxy/datagrams: peer of the same address, the socket ─► accepted
//!                         └───────── refused ◄───────────┴──────────────┘
//! ```
//! The new configuration decides: a session goes on if it listens on the address and may pass the client to the same upstream server.

use std::rc::Rc;

use tw_core::event_loop::HandedSession;
use tw_net::Addr;
use tw_net::listen::SocketKind;

use crate::application::StreamApplication;
use crate::config::Server;
use crate::datagrams;
use crate::session_record::{InheritedSession, SessionRecord};

/// Returns true if a session with this server says in its record all that the server needs: modules that look at the first datagram need that,
/// and a filter has a state of its own.
pub(crate) fn can_pass(server: &Server) -> bool {
    server.plan.preread.is_empty() && server.plan.filter.is_none()
}

/// Takes over a session of another process, unless the configuration has no place for it.
pub(crate) fn take_over(application: &Rc<StreamApplication>, handed: HandedSession) {
    let event_loop = &application.event_loop;
    let Some(record) = SessionRecord::read(&handed.record) else {
        return event_loop.tally.datagram_sessions_not_taken_over.add(1);
    };
    let listen = Addr::Inet(record.listen);
    let inherited = InheritedSession { record, handed: Some(handed), core: event_loop.core.clone() };
    let generation = application.generation();
    let Some(address) = generation.listening.find(&listen, SocketKind::Datagram) else { return };
    let server = generation.server(address.servers.default_server);
    let is_proxied = server.plan.content.as_ref().is_some_and(|handler| handler.takes_over());
    if let Some(listener) =
        event_loop.core.datagram_listener(&listen).filter(|_| is_proxied && can_pass(server))
    {
        datagrams::resume(application, listener, inherited);
    }
}
