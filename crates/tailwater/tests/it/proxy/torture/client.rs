//! Client that sends one case after another in the manner of each, and checks the response.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use tw_testkit::wait;

use super::case::{Answer, Case, Manner, May, Step};

/// Time without a byte after which a request counts as hung.
const TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes that a slow reader takes between two pauses.
const SIP: usize = 16 << 10;

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// All of its response.
    Whole,
    /// A beginning of it.
    Truncated,
    /// A status in its place.
    Refused(u16),
    /// The client did not wait for it.
    Left,
}

/// A client that sends requests one after the other, on as few connections as possible.
pub(super) struct Client {
    addr: SocketAddr,
    conn: Option<BufReader<TcpStream>>,
}

/// A received response.
struct Got {
    status: u16,
    seed: Option<String>,
    body: Vec<u8>,
    is_whole: bool,
    /// True if another request may follow.
    is_kept: bool,
}

/// Reason why there is no response.
enum Failed {
    /// The connection was closed before a byte of the response.
    Closed(io::Error),
    /// Something else.
    Wrong(String),
    /// The client has disconnected as planned.
    Left,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Wrong(error.to_string())
    }
}

impl Client {
    pub(super) fn new(addr: SocketAddr) -> Self {
        Self { addr, conn: None }
    }

    /// Sends `case`; the error says what is wrong with the response.
    pub(super) fn request(&mut self, case: &Case) -> Result<Outcome, String> {
        if case.is_fresh {
            self.conn = None;
        }
        let is_kept = self.conn.is_some();
        let mut got = self.attempt(case);
        // A connection may be closed while nothing is asked on it.
        if is_kept && matches!(got, Err(Failed::Closed(_))) {
            got = self.attempt(case);
        }
        match got {
            Ok(got) => check(case, &got),
            Err(Failed::Left) => Ok(Outcome::Left),
            Err(Failed::Closed(error)) => Err(format!("no response: {error}")),
            Err(Failed::Wrong(what)) => Err(what),
        }
    }

    fn attempt(&mut self, case: &Case) -> Result<Got, Failed> {
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => {
                let stream = TcpStream::connect(self.addr)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                BufReader::new(stream)
            }
        };
        send(conn.get_mut(), case)?;
        let got = read(&mut conn, case)?;
        if got.is_kept {
            self.conn = Some(conn);
        }
        Ok(got)
    }
}

/// Sends the request, or as much of it as this client sends.
fn send(stream: &mut TcpStream, case: &Case) -> Result<(), Failed> {
    let Case { method, place, seed, .. } = case;
    let (announced, upload) = case.upload.framed(&case.uploaded(), case);
    let head = format!("{method} /{place}/{seed:016x} HTTP/1.1\r\nHost: a\r\n{announced}\r\n");
    let all = [head.as_bytes(), &upload].concat();
    let until = match case.manner {
        Manner::Vanishes(Step::Connected) => 0,
        Manner::Vanishes(Step::HalfAHead) => head.len() / 2,
        Manner::Vanishes(Step::HalfAnUpload) => head.len() + upload.len() / 2,
        _ => all.len(),
    };
    let piece = if case.manner == Manner::SlowToSend { all.len() / 5 + 1 } else { all.len() };
    for piece in all[..until].chunks(piece) {
        // A server that answers early need not read the rest.
        match stream.write_all(piece) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Failed::Wrong("the request is not taken".to_owned()));
            }
            Err(_) => break,
        }
        if case.manner == Manner::SlowToSend {
            wait::pause(PAUSE);
        }
    }
    match case.manner {
        Manner::Vanishes(Step::HalfAnAnswer) => Ok(()),
        Manner::Vanishes(_) => {
            leave(stream, case);
            Err(Failed::Left)
        }
        _ => Ok(()),
    }
}

/// Disconnects, by FIN or RST.
fn leave(stream: &TcpStream, case: &Case) {
    if case.seed.is_multiple_of(2) {
        let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
    } else {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn read(conn: &mut BufReader<TcpStream>, case: &Case) -> Result<Got, Failed> {
    let head = loop {
        let head = head(conn)?;
        if !head.starts_with("HTTP/1.1 1") {
            break head;
        }
    };
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let status = head.get(9..12).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| Failed::Wrong(format!("what is {head:?}?")))?;
    let mut got = Got {
        status,
        seed: field("X-Seed: "),
        body: Vec::new(),
        is_whole: true,
        is_kept: field("Connection: close").is_none(),
    };
    if case.method == "HEAD" || status == 304 {
        return Ok(got);
    }
    let length = field("Content-Length: ").and_then(|length| length.parse().ok());
    let most = if case.manner == Manner::Vanishes(Step::HalfAnAnswer) { case.size / 2 } else { usize::MAX };
    let slow = case.manner == Manner::SlowToRead;
    let ended = match length {
        Some(length) => pull(conn, length, most, slow, &mut got.body),
        None if field("Transfer-Encoding: chunked").is_some() => chunks(conn, most, slow, &mut got.body),
        None => Err(Failed::Wrong(format!("no framing: {head}"))),
    };
    match ended {
        Ok(()) => {}
        Err(Failed::Left) => {
            leave(conn.get_ref(), case);
            return Err(Failed::Left);
        }
        Err(Failed::Closed(_)) => (got.is_whole, got.is_kept) = (false, false),
        Err(wrong) => return Err(wrong),
    }
    Ok(got)
}

fn head(conn: &mut BufReader<TcpStream>) -> Result<String, Failed> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        match conn.read_line(&mut head) {
            Ok(1..) => {}
            Ok(_) if head.is_empty() => return Err(Failed::Closed(io::ErrorKind::UnexpectedEof.into())),
            Err(error) if head.is_empty() && !is_late(&error) => return Err(Failed::Closed(error)),
            Ok(_) => return Err(Failed::Wrong(format!("half a head: {head:?}"))),
            Err(error) => return Err(Failed::Wrong(format!("{error}, after {head:?}"))),
        }
    }
    Ok(head)
}

/// Reads `length` bytes behind what is there; leaves once there are `most`.
fn pull(
    conn: &mut BufReader<TcpStream>,
    length: usize,
    most: usize,
    slow: bool,
    body: &mut Vec<u8>,
) -> Result<(), Failed> {
    let mut remaining = length;
    while remaining > 0 {
        if body.len() >= most {
            return Err(Failed::Left);
        }
        let begin = body.len();
        body.resize(begin + remaining.min(SIP), 0);
        let read = conn.read(&mut body[begin..]);
        body.truncate(begin + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => return Err(Failed::Closed(io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => remaining -= n,
            Err(error) if is_late(&error) => {
                return Err(Failed::Wrong(format!("hangs, {remaining} bytes left")));
            }
            Err(error) => return Err(Failed::Closed(error)),
        }
        if slow {
            wait::pause(PAUSE);
        }
    }
    Ok(())
}

fn chunks(
    conn: &mut BufReader<TcpStream>,
    most: usize,
    slow: bool,
    body: &mut Vec<u8>,
) -> Result<(), Failed> {
    loop {
        let line = line(conn)?;
        let size = usize::from_str_radix(&line, 16).map_err(|_| Failed::Wrong(format!("chunk {line:?}")))?;
        pull(conn, size, most, slow, body)?;
        if !self::line(conn)?.is_empty() {
            return Err(Failed::Wrong(format!("behind a chunk of {size}")));
        }
        if size == 0 {
            return Ok(());
        }
    }
}

fn line(conn: &mut BufReader<TcpStream>) -> Result<String, Failed> {
    let mut line = String::new();
    match conn.read_line(&mut line) {
        Ok(_) => match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(Failed::Closed(io::ErrorKind::UnexpectedEof.into())),
        },
        Err(error) if is_late(&error) => Err(Failed::Wrong("hangs between chunks".to_owned())),
        Err(error) => Err(Failed::Closed(error)),
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Outcome of a response, if `case` admits it.
fn check(case: &Case, got: &Got) -> Result<Outcome, String> {
    let Got { status, body, is_whole, .. } = got;
    let may = case.may();
    if *status != case.status() {
        let is_allowed = match may {
            May::Refused | May::Truncated | May::Any => matches!(status, 502 | 504),
            May::Whole => case.is_asked_once() && *status == 502,
        };
        let error = || format!("status {status}: {:?}", String::from_utf8_lossy(body));
        return if is_allowed { Ok(Outcome::Refused(*status)) } else { Err(error()) };
    }
    if may == May::Refused {
        return Err(format!("status {status} of nothing"));
    }
    if got.seed.as_deref() != Some(&*format!("{:016x}", case.seed)) {
        return Err(format!("the head of another: {:?}", got.seed));
    }
    let content =
        if case.method == "HEAD" || case.answer == Answer::BodyOf304 { Vec::new() } else { case.content() };
    if !content.starts_with(body) {
        let at = content.iter().zip(body).take_while(|(a, b)| a == b).count();
        return Err(format!("{} of {} bytes, and another's from {at}", body.len(), content.len()));
    }
    match (is_whole, may) {
        (true, May::Whole | May::Any) if *body == content => Ok(Outcome::Whole),
        (true, _) => Err(format!("{} of {} bytes pass for all", body.len(), content.len())),
        (false, May::Truncated | May::Any) => Ok(Outcome::Truncated),
        (false, _) => Err(format!("cut after {} of {} bytes", body.len(), content.len())),
    }
}
