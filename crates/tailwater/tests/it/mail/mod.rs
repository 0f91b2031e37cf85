//! `mail`: POP3, IMAP and SMTP up to the login, the auth server, and the relay to a mail server.

mod auth_http;
mod configuration;
mod health_check;
mod imap;
mod limits;
mod metrics;
mod pop3;
mod sessions;
mod smtp;
mod tls;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use tw_testkit::{Client, Server};

use crate::support::server;

/// Starts the server of a test in a `mail` block with this content.
fn start(mail: &str) -> Server {
    server().start(&format!("mail {{ {mail} }}")).unwrap()
}

/// Fields of a request to the auth server, by their names in lower case.
type Fields = HashMap<String, String>;

/// Auth server of a test.
#[derive(Clone)]
struct AuthServer {
    addr: SocketAddr,
    requests: Arc<Mutex<Vec<Fields>>>,
    connections: Arc<Mutex<usize>>,
}

impl AuthServer {
    /// Starts one that answers each request with the lines that `decide` makes, and keeps its connections open.
    fn start(decide: impl Fn(&Fields) -> Vec<String> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            addr: listener.local_addr().unwrap(),
            requests: Arc::default(),
            connections: Arc::default(),
        };
        let (own, decide) = (server.clone(), Arc::new(decide));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                *own.connections.lock().unwrap() += 1;
                let (own, decide) = (own.clone(), decide.clone());
                thread::spawn(move || own.serve(stream.try_clone().unwrap(), stream, &*decide));
            }
        });
        server
    }

    /// Starts one like [`accepting`](Self::accepting) on a Unix socket.
    fn on_unix_socket(path: &Path, to: SocketAddr) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let server = Self { addr: to, requests: Arc::default(), connections: Arc::default() };
        let own = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                *own.connections.lock().unwrap() += 1;
                let own = own.clone();
                thread::spawn(move || own.serve(stream.try_clone().unwrap(), stream, &|_| accepted(to)));
            }
        });
        server
    }

    fn serve(&self, from: impl Read, mut to: impl Write, decide: &dyn Fn(&Fields) -> Vec<String>) {
        let mut reader = BufReader::new(from);
        while let Some(fields) = read_request(&mut reader) {
            let version = fields["version"].clone();
            let lines = decide(&fields);
            self.requests.lock().unwrap().push(fields);
            let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let answer = format!("{version} 200 OK\r\n{lines}Content-Length: 2\r\n\r\nok");
            if to.write_all(answer.as_bytes()).is_err() || version == "HTTP/1.0" {
                return;
            }
        }
    }

    /// Starts one that accepts the password `secret` and sends users to `to`.
    fn accepting(to: SocketAddr) -> Self {
        Self::start(move |fields| match &*fields["auth-pass"] {
            "secret" => accepted(to),
            _ => vec!["Auth-Status: Invalid login or password".into(), "Auth-Wait: 1".into()],
        })
    }

    /// Requests so far.
    fn requests(&self) -> Vec<Fields> {
        self.requests.lock().unwrap().clone()
    }

    /// Connections so far.
    fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }
}

/// Answer that sends a user to `to`.
fn accepted(to: SocketAddr) -> Vec<String> {
    vec![
        "Auth-Status: OK".to_owned(),
        format!("Auth-Server: {}", to.ip()),
        format!("Auth-Port: {}", to.port()),
    ]
}

fn read_request(reader: &mut impl BufRead) -> Option<Fields> {
    let mut fields = Fields::new();
    for number in 0.. {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        match number {
            0 => {
                let mut words = line.split(' ').skip(1);
                fields.insert("uri".into(), words.next()?.into());
                fields.insert("version".into(), words.next()?.into());
            }
            _ if line.is_empty() => return Some(fields),
            _ => {
                let (name, value) = line.split_once(": ").unwrap_or((line, ""));
                fields.insert(name.trim_end_matches(':').to_ascii_lowercase(), value.to_owned());
            }
        }
    }
    None
}

/// Mail server of a test.
#[derive(Clone)]
struct MailServer {
    addr: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

impl MailServer {
    /// Starts one that greets, and answers each line with what `answer` makes of it; with nothing for an empty text.
    fn start(greeting: &str, answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { addr: listener.local_addr().unwrap(), lines: Arc::default() };
        let (own, greeting, answer) = (server.clone(), greeting.to_owned(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (own, greeting, answer) = (own.clone(), greeting.clone(), answer.clone());
                thread::spawn(move || own.serve(stream, &greeting, &*answer));
            }
        });
        server
    }

    fn serve(&self, mut stream: TcpStream, greeting: &str, answer: &dyn Fn(&str) -> String) {
        let reader = BufReader::new(stream.try_clone().unwrap());
        if stream.write_all(format!("{greeting}\r\n").as_bytes()).is_err() {
            return;
        }
        for line in reader.lines().map_while(Result::ok) {
            let reply = answer(&line);
            self.lines.lock().unwrap().push(line);
            if !reply.is_empty() && stream.write_all(format!("{reply}\r\n").as_bytes()).is_err() {
                return;
            }
        }
    }

    /// Server of POP3 that accepts everything.
    fn pop3() -> Self {
        Self::start("+OK backend", |line| format!("+OK {}", line.split(' ').next().unwrap_or_default()))
    }

    /// Server of IMAP that accepts everything.
    fn imap() -> Self {
        Self::start("* OK backend", |line| match line.split_once(' ') {
            _ if line.ends_with('}') => "+ go".to_owned(),
            Some((tag, "NOOP" | "LOGOUT")) => format!("{tag} OK noop"),
            Some((tag, command)) if command.starts_with("LOGIN ") => format!("{tag} OK logged in"),
            Some((tag, _)) if tag.starts_with('a') && tag.len() < 4 => format!("{tag} OK done"),
            _ => "a1 OK logged in".to_owned(),
        })
    }

    /// Server of SMTP that accepts everything.
    fn smtp() -> Self {
        Self::start("220 backend", |line| match line.split(' ').next().unwrap_or_default() {
            "EHLO" => "250-backend\r\n250 XCLIENT".to_owned(),
            "XCLIENT" => "220 again".to_owned(),
            "AUTH" => "235 in".to_owned(),
            word => format!("250 {word}"),
        })
    }

    /// Lines so far.
    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

/// Client that sends and gets lines.
struct LineClient(Client);

impl LineClient {
    /// Connects, and reads the greeting.
    fn connect(server: &Server, greeting: &str) -> Self {
        let mut client = Self(Client::connect(server.addr()).unwrap());
        client.gets(greeting);
        client
    }

    /// Sends a line.
    fn sends(&mut self, line: &str) {
        self.0.send(format!("{line}\r\n")).unwrap();
    }

    /// Reads a line, without its end; empty at the end of the connection.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            match self.0.read_bytes(1) {
                Ok(byte) if !byte.is_empty() => line.extend(byte),
                _ => break,
            }
        }
        String::from_utf8(line).unwrap().trim_end_matches(['\r', '\n']).to_owned()
    }

    /// Reads a line and compares it.
    fn gets(&mut self, expected: &str) {
        assert_eq!(self.line(), expected);
    }

    /// Sends a line and compares the answer.
    fn asks(&mut self, line: &str, expected: &str) {
        self.sends(line);
        assert_eq!(self.line(), expected, "{line}");
    }

    /// Reads the end of the connection.
    fn is_closed(&mut self) {
        let rest = self.0.read_until_close().unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }
}

/// Reads all that comes on a connection until it closes.
fn drain(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer) {}
}
