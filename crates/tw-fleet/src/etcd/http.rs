//! HTTP/1.1 to the JSON gateway of etcd: requests one after the other on a few connections, and answers that never end.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tw_net::Transport;
use tw_rt::time::timeout;
use zeroize::Zeroizing;

use super::shared::Etcd;
use crate::engine::EngineError;
use crate::transport::{connect, receive, secure, transmit};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Connections to etcd for requests of one node.
    const CONNECTIONS_MAX: usize = 8, count, "further requests wait";
    /// Time in which etcd has to answer.
    const REQUEST_TIME_MAX: Duration = Duration::from_secs(10), time, "the connection is closed, and made again";
    /// Head of an answer of etcd.
    const HEAD_SIZE_MAX: usize = 16 << 10, bytes, "the connection is closed, and made again";
    /// An answer of etcd.
    const ANSWER_SIZE_MAX: usize = 16 << 20, bytes, "the connection is closed, and made again";
}

/// Answers that are read, without I/O.
#[derive(Debug, Default)]
pub(super) struct AnswerParser {
    input: Vec<u8>,
    status: Option<u16>,
    framing: Framing,
    body: Vec<u8>,
    is_closing: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Framing {
    #[default]
    Head,
    /// Bytes that are left.
    Length(usize),
    /// Chunks follow.
    Chunk,
    /// Bytes of a chunk that are left, with the end of the line.
    InChunk(usize),
    /// Lines after the last chunk.
    Trailer,
    Done,
}

/// Input that is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotHttp;

impl AnswerParser {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Reads on. Returns true if the answer is complete.
    pub(super) fn read(&mut self) -> Result<bool, NotHttp> {
        loop {
            match self.framing {
                Framing::Done => return Ok(true),
                Framing::Head => {
                    let Some(line) = self.line()? else { return Ok(false) };
                    self.head_line(&line)?;
                }
                Framing::Length(remaining) => {
                    let taken = self.take_body(remaining)?;
                    if remaining == taken {
                        self.framing = Framing::Done;
                    } else {
                        self.framing = Framing::Length(remaining - taken);
                        return Ok(false);
                    }
                }
                Framing::Chunk => {
                    let Some(line) = self.line()? else { return Ok(false) };
                    let digits = line.split(';').next().unwrap_or_default().trim();
                    let size = usize::from_str_radix(digits, 16).map_err(|_| NotHttp)?;
                    if size > ANSWER_SIZE_MAX {
                        return Err(NotHttp);
                    }
                    self.framing = if size == 0 { Framing::Trailer } else { Framing::InChunk(size) };
                }
                Framing::InChunk(0) => {
                    match self.line()? {
                        Some(line) if line.is_empty() => self.framing = Framing::Chunk,
                        Some(_) => return Err(NotHttp),
                        None => return Ok(false),
                    };
                }
                Framing::InChunk(remaining) => {
                    let taken = self.take_body(remaining)?;
                    self.framing = Framing::InChunk(remaining - taken);
                    if taken == 0 {
                        return Ok(false);
                    }
                }
                Framing::Trailer => match self.line()? {
                    Some(line) if line.is_empty() => self.framing = Framing::Done,
                    Some(_) => {}
                    None => return Ok(false),
                },
            }
        }
    }

    fn take_body(&mut self, most: usize) -> Result<usize, NotHttp> {
        let size = most.min(self.input.len());
        if self.body.len() + size > ANSWER_SIZE_MAX {
            return Err(NotHttp);
        }
        self.body.extend(self.input.drain(..size));
        Ok(size)
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<Option<String>, NotHttp> {
        let looked_at = self.input.get(..self.input.len().min(HEAD_SIZE_MAX)).unwrap_or_default();
        let Some(end) = looked_at.iter().position(|byte| *byte == b'\n') else {
            return if self.input.len() >= HEAD_SIZE_MAX { Err(NotHttp) } else { Ok(None) };
        };
        let line: Vec<u8> = self.input.drain(..=end).collect();
        let line = String::from_utf8(line).map_err(|_| NotHttp)?;
        Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
    }

    fn head_line(&mut self, line: &str) -> Result<(), NotHttp> {
        let Some(status) = self.status else {
            let mut words = line.split(' ');
            let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
            let status = words.next().and_then(|word| word.parse::<u16>().ok());
            self.status =
                Some(status.filter(|status| is_http && (200..600).contains(status)).ok_or(NotHttp)?);
            // HTTP/1.0 closes the connection unless a field says otherwise.
            self.is_closing = line.starts_with("HTTP/1.0");
            return Ok(());
        };
        if line.is_empty() {
            // A response of etcd with neither a length nor chunks has no body.
            let is_empty = status == 204 || self.body.is_empty();
            self.framing = match std::mem::take(&mut self.body).as_slice() {
                b"chunked" => Framing::Chunk,
                length if !length.is_empty() => {
                    let length = str::from_utf8(length).ok().and_then(|text| text.parse::<usize>().ok());
                    Framing::Length(length.filter(|length| *length <= ANSWER_SIZE_MAX).ok_or(NotHttp)?)
                }
                _ if is_empty => Framing::Length(0),
                _ => return Err(NotHttp),
            };
            return Ok(());
        }
        let (name, value) = line.split_once(':').ok_or(NotHttp)?;
        let value = value.trim();
        // The body has no bytes yet: until the head is over it has how they are framed.
        if name.eq_ignore_ascii_case("content-length") && self.body != b"chunked" {
            self.body = value.as_bytes().to_vec();
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            self.body = value.to_ascii_lowercase().into_bytes();
        } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
            self.is_closing = true;
        }
        Ok(())
    }

    /// The next message of a watch, which is one line of JSON; `None` if it has not come.
    pub(super) fn take_message(&mut self) -> Option<Vec<u8>> {
        if matches!(self.framing, Framing::Head) {
            return None;
        }
        let end = self.body.iter().position(|byte| *byte == b'\n')?;
        let mut message: Vec<u8> = self.body.drain(..=end).collect();
        message.pop();
        Some(message)
    }

    /// Status of the answer.
    pub(super) fn status(&self) -> u16 {
        self.status.unwrap_or(0)
    }
}

/// Requests to one server.
pub(super) struct HttpClient {
    engine: Rc<Etcd>,
    host: String,
    port: u16,
    idle: RefCell<Vec<Transport>>,
    places: Semaphore,
    /// Proof of who we are.
    token: RefCell<Option<Zeroizing<String>>>,
}

/// Answer that never ends.
pub(super) struct Stream {
    transport: Transport,
    parser: AnswerParser,
}

fn lost(why: &str) -> EngineError {
    EngineError::Lost(why.to_owned())
}

impl HttpClient {
    pub(super) fn new(engine: Rc<Etcd>, host: &str, port: u16) -> Self {
        let places = Semaphore::new(CONNECTIONS_MAX);
        let idle = RefCell::default();
        let token = RefCell::default();
        Self { engine, host: host.to_owned(), port, idle, places, token }
    }

    pub(super) fn set_token(&self, token: String) {
        *self.token.borrow_mut() = Some(Zeroizing::new(token));
    }

    async fn open(&self) -> Result<Transport, EngineError> {
        let socket = connect(&self.engine.names, &self.host, self.port).await?;
        match &self.engine.tls {
            Some(config) => secure(socket, config.clone(), &self.host).await,
            None => Ok(Transport::Plain(socket)),
        }
    }

    fn head(&self, path: &str, size: usize) -> Zeroizing<Vec<u8>> {
        let token = self.token.borrow();
        let line = token.as_ref().map_or_else(String::new, |token| format!("Authorization: {}\r\n", **token));
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        Zeroizing::new(
            format!(
                "POST {path} HTTP/1.1\r\nHost: {host}:{}\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n{line}\r\n",
                self.port
            )
            .into_bytes(),
        )
    }

    /// Sends a request. Returns status and body.
    pub(super) async fn post(&self, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), EngineError> {
        match timeout(REQUEST_TIME_MAX, self.try_post(path, body)).await {
            Ok(done) => done,
            Err(_) => Err(EngineError::Lost(format!("no answer within {} s", REQUEST_TIME_MAX.as_secs()))),
        }
    }

    async fn try_post(&self, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), EngineError> {
        let _place: SemaphorePermit<'_> =
            self.places.acquire().await.map_err(|_| lost("the connection was closed"))?;
        let idle = self.idle.borrow_mut().pop();
        let transport = match idle {
            Some(transport) => transport,
            None => self.open().await?,
        };
        transmit(&transport, &self.head(path, body.len())).await?;
        transmit(&transport, body).await?;
        let mut parser = AnswerParser::default();
        let mut buffer = Vec::new();
        while !parser.read().map_err(|_| lost("its answer is not that of etcd"))? {
            buffer.clear();
            receive(&transport, &mut buffer).await?;
            parser.push(&buffer);
        }
        if !parser.is_closing && parser.input.is_empty() {
            self.idle.borrow_mut().push(transport);
        }
        Ok((parser.status(), parser.body))
    }

    /// Sends a request whose answer never ends, on a connection of its own.
    pub(super) async fn stream(&self, path: &str, body: &[u8]) -> Result<Stream, EngineError> {
        let open = async {
            let transport = self.open().await?;
            transmit(&transport, &self.head(path, body.len())).await?;
            transmit(&transport, body).await?;
            Ok(Stream { transport, parser: AnswerParser::default() })
        };
        match timeout(REQUEST_TIME_MAX, open).await {
            Ok(done) => done,
            Err(_) => Err(lost("no connection in time")),
        }
    }
}

impl Stream {
    /// The next message. Waits until there is one; dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Vec<u8>, EngineError> {
        loop {
            let is_over = self.parser.read().map_err(|_| lost("its answer is not that of etcd"))?;
            if let Some(message) = self.parser.take_message() {
                return Ok(message);
            }
            if is_over {
                return Err(EngineError::Lost(format!("a watch has ended ({})", self.parser.status())));
            }
            let mut buffer = Vec::new();
            receive(&self.transport, &mut buffer).await?;
            self.parser.push(&buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::Random;

    use super::*;

    fn all(input: &[u8], piece: usize) -> Result<Option<(u16, Vec<u8>)>, NotHttp> {
        let mut parser = AnswerParser::default();
        for piece in input.chunks(piece) {
            parser.push(piece);
            if parser.read()? {
                return Ok(Some((parser.status(), parser.body)));
            }
        }
        Ok(None)
    }

    #[test]
    fn answers_are_read_however_they_are_split() {
        for (input, status, body) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..], 200, &b"hello"[..]),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n", 200, b"hello"),
            (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length:0\r\n\r\n", 503, b""),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ] {
            for piece in 1..=input.len() {
                assert_eq!(all(input, piece), Ok(Some((status, body.to_vec()))), "{piece}");
            }
        }
    }

    #[test]
    fn other_input_is_refused() {
        for input in [
            &b"INFO {}\r\n"[..],
            b"HTTP/1.1 99 X\r\n",
            b"HTTP/1.1 200 OK\r\nnothing\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        ] {
            assert_eq!(all(input, 3), Err(NotHttp), "{}", String::from_utf8_lossy(input));
        }
        assert_eq!(all(&vec![b'A'; HEAD_SIZE_MAX], 999), Err(NotHttp));
    }

    #[test]
    fn hostile_bytes_never_panic() {
        let words: [&[u8]; 8] = [
            b"HTTP/1.1 200 OK\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"\r\n",
            b"5",
            b"{}\n",
            b"\xff",
            b"Content-Length: ",
            b"0",
        ];
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let mut input = Vec::new();
            for _ in 0..random.below(30) {
                input.extend_from_slice(words[random.below(words.len())]);
            }
            let _ = all(&input, 1 + random.below(9));
        }
    }
}
