//! Helpers that several folders of tests share. A test uses these, and those of its own folder.

pub(crate) mod cache;
pub(crate) mod cgroup;
pub(crate) mod content;
pub(crate) mod download;
pub(crate) mod files;
pub(crate) mod http2;
pub(crate) mod http3;
pub(crate) mod metrics;
pub(crate) mod origin;
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod reload;
pub(crate) mod slow_ext4;
pub(crate) mod tls;
pub(crate) mod upgrade;

use std::env;
use std::io;
use std::net::{SocketAddr, TcpStream};

use rustix::net::{AddressFamily, SocketType, sockopt};
use tw_testkit::server::Builder;
use tw_testkit::{Client, Lacks, Response, Server, leave_out};

/// A server that a test describes and starts.
pub(crate) fn server() -> Builder {
    let other = env::var_os("TAILWATER_TEST_BINARY");
    Server::build(other.unwrap_or_else(|| env!("CARGO_BIN_EXE_tailwater").into()))
}

/// Starts the server of this test in an `http` block with this content.
pub(crate) fn start(builder: Builder, http: &str) -> Server {
    builder.start(&format!("http {{ {http} }}")).unwrap()
}

/// Starts a server with this content in its `server` block, beside `listen`.
pub(crate) fn start_server(builder: Builder, server: &str) -> Server {
    start(builder, &format!("server {{ listen 127.0.0.1:{{port}}; root html; {server} }}"))
}

/// [`start_server`] with root as the user of the worker if root runs the tests, for files that it opens while it runs.
pub(crate) fn start_server_as_we_are(builder: Builder, server: &str) -> Server {
    start_as_we_are(builder, &format!("server {{ listen 127.0.0.1:{{port}}; root html; {server} }}"))
}

/// [`start`] with root as the user of the worker if root runs the tests.
pub(crate) fn start_as_we_are(builder: Builder, http: &str) -> Server {
    builder.start(&format!("{} http {{ {http} }}", own_user())).unwrap()
}

/// `user` directive that keeps the user of the tests, who owns the files.
pub(crate) fn own_user() -> &'static str {
    if rustix::process::geteuid().is_root() { "user root root;" } else { "" }
}

/// Error of a server that must not start with this content in its `server` block.
pub(crate) fn refusal(server: &str) -> String {
    refusal_of(&format!("http {{ server {{ listen 127.0.0.1:{{port}}; {server} }} }}"))
}

pub(crate) fn refusal_of(conf: &str) -> String {
    match server().start(conf) {
        Ok(_) => panic!("is not refused: {conf}"),
        Err(error) => error.to_string(),
    }
}

/// Sends a request on a connection of its own: `line` is method and target, `fields` are whole field lines.
pub(crate) fn request(server: &Server, line: &str, fields: &[&str]) -> Response {
    try_request(server, line, fields).unwrap_or_else(|e| panic!("{line} {fields:?}: {e}"))
}

pub(crate) fn try_request(server: &Server, line: &str, fields: &[&str]) -> io::Result<Response> {
    let mut client = server.connect()?;
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    client.send(format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"))?;
    answer(&mut client, line)
}

pub(crate) fn answer(client: &mut Client, line: &str) -> io::Result<Response> {
    if !line.starts_with("HEAD ") {
        return client.read_response();
    }
    let response = client.read_head()?;
    let rest = client.read_until_close()?;
    assert!(rest.is_empty(), "{line} has a body: {}", String::from_utf8_lossy(&rest));
    Ok(response)
}

/// One `GET` on a connection of its own.
pub(crate) fn get(server: &Server, target: &str) -> Response {
    request(server, &format!("GET {target}"), &[])
}

/// `GET` on a connection of its own; status and body as text.
pub(crate) fn page(server: &Server, target: &str) -> (u16, String) {
    let response = get(server, target);
    (response.status, response.text())
}

/// Sends `bytes` as they are on a connection of its own and reads all that comes until the server closes.
pub(crate) fn raw(server: &Server, bytes: impl AsRef<[u8]>) -> String {
    let mut client = server.connect().unwrap();
    client.send(bytes).unwrap();
    String::from_utf8_lossy(&client.read_until_close().unwrap()).into_owned()
}

/// True if permissions mean nothing to this process; leaves the test out then.
pub(crate) fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if root {
        leave_out(Lacks::Run, format_args!("root may read everything: {what}"));
    }
    root
}

/// Body of `GET` on a connection that stays open.
pub(crate) fn text_on(client: &mut Client, target: &str) -> io::Result<String> {
    client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
    Ok(client.read_response()?.text())
}

/// Asks for `target` and reads the head only; returns the coding of the response as well.
pub(crate) fn slow_reader(server: &Server, target: &str, accept: &str) -> (Client, String) {
    let mut client = server.connect().unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accept}\r\n\r\n")).unwrap();
    let head = client.read_head().unwrap();
    assert_eq!(head.status, 200, "{target} {accept}");
    (client, head.field("Content-Encoding").unwrap_or("none").to_owned())
}

/// A connection from an address of the loopback network, which takes little at a time.
pub(crate) fn connect_slowly(server: &Server, from: [u8; 4]) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4 << 10).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((from, 0))).unwrap();
    rustix::net::connect(&socket, &server.addr()).unwrap();
    TcpStream::from(socket)
}

/// Lines of the error log so far with this text.
pub(crate) fn count_in_error_log(server: &Server, text: &str) -> usize {
    server.error_log().lines().filter(|line| line.contains(text)).count()
}

/// Number in an environment variable.
pub(crate) fn env_number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{variable}: {e}")))
}
