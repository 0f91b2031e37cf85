//! Sessions over datagrams: one for each client address and address that it sends to. A datagram that belongs to none begins one.
//!
//! ```text
//! datagram ─► receive ─┬─► session of these addresses: its queue ─► content handler
//!                      └─► none: Client, phases ─ first datagram ─►      │
//!                                                                        └─ over: what is left in the queue begins the next one
//! ```
//! A session stays on its loop. When a reload changes the number of loops, the kernel sends the datagrams of some clients to another loop;
//! as long as there are sessions from before, a datagram without a session passes the other loops before it begins one.
//!
//! Senders can be forged, so nothing grows with them: sessions, queues and the queues of a loop together have limits. A session that is
//! one too many ends the one that has been idle longest.

use std::rc::Rc;

use bytes::Bytes;
use rustix::net::SocketAddrAny;
use tw_core::event_loop::{DatagramListener, PassedDatagram, ReceivedDatagram};
use tw_log::Level;
use tw_net::Addr;
use tw_net::listen::SocketKind;

use crate::application::StreamApplication;
use crate::client::{Client, ClientConnection};
use crate::datagram_client::{DatagramClient, Origin, SessionKey};
use crate::phases;
use crate::session::{SessionTransport, StreamSession};
use crate::session_record::InheritedSession;

pub use crate::datagram_client::DatagramEnding;

/// Begin of a session.
enum Beginning {
    /// The first datagram of its client.
    First(Bytes),
    /// Another process has begun it.
    Inherited(Box<InheritedSession>),
}

/// Hands a datagram to its session, or begins one with it.
pub(crate) fn receive(
    application: &Rc<StreamApplication>,
    listener: &Rc<DatagramListener>,
    datagram: &ReceivedDatagram<'_>,
) {
    let event_loop = &application.event_loop;
    let ReceivedDatagram { bytes, peer, local, listen, .. } = datagram;
    let key = SessionKey::new(listen, peer.cloned(), *local);
    let sessions = &event_loop.datagram_sessions;
    if let Some(client) = sessions.find(key.as_ref()) {
        return client.push(&event_loop.core, Bytes::copy_from_slice(bytes));
    }
    if key.is_some()
        && (sessions.may_be_elsewhere() || event_loop.connections.is_stopping())
        && let Some(passed) = PassedDatagram::searching(&event_loop.core, listener.id, datagram)
    {
        sessions.remember(listener);
        // If the other loops have ended meanwhile, the datagram begins a session here.
        if event_loop.core.pass_searching(passed).is_none() {
            return;
        }
    }
    let peer = peer.cloned();
    let from = *local;
    let listen = Rc::clone(listen);
    let origin = Origin { listener: listener.clone(), peer, from, listen, key };
    begin(application, Rc::new(origin), Beginning::First(Bytes::copy_from_slice(bytes)));
}

/// Hands a datagram that another loop has received to its session, or to the next loop; one for which no loop has a session begins one
/// where it was received, or on any loop if that one is about to end.
pub(crate) fn receive_passed(application: &Rc<StreamApplication>, datagram: PassedDatagram) {
    let event_loop = &application.event_loop;
    let sessions = &event_loop.datagram_sessions;
    let key = SessionKey::new(&datagram.listen, Some(datagram.peer.clone()), datagram.local);
    if let Some(client) = sessions.find(key.as_ref()) {
        if !datagram.has_passed_all() {
            event_loop.tally.datagrams_forwarded.add(1);
        }
        return client.push(&event_loop.core, datagram.bytes);
    }
    let datagram = if datagram.has_passed_all() {
        datagram
    } else {
        match event_loop.core.pass_searching(datagram) {
            Some(datagram) => datagram,
            None => return,
        }
    };
    if event_loop.connections.is_stopping() {
        let port = key.and_then(|key| key.peer.inet()).map_or(0, |peer| peer.port());
        return event_loop.core.pass_new_datagram(port, datagram);
    }
    let of_receiver = datagram.listener().and_then(|id| sessions.listener(id));
    let Some(listener) = of_receiver.or_else(|| event_loop.core.datagram_listener(&datagram.listen)) else {
        return event_loop.tally.datagrams_dropped.add(1);
    };
    let PassedDatagram { bytes, peer, local: from, listen, .. } = datagram;
    let origin = Origin { listener, peer: Some(peer), from, listen: Rc::new(listen), key };
    begin(application, Rc::new(origin), Beginning::First(bytes));
}

/// Goes on with a session that another process has begun. A younger one of the same client, whose datagram has arrived meanwhile, gets no
/// further datagrams.
pub(crate) fn resume(
    application: &Rc<StreamApplication>,
    listener: Rc<DatagramListener>,
    inherited: InheritedSession,
) {
    let record = inherited.record();
    let listen = Addr::Inet(record.listen);
    let peer = SocketAddrAny::from(record.client);
    let key = SessionKey::new(&listen, Some(peer.clone()), record.local);
    let origin = Origin { listener, peer: Some(peer), from: record.local, listen: Rc::new(listen), key };
    begin(application, Rc::new(origin), Beginning::Inherited(Box::new(inherited)));
}

/// Begins a session.
fn begin(application: &Rc<StreamApplication>, origin: Rc<Origin>, beginning: Beginning) {
    let event_loop = &application.event_loop;
    event_loop.datagram_sessions.make_room(&event_loop.core);
    let client = DatagramClient::new(origin, &event_loop.datagram_sessions);
    let over = Over { client, application: application.clone() };
    let started = event_loop.core.spawn_connection(|id| async move {
        serve(&over.client, id, beginning, &over.application).await;
        begin_next(&over.client, &over.application);
    });
    if let Err(exhausted) = started {
        event_loop.tally.datagrams_dropped.add(1);
        event_loop.log_once_a_second(Level::Alert, format_args!("{exhausted}"));
    }
}

/// Removes a session from the table when it is dropped.
struct Over {
    client: Rc<DatagramClient>,
    application: Rc<StreamApplication>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.client.detach();
    }
}

/// Serves the session.
async fn serve(
    datagrams: &Rc<DatagramClient>,
    id: u64,
    beginning: Beginning,
    application: &Rc<StreamApplication>,
) {
    let begun = match &beginning {
        Beginning::First(_) => tw_rt::clock::now(),
        Beginning::Inherited(inherited) => inherited.begun(),
    };
    let connection = ClientConnection {
        id,
        peer: Addr::from(datagrams.origin.peer.clone()),
        listen: datagrams.origin.listen.clone(),
        kind: SocketKind::Datagram,
        accepted: begun,
    };
    let event_loop = application.event_loop.clone();
    let Some(client) = Client::new(connection, event_loop, application.generation()) else { return };
    let mut s = StreamSession::new(client, SessionTransport::Datagrams(datagrams.clone()));
    match beginning {
        Beginning::First(first) => {
            s.add_received(first.len());
            s.preread = first;
        }
        Beginning::Inherited(inherited) => {
            if inherited.is_moved() {
                datagrams.mark_moved();
            }
            datagrams.inherited.set(Some(inherited));
        }
    }
    phases::run(Some(s)).await;
}

/// Begins another session with what is left in the queue, unless there is none to be begun.
pub(crate) fn begin_next(client: &DatagramClient, application: &Rc<StreamApplication>) {
    client.detach();
    let may_begin = client.ending().is_none()
        && !application.event_loop.connections.is_stopping()
        && application.listens_on(&client.origin.listen, SocketKind::Datagram);
    let Some(first) = client.take().filter(|_| may_begin) else { return };
    begin(application, client.origin.clone(), Beginning::First(first));
    let next = client.successor();
    while let (Some(next), Some(datagram)) = (&next, client.take()) {
        next.push(&application.event_loop.core, datagram);
    }
}
