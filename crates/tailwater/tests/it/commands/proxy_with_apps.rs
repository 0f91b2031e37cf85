//! `tailwater proxy` in front of what people have: Python's and Node's servers, and libraries for WebSockets.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;

use tw_testkit::process::Group;
use tw_testkit::{Client, Lacks, TempDir, leave_out, wait};

use super::proxy::{CLOSE, Proxied, TEXT, frame, open_websocket};

/// A running server program.
struct App {
    addr: SocketAddr,
    /// Process group, killed when this is dropped.
    _group: Group,
}

impl App {
    /// Starts `program`, which prints a line with its port behind the last blank or colon. `None` without it, or if it ends at
    /// once, because something that it `needs` is not there.
    fn start(program: &str, args: &[&str], needs: &str) -> Option<Self> {
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                leave_out(Lacks::Machine, format_args!("{needs} behind the proxy: {error}"));
                return None;
            }
        };
        let mut out = BufReader::new(child.stdout.take()?);
        let group = Group::new(child);
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        // Further output is read and dropped, because a full pipe would stop the program.
        thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        let words = line.split(|c: char| !c.is_ascii_digit());
        let numbers = words.filter_map(|word| word.parse::<u16>().ok());
        let Some(port) = numbers.rev().find(|port| *port > 1023) else {
            leave_out(Lacks::Machine, format_args!("{needs} behind the proxy: it is not here"));
            return None;
        };
        let addr = ([127, 0, 0, 1], port).into();
        assert!(wait::until(wait::TIMEOUT, || Client::connect(addr).is_ok()), "{line}");
        Some(Self { addr, _group: group })
    }

    fn python(script: &str, needs: &str) -> Option<Self> {
        Self::start("python3", &["-u", "-c", script], needs)
    }

    fn node(script: &str, needs: &str) -> Option<Self> {
        Self::start("node", &["-e", script], needs)
    }
}

/// Program for Node: echoes requests; `/stream` sends a part and the rest after a request for `/go`.
const NODE: &str = "
const http = require('http');
let rest = () => {};
const server = http.createServer((request, response) => {
  if (request.url === '/stream') {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    response.write('data: 1\\n\\n');
    rest = () => response.end('data: 2\\n\\n');
  } else if (request.url === '/go') {
    rest();
    response.writeHead(204).end();
  } else {
    response.setHeader('X-Seen', `${request.headers.host} ${request.headers['x-forwarded-for']}`);
    request.pipe(response);
  }
});
server.listen(0, '127.0.0.1', () => console.log('port', server.address().port));
";

#[test]
fn python_http_server_answers() {
    let dir = TempDir::new("python").unwrap();
    dir.write("page one.html", "<p>one").unwrap();
    dir.write("large", "x".repeat(1 << 20)).unwrap();
    let script = format!(
        "import http.server, functools
serve = functools.partial(http.server.SimpleHTTPRequestHandler, directory={:?})
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), serve)
print('port', server.server_port)
server.serve_forever()",
        dir.path().display().to_string()
    );
    let Some(app) = App::python(&script, "Python's http.server") else { return };
    let proxied = Proxied::start(&[&app.addr.to_string()]);
    let get = |target| Client::get(proxied.addr(), target).unwrap();
    let page = get("/page%20one.html");
    assert_eq!((page.status, &*page.text()), (200, "<p>one"));
    assert!(page.field("Content-Type").is_some_and(|kind| kind.starts_with("text/html")), "{}", page.head);
    assert_eq!(get("/large").body.len(), 1 << 20);
    assert!(get("/").text().contains("page%20one.html"));
    assert_eq!(get("/none").status, 404);
    // The server closes its connection after each response, which is no reason to close the client's.
    let mut client = Client::connect(proxied.addr()).unwrap();
    for _ in 0..3 {
        client.send("GET /page%20one.html HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "<p>one");
    }
    assert_eq!(proxied.end(), "");
}

#[test]
fn node_http_server_answers() {
    let Some(app) = App::node(NODE, "Node's http") else { return };
    let proxied = Proxied::start(&[&format!("http://{}", app.addr)]);
    let mut client = Client::connect(proxied.addr()).unwrap();
    let upload = "x".repeat(1 << 20);
    client
        .send(format!("POST / HTTP/1.1\r\nHost: a.org\r\nContent-Length: {}\r\n\r\n{upload}", upload.len()))
        .unwrap();
    let response = client.read_response().unwrap();
    assert_eq!((response.status, response.field("X-Seen")), (200, Some("a.org 127.0.0.1")));
    assert!(response.text() == upload);
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        .unwrap();
    assert_eq!(client.read_response().unwrap().text(), "hello");

    // Events are forwarded as soon as the application sends them.
    client.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let head = client.read_head().unwrap();
    assert_eq!(head.field("Content-Type"), Some("text/event-stream"));
    assert_eq!(client.read_bytes(14).unwrap(), b"9\r\ndata: 1\n\n\r\n");
    assert_eq!(Client::get(proxied.addr(), "/go").unwrap().status, 204);
    assert_eq!(client.read_bytes(19).unwrap(), b"9\r\ndata: 2\n\n\r\n0\r\n\r\n");
    assert_eq!(proxied.end(), "");
}

/// Checks that frames pass both ways, and that both sides see the close.
fn echoes(app: &App) {
    let proxied = Proxied::start(&[&app.addr.to_string()]);
    let mut client = open_websocket(proxied.addr());
    for text in ["one", "two"] {
        client.send(frame(TEXT, text.as_bytes(), Some([5, 6, 7, 8]))).unwrap();
        let expected = frame(TEXT, text.as_bytes(), None);
        assert_eq!(client.read_bytes(expected.len()).unwrap(), expected);
    }
    client.send(frame(CLOSE, &1000_u16.to_be_bytes(), Some([1, 1, 2, 2]))).unwrap();
    let expected = frame(CLOSE, &1000_u16.to_be_bytes(), None);
    assert_eq!(client.read_until_close().unwrap(), expected);
    drop(client);
    assert_eq!(proxied.end(), "");
}

#[test]
fn node_websocket_is_bidirectional() {
    let script = "
const { WebSocketServer } = require('ws');
const server = new WebSocketServer({ port: 0, host: '127.0.0.1', perMessageDeflate: false });
server.on('connection', socket => socket.on('message', data => socket.send(String(data))));
server.on('listening', () => console.log('port', server.address().port));
";
    let Some(app) = App::node(script, "Node's package ws") else { return };
    echoes(&app);
}

#[test]
fn python_websocket_is_bidirectional() {
    let script = "
from websockets.sync.server import serve
def echo(socket):
    for message in socket:
        socket.send(message)
with serve(echo, '127.0.0.1', 0, compression=None) as server:
    print('port', server.socket.getsockname()[1])
    server.serve_forever()
";
    let Some(app) = App::python(script, "Python's package websockets") else { return };
    echoes(&app);
}
