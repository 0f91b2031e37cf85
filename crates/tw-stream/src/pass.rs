//! Hand-over of a connection to another listening address of the configuration (nginx: ngx_stream_pass_module). The directive is in
//! `tw-modules`.

use std::any::Any;
use std::rc::Rc;

use tw_core::event_loop::{AcceptedConnection, PassedConnection};
use tw_core::session::Session;
use tw_log::Level;
use tw_net::Addr;
use tw_net::listen::SocketKind;

use crate::session::{SessionStatus, StreamSession};

tw_base::limits! {
    /// Limits of the hand-over.
    pub(crate) const LIMITS;

    /// Times that one connection is passed from one listening address to another.
    const PASSES_MAX: u32 = 10, count, "the session ends with status 500";
}

/// Passes the connection of `s` to the listening address that takes connections for `to`, and waits until it is closed.
pub async fn pass(s: &mut StreamSession, to: &Addr) -> SessionStatus {
    let Some(transport) = s.transport.connection() else {
        s.log(Level::Error, format_args!("cannot pass udp connection"));
        return SessionStatus::INTERNAL_SERVER_ERROR;
    };
    if !transport.is_plain() && !s.preread.is_empty() {
        s.log(Level::Error, format_args!("cannot pass connection with preread data"));
        return SessionStatus::INTERNAL_SERVER_ERROR;
    }
    s.client.debug(format_args!("stream pass addr: \"{to}\""));
    if s.passes >= PASSES_MAX {
        s.log(Level::Error, format_args!("stream pass cycle"));
        return SessionStatus::INTERNAL_SERVER_ERROR;
    }
    let event_loop = s.client.event_loop.clone();
    let process = event_loop.process();
    let takes = |listen: &Addr| match (listen.inet(), to.inet()) {
        (Some(listen), Some(to)) if listen.ip().is_unspecified() => {
            listen.port() == to.port() && listen.is_ipv4() == to.is_ipv4()
        }
        _ => listen == to,
    };
    let mut listens = process.listens.iter().filter(|listen| listen.options.kind == SocketKind::Stream);
    let address = listens.find(|listen| takes(&listen.address)).map(|listen| listen.address.clone());
    let (Some(listen), Some(services)) = (address, event_loop.services()) else {
        s.log(Level::Error, format_args!("port not found for \"{to}\""));
        return SessionStatus::OK;
    };
    drop(process);
    let Some(transport) = s.take_connection() else {
        return SessionStatus::INTERNAL_SERVER_ERROR;
    };
    let passed = PassedConnection {
        local: to.clone(),
        early: std::mem::take(&mut s.preread).to_vec(),
        passes: s.passes + 1,
        tls: s.client.tls().map(|tls| Box::new(tls.clone()) as Box<dyn Any>),
        proxy_header: s.client.proxy.get().cloned(),
    };
    let connection = AcceptedConnection {
        id: s.client.id,
        transport,
        peer: s.client_addr().clone(),
        listen: Rc::new(listen),
        passed: Some(Box::new(passed)),
    };
    // The session of this protocol ends here, the connection does not.
    s.meter.end(SessionStatus::PASSED.0);
    s.open = None;
    services.serve(connection).await;
    SessionStatus::PASSED
}
