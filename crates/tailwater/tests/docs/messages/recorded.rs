//! Messages of the program about a configuration, without times, numbers of processes and names of this machine.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use tw_testkit::application::{STDERR, record, response};
use tw_testkit::origin::origin;
use tw_testkit::tls::Authority;
use tw_testkit::{Server, TempDir};

use super::Case;
use super::step::Step;

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tailwater");
/// Beginning of its lines on standard error.
const NAME: &str = "tailwater: [";
/// Place of the server in messages of the page.
const PREFIX: &str = "/etc/tailwater";
/// Ports of servers that accept connections, in configurations and in messages of the page.
const PORTS: [&str; 2] = ["8080", "8081"];

/// A message, and the whole output with it.
pub(super) struct Recorded {
    pub(super) message: String,
    pub(super) output: String,
}

/// Runs the program with a configuration.
pub(super) fn run(case: &Case) -> Recorded {
    let has_request = case.steps.iter().any(|step| step.request().is_some());
    if has_request || case.steps.iter().any(|step| matches!(step, Step::Start)) {
        Environment::new(case).run(has_request)
    } else {
        test(case)
    }
}

/// Files of the steps, with their names.
fn files(case: &Case) -> Vec<(String, Vec<u8>)> {
    let authority = Authority::new();
    let mut files = Vec::new();
    for step in &case.steps {
        match step {
            Step::Certificate(name) => {
                let certificate = authority.certify(&[name]);
                files.push((format!("{name}.crt"), certificate.pem.into_bytes()));
                files.push((format!("{name}.key"), certificate.key.into_bytes()));
            }
            Step::File(name, content) => files.push((name.clone(), content.clone())),
            _ => {}
        }
    }
    files
}

/// `tailwater -t`
fn test(case: &Case) -> Recorded {
    let dir = TempDir::new("messages").unwrap();
    for (name, content) in files(case) {
        dir.write(name, content).unwrap();
    }
    let conf = dir.write("nginx.conf", &case.configuration).unwrap();
    let output = Command::new(PROGRAM).arg("-tqp").arg(dir.path()).arg("-c").arg(conf).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    printed(&case.name, &text.replace(&format!("{}/", dir.path().display()), ""))
}

/// Message at the beginning of what the program has printed.
fn printed(name: &str, text: &str) -> Recorded {
    let line = text.lines().next().and_then(|line| line.strip_prefix(NAME)?.split_once("] "));
    let (_, line) = line.unwrap_or_else(|| panic!("{name} causes no message: {text}"));
    let mut output: Vec<_> = text.trim_end().lines().collect();
    // A start tries several times to bind an address.
    output.dedup();
    // A mark at the beginning of a file is invisible.
    let [message, output] =
        [without_place(line), &output.join("\n")].map(|text| text.replace('\u{feff}', ""));
    Recorded { message, output }
}

/// A message without the place in a file that it ends with.
fn without_place(line: &str) -> &str {
    match line.rsplit_once(" in ") {
        Some((message, place)) if is_place(place) => without_place(message),
        _ => line,
    }
}

fn is_place(text: &str) -> bool {
    let number = text.rsplit_once(".conf:").map(|(_, number)| number);
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A message of `limit_req`, whose number depends on the time between two requests.
fn with_known_excess(text: &str) -> String {
    let found =
        text.split_once("excess: ").and_then(|(before, rest)| Some((before, rest.split_once(' ')?.1)));
    found.map_or_else(|| text.to_owned(), |(before, rest)| format!("{before}excess: 1.000 {rest}"))
}

/// Servers and files that a running program needs.
struct Environment<'a> {
    case: &'a Case,
    configuration: String,
    /// Ports of this machine with those that they stand for.
    ports: Vec<(u16, &'a str)>,
    /// Sockets that accept nothing.
    _silent: Vec<TcpListener>,
}

impl<'a> Environment<'a> {
    fn new(case: &'a Case) -> Self {
        let mut all =
            Self { case, configuration: case.configuration.clone(), ports: Vec::new(), _silent: Vec::new() };
        for step in &case.steps {
            match step {
                Step::Occupied(port) => {
                    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                    all.take_port(listener.local_addr().unwrap().port(), port);
                    all._silent.push(listener);
                }
                Step::Application(port, text) => {
                    let text = text.clone();
                    let application = origin(move |mut conn| {
                        while conn.fastcgi().is_some() {
                            let fields = "Status: 404\r\nContent-Type: text/plain\r\n\r\nFile not found.\n";
                            conn.send([record(STDERR, &text), response(fields)].concat());
                        }
                    });
                    all.take_port(application.port(), port);
                }
                _ => {}
            }
        }
        for (index, port) in PORTS.iter().enumerate() {
            all.configuration = all.configuration.replace(&format!(":{port}"), &format!(":{{port{index}}}"));
        }
        all
    }

    /// Uses a port of this machine for one of the configuration.
    fn take_port(&mut self, own: u16, port: &'a str) {
        self.configuration = self.configuration.replace(&format!(":{port}"), &format!(":{own}"));
        self.ports.push((own, port));
    }

    fn run(&mut self, has_request: bool) -> Recorded {
        let mut builder = Server::build(PROGRAM).in_one_process();
        for (name, content) in files(self.case) {
            builder = builder.file(format!("conf/{name}"), content);
        }
        for directory in ["html/images/.keep", "html/admin/.keep"] {
            builder = builder.file(directory, "");
        }
        if !has_request {
            let output = builder.run(&self.configuration).unwrap();
            return printed(
                &self.case.name,
                &self.with_known_ports(&String::from_utf8_lossy(&output.stderr)),
            );
        }
        let server = builder.start(&self.configuration).unwrap();
        for (index, port) in PORTS.iter().enumerate() {
            if self.configuration.contains(&format!("{{port{index}}}")) {
                self.ports.push((server.addr_of(index).port(), port));
            }
        }
        // Connections stay open until the message is there, so that requests can run at the same time.
        let mut clients = Vec::new();
        let mut steps = self.case.steps.iter().filter(|step| step.request().is_some()).peekable();
        while let Some(step) = steps.next() {
            let mut client = server.connect().unwrap();
            client.send(step.request().unwrap()).unwrap();
            if steps.peek().is_some() && !matches!(step, Step::Begin(_)) {
                client.read_response().unwrap();
            }
            clients.push(client);
        }
        let expected = self.case.steps.iter().find_map(|step| match step {
            Step::Expect(text) => Some(&**text),
            _ => None,
        });
        let line = server.wait_error_log(expected.unwrap_or(", client: "));
        let line = line.unwrap_or_else(|error| panic!("{}: {error}", self.case.name));
        let prefix = server.prefix().display().to_string();
        self.logged(&line.replace(&prefix, PREFIX))
    }

    /// Message in a line of the error log.
    fn logged(&self, line: &str) -> Recorded {
        let line = self.with_known_ports(line);
        let (_, rest) = line.split_once(" [").unwrap();
        let (level, rest) = rest.split_once("] ").unwrap();
        let (_, text) = rest.split_once(": ").unwrap();
        let (connection, text) = match text.strip_prefix('*').and_then(|text| text.split_once(' ')) {
            Some((_, text)) => ("*1 ", text),
            None => ("", text),
        };
        let text = &with_known_excess(text);
        let message = text.split(", client: ").next().unwrap().to_owned();
        Recorded { message, output: format!("2026/11/30 12:00:00 [{level}] 4242#4242: {connection}{text}") }
    }

    fn with_known_ports(&self, text: &str) -> String {
        let known =
            |text: String, (own, port): &(u16, &str)| text.replace(&format!(":{own}"), &format!(":{port}"));
        self.ports.iter().fold(text.to_owned(), known)
    }
}
