//! One health check of an auth server: a connection of its own, a request, and the status of the answer. All of it has one time.

use tw_connect::UpstreamConnection;
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::health::CheckFailure;
use tw_connect::upstream_tls::TlsPools;
use tw_net::{Addr, ConnectOptions};
use tw_rt::Deadline;

use crate::auth_http::settings::{AuthHttp, AuthTarget};
use crate::auth_http::{receive, response};
use crate::health_check::{CheckProtocol, HealthCheck, STATUS_LINE_MAX};
use crate::session::MailSession;

/// Checks the auth server at `addr`. `s` is the session in whose place that is done: variables in the settings of TLS have its values.
pub(super) async fn probe(s: &MailSession, check: &HealthCheck, addr: &Addr) -> Result<(), CheckFailure> {
    let settings = &s.server().auth_http;
    let Some(target) = &settings.target else {
        return Err(CheckFailure::Request("there is no auth server".to_owned()));
    };
    let to = match (addr, check.port) {
        (Addr::Inet(addr), Some(port)) => Addr::Inet((addr.ip(), port).into()),
        _ => addr.clone(),
    };
    let mut deadline = Deadline::new();
    deadline.set(check.timeout);
    let connection = open(s, target, &to, check).await.map_err(CheckFailure::Upstream)?;
    let CheckProtocol::Request(uri) = &check.protocol else { return Ok(()) };
    let request = request(uri, target, settings);
    let asked = deadline.guard(ask(&connection, &request)).await;
    let status = asked.unwrap_or_else(|_| Err(reading(UpstreamFailure::ReceiveTimeout)))?;
    match (200..400).contains(&status) {
        true => Ok(()),
        false => Err(CheckFailure::Answer(format!("status {status}"))),
    }
}

async fn open(
    s: &MailSession,
    target: &AuthTarget,
    to: &Addr,
    check: &HealthCheck,
) -> Result<UpstreamConnection, AttemptFailure> {
    let secured = s.server().auth_http.tls.for_host(s, &target.host).filter(|_| target.is_secured);
    let pools = secured.as_ref().map(|_| TlsPools::of(&s.client.generation.disks));
    let core = &s.event_loop().core;
    let options = ConnectOptions::default();
    UpstreamConnection::open(core, to, &options, check.timeout, secured.as_ref().zip(pools)).await
}

/// The request for a page. The server closes the connection behind its answer.
fn request(uri: &[u8], target: &AuthTarget, settings: &AuthHttp) -> Vec<u8> {
    [b"GET ", uri, b" HTTP/1.0\r\nHost: ", &target.host, b"\r\n", &*settings.headers, b"\r\n"].concat()
}

fn reading(failure: UpstreamFailure) -> CheckFailure {
    CheckFailure::Upstream(failure.at(AttemptStage::ReadingHead))
}

/// Sends the request, and returns the status of the answer.
async fn ask(connection: &UpstreamConnection, request: &[u8]) -> Result<u16, CheckFailure> {
    let sending = |failure: UpstreamFailure| CheckFailure::Upstream(failure.at(AttemptStage::Sending));
    connection.send_all(request).await.map_err(sending)?;
    let mut line = Vec::new();
    loop {
        receive(connection, &mut line, STATUS_LINE_MAX).await.map_err(reading)?;
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            let invalid = || CheckFailure::Answer("invalid status line".to_owned());
            return response::http_status(&line).ok_or_else(invalid);
        }
        if line.len() >= STATUS_LINE_MAX {
            return Err(CheckFailure::Answer("too long status line".to_owned()));
        }
    }
}
