//! HTTP client for requests of the server's own, such as OCSP: one request on a connection of its own, and the
//! content of the response. Every wait has a limit.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tw_accept::OcspClient;
use tw_base::Limit;
use tw_connect::Resolving;
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::reading::{READ_SIZE, read_some};
use tw_connect::upstream_connection::{ReadOutcome, UpstreamConnection};
use tw_http::{Method, base64};
use tw_net::{Addr, ConnectOptions};
use tw_tls::ocsp::ResponderUrl;

use super::codec::http1::Http1Codec;
use super::codec::{Codec, Event};
use crate::event_loop::Loop;
use crate::http::upstream_response::UpstreamResponse;

/// As in nginx.
const INQUIRY_TIME: Duration = Duration::from_secs(60);
/// Bytes of the head of an answer.
const INQUIRY_HEAD_MAX: usize = 8 << 10;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::micros(
        "INQUIRY_TIME",
        INQUIRY_TIME.as_micros() as u64,
        "Time for a question about a certificate (OCSP), from the name of the responder to its answer",
        "the question has failed",
    ),
    Limit::bytes(
        "INQUIRY_HEAD_MAX",
        INQUIRY_HEAD_MAX as u64,
        "Bytes of the head of its answer",
        "the question has failed",
    ),
];

/// OCSP client of a loop.
pub struct LoopOcspClient {
    /// Loop of the connections.
    pub home: Rc<Loop>,
    /// Name servers for hosts of responders.
    pub resolving: Resolving,
}

impl OcspClient for LoopOcspClient {
    async fn query(&self, url: &ResponderUrl, der: &[u8], size_max: usize) -> Result<Vec<u8>, String> {
        let pending = send_query(&self.home, &self.resolving, url, der, size_max);
        match tokio::time::timeout(INQUIRY_TIME, pending).await {
            Ok(answer) => answer,
            Err(_) => Err("responder timed out (110: Connection timed out)".to_owned()),
        }
    }
}

async fn send_query(
    home: &Rc<Loop>,
    resolving: &Resolving,
    url: &ResponderUrl,
    question: &[u8],
    answer_max: usize,
) -> Result<Vec<u8>, String> {
    let pool = home.generation().disks.default_disk().pool().clone();
    let (service, timeout) = resolving.service(true, &pool).await;
    let found = service.addresses(url.host.as_bytes(), timeout).await;
    let found =
        found.map_err(|error| tw_dns::ResolveFailure { name: url.host.as_bytes(), error }.to_string())?;
    let request =
        format!("GET {} HTTP/1.0\r\nHost: {}\r\n\r\n", target(&url.target, question), url.authority);
    let request = Bytes::from(request);
    let mut failed = "no address of the responder".to_owned();
    for ip in found.iter() {
        let to = Addr::Inet((ip, url.port).into());
        match exchange(home, &to, request.clone(), answer_max).await {
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

async fn exchange(
    home: &Rc<Loop>,
    to: &Addr,
    mut request: Bytes,
    answer_max: usize,
) -> Result<Vec<u8>, AttemptFailure> {
    let connection =
        UpstreamConnection::open(home, to, &ConnectOptions::default(), INQUIRY_TIME, None).await?;
    let at = |stage| move |failure: UpstreamFailure| failure.at(stage);
    while !request.is_empty() {
        match connection.write_now(&request).map_err(at(AttemptStage::Sending))? {
            0 => connection.writable(INQUIRY_TIME).await.map_err(at(AttemptStage::Sending))?,
            written => request = request.slice(written..),
        }
    }
    connection.begin_reading(INQUIRY_TIME);
    let mut codec = Http1Codec::new(Method::Get, INQUIRY_HEAD_MAX, false);
    let (mut answer, mut body) = (UpstreamResponse::default(), Vec::new());
    let mut stage = AttemptStage::ReadingHead;
    let invalid = |what: &str, stage| UpstreamFailure::Invalid(what.into()).at(stage);
    loop {
        let (read, mut input) = read_some(&home.buffers, &connection, READ_SIZE).map_err(at(stage))?;
        match read {
            ReadOutcome::Some => {}
            ReadOutcome::Nothing => {
                poll_fn(|cx| connection.poll_readable(cx)).await.map_err(at(stage))?;
                continue;
            }
            ReadOutcome::Closed => {
                codec.closed().map_err(at(stage))?;
                return Ok(body);
            }
        }
        loop {
            match codec.read(&mut input, &mut answer).map_err(at(stage))? {
                Event::NeedMore => break,
                Event::Interim => {}
                Event::Head if answer.status != 200 => {
                    return Err(UpstreamFailure::Status(answer.status).at(stage));
                }
                Event::Head => stage = AttemptStage::ReadingBody,
                Event::Body(piece) if body.len() + piece.len() > answer_max => {
                    return Err(invalid("responder sent too large an answer", stage));
                }
                Event::Body(piece) => body.extend_from_slice(&piece),
                Event::End => return Ok(body),
            }
        }
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
