//! The phases of a session in nginx's order (`ngx_stream_phases`): the life of a session is this file from top to bottom.
//!
//! | phase | who runs there |
//! |---|---|
//! | post-accept | the PROXY protocol header, `set_real_ip_from` |
//! | preaccess | `set`, `limit_conn` |
//! | access | `js_access`, `allow`, `deny` |
//! | ssl | the TLS handshake, which replaces the transport of the session (`handshake`) |
//! | preread | modules that look at the first bytes of the client (`preread`) |
//! | content | `proxy_pass`, `return` |
//! | log | `access_log` |
//!
//! Steps that may wait, as for a script, stand among the handlers of a phase ([`plan::SessionStep`](crate::plan::SessionStep)).

use bytes::Bytes;
use tw_accept::{ProxyHeader, read_proxy_header};
use tw_core::access_check::run_checks;
use tw_core::session::Session;
use tw_log::Level;
use tw_net::Transport;

use crate::handshake;
use crate::plan::{run_access, run_steps};
use crate::preread;
use crate::session::StreamSession;
use crate::status::{PhaseResult, SessionStatus};

/// Serves a session until it is over, and logs it.
#[expect(clippy::manual_async_fn, reason = "an async fn would have the session twice")]
pub(crate) fn run(mut session: Option<StreamSession>) -> impl Future<Output = ()> {
    async move {
        let Some(s) = &mut session else { return };
        log_begin(s);
        let before = before_content(s).await;
        s.decide_counters();
        s.status = match before {
            Ok(()) => content(s).await,
            Err(status) => status,
        };
        if s.status == SessionStatus::PASSED {
            return;
        }
        // A client that left before anything was decided had no session.
        if before != Err(SessionStatus::OK) {
            s.meter.end(s.status.0);
        }
        s.client.debug(format_args!("finalize stream session: {}", s.status.0));
        log(s).await;
    }
}

fn log_begin(s: &StreamSession) {
    let client = &s.client;
    let udp = client.log_prefix();
    let peer = client.peer();
    let listen = &client.listen;
    client.write(Level::Info, format_args!("{udp}client {peer} connected to {listen}"));
}

/// All phases in front of the content.
async fn before_content(s: &mut StreamSession) -> PhaseResult {
    if s.client.sends_proxy_header {
        // Boxed: other sessions stay smaller without this state.
        Box::pin(post_accept(s)).await?;
    }
    let client = s.client.clone();
    let plan = &client.server().plan;
    run_checks(&plan.post_accept, s)?;
    run_access(&plan.preaccess, s).await?;
    run_access(&plan.access, s).await?;
    if client.is_tls {
        Box::pin(handshake::run(s)).await?;
    }
    // The handshake may have led to another server.
    if !client.server().plan.preread.is_empty() {
        Box::pin(preread::run(s)).await?;
    }
    Ok(())
}

/// Reads the PROXY protocol header.
async fn post_accept(s: &mut StreamSession) -> PhaseResult {
    let timeout = s.server().settings.proxy_protocol_timeout;
    let Some(transport) = s.transport.connection().cloned() else { return Ok(()) };
    let Transport::Plain(socket) = &*transport else {
        s.log(Level::Error, format_args!("PROXY protocol inside of TLS is not supported"));
        return Err(SessionStatus::INTERNAL_SERVER_ERROR);
    };
    let early = std::mem::take(&mut s.preread).to_vec();
    match read_proxy_header(&*s.client, socket, early, timeout).await {
        ProxyHeader::Accepted(rest) => {
            s.received = 0;
            s.add_received(rest.len());
            s.preread = Bytes::from(rest);
            Ok(())
        }
        ProxyHeader::Invalid => Err(SessionStatus::BAD_REQUEST),
        ProxyHeader::Absent => Err(SessionStatus::OK),
    }
}

/// Hands the session to the handler of its server.
async fn content(s: &mut StreamSession) -> SessionStatus {
    let client = s.client.clone();
    let server = client.server();
    if let (Some(transport), true) = (s.transport.connection(), server.settings.tcp_nodelay) {
        transport.socket().set_nodelay();
    }
    run_steps(&server.plan.content_steps, s).await;
    run_steps(&server.plan.release_steps, s).await;
    match &server.plan.content {
        Some(handler) => handler.serve(s).await,
        None => {
            client.debug(format_args!("no handler for server"));
            SessionStatus::INTERNAL_SERVER_ERROR
        }
    }
}

/// Logs a session that is over.
async fn log(s: &mut StreamSession) {
    let client = s.client.clone();
    let plan = &client.server().plan;
    run_steps(&plan.log_steps, s).await;
    for logger in &plan.loggers {
        logger.record(s);
    }
    run_steps(&plan.end_steps, s).await;
}
