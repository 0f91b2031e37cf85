//! Begin of a client's connection: the steps of its listening address (`tw_accept`), then HTTP/1 or HTTP/2.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tw_accept::quic::QuicEndpoints;
use tw_accept::{AcceptedTransport, Preface, Steps, WaitError, ready_or_evicted};
use tw_core::event_loop::{DatagramListener, HandshakeFailure, LevelGuard, PassedDatagram, ReceivedDatagram};
use tw_log::Level;
use tw_net::listen::SocketKind;
use tw_net::{Addr, Transport};
use tw_quic::IncomingConnection;
use tw_rt::Deadline;

use super::handshake::AcceptingClient;
use tw_http_versions::h1::{self, Http1Connection};
use tw_http_versions::h3::directives::Http3;
use tw_http_versions::{h2, h3};
use tw_request::alpn::{HQ, HTTP_2, HTTP_3};
use tw_request::client::Client;
use tw_request::event_loop::Loop;
use tw_request::generation::{ListenGroup, LoopGeneration};
use tw_request::local_future::LocalFuture;

/// Error code of a connection that ends without an error (RFC 9114, section 8.1).
pub(crate) const H3_NO_ERROR: u64 = 0x100;

/// Connections over QUIC of a loop.
pub(crate) fn quic(event_loop: &Loop) -> &QuicEndpoints {
    event_loop.part()
}

/// Takes a datagram of a listening socket for QUIC, and starts a task for the connection that it begins.
pub(crate) fn receive(
    event_loop: &Rc<Loop>,
    listener: &Rc<DatagramListener>,
    datagram: &ReceivedDatagram<'_>,
) {
    let generation = event_loop.generation();
    let settings = || {
        let is_of = |group: &&ListenGroup| group.is_quic() && group.address == **datagram.listen;
        let group = generation.groups.iter().find(is_of)?;
        Some(Http3::of(generation.server(group.default_server))?.address.clone())
    };
    if let Some(incoming) = quic(event_loop).receive(listener, datagram, generation.id, settings) {
        start_quic(event_loop, datagram.listen.clone(), incoming);
    }
}

/// Takes a datagram for QUIC that another loop or process has received.
pub(crate) fn receive_passed(event_loop: &Rc<Loop>, datagram: &PassedDatagram) {
    if let Some(incoming) = quic(event_loop).receive_passed(datagram) {
        start_quic(event_loop, Rc::new(datagram.listen.clone()), incoming);
    }
}

/// Starts the task of a connection over QUIC.
fn start_quic(event_loop: &Rc<Loop>, listen: Rc<Addr>, incoming: IncomingConnection) {
    let peer = Addr::Inet(incoming.peer());
    let own = event_loop.clone();
    let started = event_loop.core().spawn_connection(|id| {
        let client = Client::new(id, peer, listen, SocketKind::Datagram, own);
        client.debug(format_args!("accept: {}", client.peer()));
        serve_quic(client, incoming)
    });
    if let Err(exhausted) = started {
        event_loop.log_once_a_second(Level::Alert, format_args!("{exhausted}"));
    }
}

/// Serves a connection over QUIC until it is closed.
fn serve_quic(client: Rc<Client>, incoming: IncomingConnection) -> impl Future<Output = ()> {
    // A connection does not carry the size of its handshake.
    let accepting = Box::pin(accept_quic(client.clone(), incoming));
    async move {
        let event_loop = client.event_loop.clone();
        let _open = LevelGuard::new(&event_loop.tally.quic_open);
        let accepted = accepting.await;
        if let Some(connection) = accepted {
            h3::serve::serve(client, connection).await;
        }
    }
}

/// Takes a client through the handshake. `None` if the connection ends here.
async fn accept_quic(client: Rc<Client>, incoming: IncomingConnection) -> Option<tw_quic::Connection> {
    let generation = client.event_loop.generation();
    let group = client.group(&generation)?;
    let server = generation.server(group.default_server);
    let local = group.address.inet().and_then(|listen| Some((incoming.local()?, listen.port())));
    client.local_or(|| local.map(|local| Addr::Inet(local.into())));
    let timeout = server.settings.client_header_timeout;
    let connection =
        tw_accept::quic::accept(&AcceptingClient(&client), incoming, &server.quic, timeout).await?;
    connection.set_drop_code(H3_NO_ERROR);
    matches!(client.alpn_protocol(), Some(HTTP_3 | HQ)).then_some(connection)
}

/// Serves a connection, of which `early` was read already, until it is closed.
pub(crate) fn serve(client: Rc<Client>, transport: Transport, early: Vec<u8>) -> impl Future<Output = ()> {
    let generation = client.event_loop.generation();
    let Some(group) = client.group(&generation) else { return Serving::Over };
    match steps(group, &generation) {
        None if transport.is_plain() => {
            let conn = Http1Connection::new(client, transport);
            let early = (!early.is_empty()).then(|| Box::new(early));
            Serving::Http1 { serving: h1::serve::serve(conn, early) }
        }
        // A connection that has sent no byte yet does not carry the size of its steps.
        Some(steps) if transport.is_plain() && early.is_empty() => {
            Serving::Silent { waiting: Box::pin(wait_for_first_bytes(client, transport, steps)) }
        }
        // A connection without steps does not carry their size.
        steps => Serving::WithSteps { serving: Box::pin(serve_with_steps(client, transport, early, steps)) },
    }
}

pin_project! {
    /// A connection while it is served.
    #[project = ServingProjection]
    enum Serving<H> {
        Http1 { #[pin] serving: H },
        Silent { waiting: LocalFuture<'static, Option<LocalFuture<'static, ()>>> },
        WithSteps { serving: LocalFuture<'static, ()> },
        Over,
    }
}

impl<H: Future<Output = ()>> Future for Serving<H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.as_mut().project() {
                ServingProjection::Http1 { serving } => return serving.poll(cx),
                ServingProjection::Silent { waiting } => {
                    let next = match ready!(waiting.as_mut().poll(cx)) {
                        Some(serving) => Serving::WithSteps { serving },
                        None => Serving::Over,
                    };
                    self.set(next);
                }
                ServingProjection::WithSteps { serving } => return serving.as_mut().poll(cx),
                ServingProjection::Over => return Poll::Ready(()),
            }
        }
    }
}

/// Waits for the first byte of a connection, and returns what serves it from there on; `None` if the loop needs its place.
async fn wait_for_first_bytes(
    client: Rc<Client>,
    transport: Transport,
    steps: Steps,
) -> Option<LocalFuture<'static, ()>> {
    let remaining = client.left_of_head(steps.timeout);
    let deadline = RefCell::new(Deadline::new());
    let first_bytes = |cx: &mut Context<'_>| transport.socket().poll_first_bytes(cx);
    match ready_or_evicted(client.evictable(), &deadline, remaining, first_bytes).await {
        Err(WaitError::Evicted) => {
            if steps.tls {
                client.event_loop.tally.handshake_failed(HandshakeFailure::Overload);
            }
            return None;
        }
        // The step finds out again that the time is over or the socket has failed, and logs it.
        Ok(()) | Err(WaitError::Timeout | WaitError::Failed) => {}
    }
    Some(Box::pin(serve_with_steps(client, transport, Vec::new(), Some(steps))))
}

async fn serve_with_steps(client: Rc<Client>, transport: Transport, early: Vec<u8>, steps: Option<Steps>) {
    let accepted = match (transport, steps) {
        (Transport::Plain(socket), Some(steps)) => {
            let accepted = Box::pin(tw_accept::accept(&AcceptingClient(&client), socket, early, steps)).await;
            let Some(accepted) = accepted else { return };
            accepted
        }
        // Passed on after its handshake, which chose the protocol.
        (transport, steps) if steps.is_none_or(|steps| !steps.tls && !steps.proxy_protocol) => {
            AcceptedTransport { transport, early, preface: Preface::Absent }
        }
        _ => return client.log(Level::Error, format_args!("TLS inside of TLS is not supported")),
    };
    let AcceptedTransport { transport, early, preface } = accepted;
    if preface == Preface::Found || client.alpn_protocol() == Some(HTTP_2) {
        Box::pin(h2::serve::serve(client, transport, early)).await
    } else {
        h1::serve::serve(Http1Connection::new(client, transport), Some(Box::new(early))).await
    }
}

/// Steps of an address before the first request; `None` if there are none.
fn steps(group: &ListenGroup, generation: &LoopGeneration) -> Option<Steps> {
    let server = generation.server(group.default_server);
    let proxy_protocol = group.proxy_protocol;
    let tls = group.ssl;
    let preface = (!tls && group.speaks_http2(server)).then_some(h2::PREFACE);
    let timeout = server.settings.client_header_timeout;
    (proxy_protocol || tls || preface.is_some()).then_some(Steps { proxy_protocol, tls, preface, timeout })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, B, C, F>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// The memory of a task is a multiple of 128 bytes, and the loop and the runtime add 136 to its future: an idle connection has
    /// 256 bytes.
    #[test]
    fn future_of_a_connection_fits_in_a_small_task() {
        let size = size_of_future(serve);
        assert!(size <= 120, "{size}");
    }
}
