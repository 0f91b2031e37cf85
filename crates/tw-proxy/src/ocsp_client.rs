//! OCSP client: one question on a connection of its own. Every wait has a limit.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::Resolving;
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::upstream_connection::UpstreamConnection;
use tw_http::{Method, base64};
use tw_net::{Addr, ConnectOptions};
use tw_tls::ocsp::ResponderUrl;
use tw_tls_settings::OcspClient;

use super::codec::http1::Http1Codec;
use super::own_request::{OwnRequest, OwnResponse, exchange};
use tw_request::event_loop::Loop;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for a question about a certificate (OCSP), from the name of the responder to its answer.
    ///
    /// As in nginx.
    const INQUIRY_TIME: Duration = Duration::from_secs(60), time, "the question has failed";
    /// Bytes of the head of its answer.
    const INQUIRY_HEAD_MAX: usize = 8 << 10, bytes, "the question has failed";
}

/// OCSP client of a loop.
pub struct LoopOcspClient {
    /// Loop of the connections.
    pub event_loop: Rc<Loop>,
    /// Name servers for hosts of responders.
    pub resolving: Resolving,
}

impl OcspClient for LoopOcspClient {
    async fn query(&self, url: &ResponderUrl, der: &[u8], size_max: usize) -> Result<Vec<u8>, String> {
        let pending = send_query(&self.event_loop, &self.resolving, url, der, size_max);
        match tw_rt::time::timeout(INQUIRY_TIME, pending).await {
            Ok(answer) => answer,
            Err(_) => Err("responder timed out (110: Connection timed out)".to_owned()),
        }
    }
}

async fn send_query(
    event_loop: &Rc<Loop>,
    resolving: &Resolving,
    url: &ResponderUrl,
    question: &[u8],
    answer_max: usize,
) -> Result<Vec<u8>, String> {
    let pool = event_loop.generation().disks.default_disk().pool().clone();
    let (service, timeout) = resolving.service(true, &pool).await;
    let addresses = service.addresses(url.host.as_bytes(), timeout).await;
    let addresses =
        addresses.map_err(|error| tw_dns::ResolveFailure { name: url.host.as_bytes(), error }.to_string())?;
    let request =
        format!("GET {} HTTP/1.0\r\nHost: {}\r\n\r\n", target(&url.target, question), url.authority);
    let request = Bytes::from(request);
    let mut failed = "no address of the responder".to_owned();
    for ip in addresses.iter() {
        let to = Addr::Inet((ip, url.port).into());
        match ask(event_loop, &to, request.clone(), answer_max).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failed = failure.to_string(),
        }
    }
    Err(failed)
}

/// The path with the question behind it, as text that a path can have.
fn target(path: &str, question: &[u8]) -> String {
    let mut target = path.to_owned();
    if !target.ends_with('/') {
        target.push('/');
    }
    for byte in base64::encode(question) {
        match byte {
            b'+' => target.push_str("%2B"),
            b'/' => target.push_str("%2F"),
            b'=' => target.push_str("%3D"),
            byte => target.push(char::from(byte)),
        }
    }
    target
}

async fn ask(
    event_loop: &Rc<Loop>,
    to: &Addr,
    head: Bytes,
    size_max: usize,
) -> Result<Vec<u8>, AttemptFailure> {
    let connection =
        UpstreamConnection::open(event_loop, to, &ConnectOptions::default(), INQUIRY_TIME, None).await?;
    let mut codec = Http1Codec::new(Method::Get, INQUIRY_HEAD_MAX, false);
    let timeout = INQUIRY_TIME;
    let total = INQUIRY_TIME;
    let request = OwnRequest { head, body: Bytes::new(), timeout, total, size_max };
    let answered = exchange(event_loop, &connection, &mut codec, request, |status| status == 200).await;
    let OwnResponse { head, body } = answered?;
    match head.status {
        200 => Ok(body),
        status => Err(UpstreamFailure::Status(status).at(AttemptStage::ReadingHead)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_in_paths() {
        for (path, question, expected) in [
            ("/", &b"ask"[..], "/YXNr"),
            ("/a", b"a", "/a/YQ%3D%3D"),
            ("/a/", b"\xfb\xef\xff", "/a/%2B%2B%2F%2F"),
        ] {
            assert_eq!(target(path, question), expected);
        }
    }
}
