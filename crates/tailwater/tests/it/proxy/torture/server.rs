//! Origin that treats each request as its seed says.

use std::io::{BufRead, Read};
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tw_testkit::origin::{Conn, origin};
use tw_testkit::wait;

use super::case::{Answer, Case, Upload};

/// Pause between two pieces of a slow response.
const PAUSE: Duration = Duration::from_millis(1);

/// Faults of the requests that arrived.
pub(super) type Wrong = Arc<Mutex<Vec<String>>>;

/// Starts an origin.
pub(super) fn start(wrong: &Wrong) -> SocketAddr {
    let wrong = wrong.clone();
    origin(move |mut conn| while serve(&mut conn, &wrong) == After::Goes {})
}

#[derive(PartialEq, Eq)]
enum After {
    Goes,
    Ends,
}

fn serve(conn: &mut Conn, wrong: &Wrong) -> After {
    let Some(head) = conn.head() else { return After::Ends };
    let report = |what: String| wrong.lock().unwrap().push(what);
    let target = head.split(' ').nth(1).unwrap_or_default();
    let Some(seed) = target.rsplit('/').next().and_then(|hex| u64::from_str_radix(hex, 16).ok()) else {
        report(format!("nobody asks for that: {head:?}"));
        return After::Ends;
    };
    let case = Case::of(seed);
    if !head.starts_with(&format!("{} /{}/{seed:016x} HTTP/1.1\r\n", case.method, case.place)) {
        report(format!("{case:?} came as {head:?}"));
    }
    if case.answer != Answer::Unread {
        match upload(conn, &head) {
            Some(body) if body == case.uploaded() => {}
            Some(body) => report(format!("{case:?}: an upload of {} bytes is not its own", body.len())),
            // The client has gone away during its upload.
            None => return After::Ends,
        }
    }
    answer(conn, &case)
}

/// The body of a request; `None` if it does not end.
fn upload(conn: &mut Conn, head: &str) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    if let Some(length) = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")) {
        body.resize(length.parse().ok()?, 0);
        conn.reader.read_exact(&mut body).ok()?;
    } else if head.contains("\r\nTransfer-Encoding: chunked\r\n") {
        loop {
            let mut line = String::new();
            conn.reader.read_line(&mut line).ok()?;
            let size = usize::from_str_radix(line.strip_suffix("\r\n")?, 16).ok()?;
            let begin = body.len();
            body.resize(begin + size + 2, 0);
            conn.reader.read_exact(&mut body[begin..]).ok()?;
            body.truncate(begin + size);
            if size == 0 {
                break;
            }
        }
    }
    Some(body)
}

fn answer(conn: &mut Conn, case: &Case) -> After {
    let content = case.content();
    let size = content.len();
    let half = content.len() / 2;
    let ok = format!("HTTP/1.1 200 OK\r\nX-Seed: {:016x}\r\n", case.seed);
    let with_length = format!("{ok}Content-Length: {size}\r\n\r\n");
    let in_chunks = format!("{ok}Transfer-Encoding: chunked\r\n\r\n");
    let with = |head: &str, body: &[u8]| [head.as_bytes(), body].concat();
    let is_head = case.method == "HEAD";
    let body: &[u8] = if is_head { b"" } else { &content };
    match case.answer {
        Answer::Length => conn.send(with(&with_length, body)),
        Answer::InPieces => {
            conn.send(with_length);
            for piece in body.chunks(size / 5 + 1) {
                conn.send(piece);
                wait::pause(PAUSE);
            }
        }
        Answer::Chunked if is_head => conn.send(in_chunks),
        Answer::Chunked => conn.send(with(&in_chunks, &chunked(&content, case, "\r\n"))),
        Answer::Trailers => {
            let trailers = "X-Sum: 1\r\nContent-Length: 3\r\n\r\n";
            conn.send(with(&in_chunks, &chunked(&content, case, trailers)));
        }
        Answer::UntilClose => {
            conn.send(with(&format!("{ok}Connection: close\r\n\r\n"), body));
            return After::Ends;
        }
        Answer::Http10 => {
            conn.send(with(&format!("{}\r\n", ok.replace("/1.1", "/1.0")), body));
            return After::Ends;
        }
        Answer::Interim => {
            conn.send(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nContent-Length: 9\r\n\r\n"
                    .repeat(30),
            );
            conn.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
            conn.send(with(&with_length, body));
        }
        Answer::ByteByByte => {
            for byte in with_length.as_bytes() {
                conn.send([*byte]);
            }
            conn.send(body);
        }
        Answer::ClosesUnasked => {
            conn.send(with(&with_length, body));
            return After::Ends;
        }
        Answer::MoreThanLength => {
            conn.send([&with(&with_length, body)[..], b"HTTP/1.1 200 OK\r\n"].concat());
            return until_closed(conn);
        }
        Answer::MoreThanChunks => {
            let body = chunked(&content, case, "\r\nHTTP/1.1 200 OK\r\n");
            conn.send(with(&in_chunks, &body));
            return until_closed(conn);
        }
        Answer::BodyOfHead => {
            conn.send(with(&with_length, &content));
            return until_closed(conn);
        }
        Answer::BodyOf304 => {
            conn.send(with(&with_length.replace("200 OK", "304 Not Modified"), &content));
            return until_closed(conn);
        }
        Answer::Unread => {
            conn.send(with(&with_length, body));
            return After::Ends;
        }
        Answer::CutHead => {
            conn.send(&with_length[..with_length.len() / 2]);
            return After::Ends;
        }
        Answer::Reset => return reset(conn),
        Answer::Garbage => conn.send(&content[..size.min(1000)]),
        Answer::LongHead => conn.send(format!("{ok}X-Long: {}\r\n\r\n", "x".repeat(100_000))),
        Answer::ManyFields => conn.send(format!("{ok}{}\r\n", "A:\r\n".repeat(1200))),
        Answer::BothFramings => {
            conn.send(format!("{ok}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"));
        }
        Answer::NoLength => conn.send(format!("{ok}Content-Length: +5\r\n\r\nhello")),
        Answer::TwoLengths => conn.send(format!("{ok}Content-Length: 5\r\nContent-Length: 2\r\n\r\nhello")),
        Answer::EndlessInterim => conn.send("HTTP/1.1 100 Continue\r\n\r\n".repeat(150)),
        Answer::Switches => conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nhello"),
        Answer::Silent => return until_closed(conn),
        Answer::CutBody => {
            conn.send(with(&with_length, &content[..half]));
            return After::Ends;
        }
        Answer::CutChunks => {
            conn.send(with(&in_chunks, &chunked(&content[..half], case, "")));
            return After::Ends;
        }
        Answer::ResetBody => {
            conn.send(with(&with_length, &content[..half]));
            return reset(conn);
        }
        Answer::BadChunk => {
            let chunks = chunked(&content[..half], case, "");
            conn.send(with(&in_chunks, &chunks));
            conn.send("5 5\r\nhello\r\n0\r\n\r\n");
            return until_closed(conn);
        }
        Answer::FallsSilent => {
            conn.send(with(&with_length, &content[..half]));
            return until_closed(conn);
        }
    }
    After::Goes
}

/// `content` in chunks, and the last one before `end`; without it if that is empty.
fn chunked(content: &[u8], case: &Case, end: &str) -> Vec<u8> {
    let mut random = tw_testkit::Random::new(case.seed);
    let mut all = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let (chunk, remaining_bytes) = rest.split_at((1 + random.below(20_000)).min(rest.len()));
        let extension = random.one_of(&["", "", ";x", " ;y=\"z\""]);
        all.extend(format!("{:x}{extension}\r\n", chunk.len()).bytes());
        all.extend_from_slice(chunk);
        all.extend(b"\r\n");
        rest = remaining_bytes;
    }
    if !end.is_empty() {
        all.extend(b"0\r\n");
        all.extend(end.bytes());
    }
    all
}

/// Sends nothing more until the connection closes.
fn until_closed(conn: &mut Conn) -> After {
    let _ = std::io::copy(&mut conn.reader, &mut std::io::sink());
    After::Ends
}

fn reset(conn: &mut Conn) -> After {
    let _ = rustix::net::sockopt::set_socket_linger(conn.reader.get_ref(), Some(Duration::ZERO));
    let _ = conn.reader.get_ref().shutdown(Shutdown::Read);
    After::Ends
}

impl Upload {
    /// Fields that frame the body, and the body as it is sent.
    pub(super) fn framed(self, body: &[u8], case: &Case) -> (String, Vec<u8>) {
        match self {
            Self::Nothing => (String::new(), Vec::new()),
            Self::Length(size) => (format!("Content-Length: {size}\r\n"), body.to_vec()),
            Self::Chunked(_) => {
                ("Transfer-Encoding: chunked\r\n".to_owned(), chunked(body, case, "X-T: 1\r\n\r\n"))
            }
        }
    }
}
