//! Scripted origin server: it records every request and sends the response of the case that the request asks for.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tw_testkit::application::ApplicationRequest;
use tw_testkit::origin::{Conn, origin};

/// Longest wait for bytes of a server.
const PATIENCE: Duration = Duration::from_secs(5);

/// Text that selects a response, in the target or a field: the index follows.
pub(crate) const SELECTOR: &str = "want=";

/// State that all connections share.
#[derive(Debug, Default)]
struct Shared {
    script: Vec<String>,
    received: Vec<String>,
}

/// Ports of an origin server, one for each protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OriginPorts {
    pub(crate) http: u16,
    pub(crate) fastcgi: u16,
    pub(crate) uwsgi: u16,
    pub(crate) scgi: u16,
}

/// Listening origin server. Its threads end with the process.
#[derive(Debug)]
pub(crate) struct ScriptedOrigin {
    ports: OriginPorts,
    shared: Arc<Mutex<Shared>>,
}

impl ScriptedOrigin {
    /// Listens on ports of the loopback interface.
    pub(crate) fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let shared = Arc::<Mutex<Shared>>::default();
        let ports = OriginPorts {
            http: listener.local_addr()?.port(),
            fastcgi: application(&shared, Conn::fastcgi, |conn, output| conn.answer_fastcgi(output)),
            uwsgi: application(&shared, Conn::uwsgi, |conn, output| conn.send(output)),
            scgi: application(&shared, Conn::scgi, |conn, output| conn.send(output)),
        };
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&of_thread);
                thread::spawn(move || serve(stream, &shared));
            }
        });
        Ok(Self { ports, shared })
    }

    /// Ports of the server.
    pub(crate) fn ports(&self) -> OriginPorts {
        self.ports
    }

    /// Sets the responses that requests select.
    pub(crate) fn set_script(&self, script: &[String]) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).script = script.to_vec();
    }

    /// Requests since the last call, in the order of their ends.
    pub(crate) fn take_received(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner).received)
    }
}

/// Starts an application server that answers one request of each connection. Returns its port.
fn application(
    shared: &Arc<Mutex<Shared>>,
    receive: fn(&mut Conn) -> Option<ApplicationRequest>,
    answer: fn(&mut Conn, String),
) -> u16 {
    let shared = Arc::clone(shared);
    let addr = origin(move |mut conn| {
        let Some(request) = receive(&mut conn) else { return };
        let mut params: Vec<String> =
            request.params.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        params.sort();
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let text = format!("{}\r\n{body}", params.concat());
        let output = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let output = cgi_output(&select(&shared.script, &text));
            // The first line of a request is compared as a whole.
            shared.received.push(format!("request\r\n{text}"));
            output
        };
        answer(&mut conn, output);
    });
    addr.port()
}

/// The response of a script as an application sends it: its status is a field.
fn cgi_output(response: &str) -> String {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((response, ""));
    let (first, fields) = head.split_once("\r\n").unwrap_or((head, ""));
    let (_, status) = first.split_once(' ').unwrap_or(("", first));
    // An application does not frame its body in chunks.
    let fields: String = fields
        .lines()
        .filter(|line| !line.starts_with("Transfer-Encoding") && !line.starts_with("Connection"))
        .map(|line| format!("{line}\r\n"))
        .collect();
    if status.starts_with("200") {
        format!("{fields}\r\n{body}")
    } else {
        format!("Status: {status}\r\n{fields}\r\n{body}")
    }
}

fn serve(stream: TcpStream, shared: &Mutex<Shared>) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let Ok(mut writer) = stream.try_clone() else { return };
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader) {
        let response = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let response = select(&shared.script, &request);
            shared.received.push(request);
            response
        };
        // Line ends, so that scripts stay readable.
        let ends = !response.contains("Content-Length") && !response.contains("chunked")
            || response.contains("Connection: close");
        if writer.write_all(response.as_bytes()).is_err() || ends {
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<String> {
    let mut request = String::new();
    loop {
        let mut bytes = Vec::new();
        if reader.read_until(b'\n', &mut bytes).ok()? == 0 {
            return None;
        }
        request += &String::from_utf8_lossy(&bytes);
        if bytes == b"\r\n" {
            break;
        }
    }
    let lower = request.to_ascii_lowercase();
    if let Some((_, rest)) = lower.split_once("\r\ncontent-length:") {
        let len: u64 = rest.lines().next()?.trim().parse().ok()?;
        let mut body = Vec::new();
        reader.take(len).read_to_end(&mut body).ok()?;
        request += &String::from_utf8_lossy(&body);
    } else if lower.contains("\r\ntransfer-encoding: chunked") {
        // Chunk boundaries are the affair of each server: only the content is recorded.
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = u64::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = Vec::new();
            reader.by_ref().take(size + 2).read_to_end(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            chunk.truncate(usize::try_from(size).ok()?);
            request += &String::from_utf8_lossy(&chunk);
        }
    }
    Some(request)
}

/// The response that the request names, or the first one.
fn select(script: &[String], request: &str) -> String {
    let digits: String = request
        .split_once(SELECTOR)
        .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect())
        .unwrap_or_default();
    let index = digits.parse().unwrap_or(0);
    let response = script.get(index).or_else(|| script.first()).cloned();
    let response = response.unwrap_or_else(|| "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned());
    let head = request.starts_with("HEAD ").then(|| response.split_once("\r\n\r\n")).flatten();
    head.map_or(response.clone(), |(head, _)| format!("{head}\r\n\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_select_their_response() {
        let script = ["HTTP/1.1 200 a\r\n\r\n", "HTTP/1.1 200 b\r\n\r\nbody"].map(str::to_owned);
        assert_eq!(select(&script, "GET /x?want=1 HTTP/1.0\r\n\r\n"), script[1]);
        assert_eq!(select(&script, "GET / HTTP/1.0\r\nX: want=1\r\n\r\n"), script[1]);
        assert_eq!(select(&script, "GET /x?want=9 HTTP/1.0\r\n\r\n"), script[0]);
        assert_eq!(select(&script, "HEAD /x?want=1 HTTP/1.0\r\n\r\n"), "HTTP/1.1 200 b\r\n\r\n");
    }

    #[test]
    fn applications_send_their_status_as_a_field() {
        let output = |text: &str| cgi_output(text);
        assert_eq!(output("HTTP/1.1 200 OK\r\nX: 1\r\nConnection: close\r\n\r\nabc"), "X: 1\r\n\r\nabc");
        assert_eq!(output("HTTP/1.1 404 No\r\n\r\n"), "Status: 404 No\r\n\r\n");
    }

    #[test]
    fn bodies_are_recorded_without_their_framing() {
        let read = |text: &str| read_request(&mut text.as_bytes()).unwrap();
        assert!(read("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nabc").ends_with("\r\n\r\nab"));
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n";
        assert!(read(chunked).ends_with("\r\n\r\nab"));
    }
}
