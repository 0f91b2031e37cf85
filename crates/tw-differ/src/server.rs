//! One of the two servers: started in a directory of its own for each case, asked, and ended.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use rustix::process::Signal;
use tw_testkit::ports::Port;
use tw_testkit::process::Group;
use tw_testkit::temp::TempDir;
use tw_testkit::wait;

use crate::case::{Case, Places};
use crate::http2_client;
use crate::origin::{OriginPorts, ScriptedOrigin};
use crate::request::{Exchange, Wire};
use crate::response::{self, Reading, Response};

/// Longest time of a start and of an end.
const START: Duration = Duration::from_secs(10);

/// Time in which a response is stored in a cache.
const STORE: Duration = Duration::from_millis(20);

/// Program under comparison, with what it needs for itself.
#[derive(Debug)]
pub(crate) struct Server {
    program: PathBuf,
    port: Port,
    origin: ScriptedOrigin,
    /// Directory of files that both servers deliver.
    root: String,
}

/// Behaviour of a server in a case, before any rule was applied.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observation {
    /// First message of a configuration that was refused.
    pub(crate) refusal: Option<String>,
    /// Messages at `alert` and above, and the end of a server that ended by itself.
    pub(crate) alarms: Vec<String>,
    pub(crate) answers: Vec<Answer>,
}

/// Everything about one exchange.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    pub(crate) reading: Reading,
    /// Requests that the origin server received.
    pub(crate) received: Vec<String>,
    /// Lines of the access log, without the port of the client.
    pub(crate) log: Vec<String>,
}

impl Server {
    /// The program, with a port and an origin server of its own.
    pub(crate) fn new(program: &Path, root: &Path) -> io::Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            port: Port::reserve()?,
            origin: ScriptedOrigin::start()?,
            root: root.display().to_string(),
        })
    }

    /// Replaces values that differ between the servers by their placeholders. The ports of both have five digits.
    fn without_places(&self, text: &str) -> String {
        let OriginPorts { http, fastcgi, uwsgi, scgi } = self.origin.ports();
        let ports = [(http, "@ORIGIN@"), (fastcgi, "@FASTCGI@"), (uwsgi, "@UWSGI@"), (scgi, "@SCGI@")];
        let text = text.replace(&self.port.number().to_string(), "@PORT@").replace(&self.root, "@ROOT@");
        ports.iter().fold(text, |text, (port, place)| text.replace(&port.to_string(), place))
    }

    fn clean(&self, response: &mut Response) {
        for (_, value) in &mut response.fields {
            *value = self.without_places(value);
        }
        if let Ok(body) = std::str::from_utf8(&response.body) {
            response.body = self.without_places(body).into_bytes();
        }
    }

    /// Runs a case.
    ///
    /// # Errors
    /// Errors of the machine: directories, processes. A server that fails is an observation.
    pub(crate) fn run(&self, case: &Case) -> io::Result<Observation> {
        // The directory has a name of equal length for both servers.
        let prefix = TempDir::new("differ")?;
        let places = Places {
            port: self.port.number(),
            origin: self.origin.ports(),
            root: self.root.clone(),
            prefix: prefix.path().display().to_string(),
        };
        fs::create_dir(prefix.join("logs"))?;
        let file = prefix.write("nginx.conf", case.configuration_at(&places))?;
        let script: Vec<String> = case.script.iter().map(|response| places.fill(response)).collect();
        self.origin.set_script(&script);
        let mut command = Command::new(&self.program);
        command.arg("-p").arg(prefix.path()).arg("-c").arg(&file).arg("-e").arg(prefix.join("error.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(prefix.join("stderr"))?);
        let mut process = Group::new(command.process_group(0).spawn()?);
        let port = self.port.number();
        let started = wait::some(START, || match TcpStream::connect(("127.0.0.1", port)) {
            Ok(_) => Some(true),
            Err(_) => process.ended().then_some(false),
        });
        let mut observation = Observation::default();
        if started != Some(true) {
            process.kill()?;
            let said = fs::read_to_string(prefix.join("stderr")).unwrap_or_default();
            observation.refusal = Some(self.without_places(&refusal(&said, &places.prefix)));
            return Ok(observation);
        }
        let mut ports = Vec::new();
        self.origin.take_received();
        for exchange in &case.exchanges {
            if case.has_cache() {
                // A response may be stored after its client has it.
                wait::pause(STORE);
            }
            let (client, mut reading) = ask(port, exchange);
            reading.responses.iter_mut().for_each(|response| self.clean(response));
            let received =
                self.origin.take_received().iter().map(|request| self.without_places(request)).collect();
            ports.push(client);
            observation.answers.push(Answer { reading, received, log: Vec::new() });
        }
        if process.ended() {
            observation.alarms.push("the server ended".to_owned());
        }
        let _ = process.signal(Signal::TERM);
        if process.wait(START).is_err() {
            observation.alarms.push("the server does not end".to_owned());
        }
        let log = fs::read(prefix.join("access.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).replace(&places.prefix, "@PREFIX@");
        let mut lines = log_lines(&self.without_places(&log));
        for (port, answer) in ports.iter().zip(&mut observation.answers) {
            // A client of HTTP/2 does not know its port: its lines are the next ones of no other client.
            let is_next = |other: u16| if *port == 0 { !ports.contains(&other) } else { other == *port };
            let at = lines.iter().position(|(other, _)| is_next(*other));
            answer.log = at.map(|at| lines.remove(at).1).unwrap_or_default();
        }
        let errors = fs::read(prefix.join("error.log")).unwrap_or_default();
        let errors = String::from_utf8_lossy(&errors).into_owned();
        let panics = |line: &&str| line.contains("panicked") || line.contains("exited on signal");
        observation.alarms.extend(errors.lines().filter(panics).map(str::to_owned));
        Ok(observation)
    }
}

/// Lines of the access log for each port of a client, in the order of the first ones.
fn log_lines(log: &str) -> Vec<(u16, Vec<String>)> {
    let mut lines = Vec::<(u16, Vec<String>)>::new();
    for line in log.lines() {
        let Some((port, line)) = line.split_once(' ') else { continue };
        let Ok(port) = port.parse() else { continue };
        match lines.iter_mut().find(|(candidate, _)| *candidate == port) {
            Some((_, lines)) => lines.push(line.to_owned()),
            None => lines.push((port, vec![line.to_owned()])),
        }
    }
    lines
}

/// The first message of a configuration that is refused, without its level and its file.
fn refusal(said: &str, prefix: &str) -> String {
    let message = said.lines().find_map(|line| line.split_once("[emerg] ")).map(|(_, message)| message);
    let message = message.unwrap_or_else(|| said.lines().next().unwrap_or("no message"));
    // nginx begins with the number of the process.
    let message =
        message.split_once(": ").filter(|(number, _)| number.contains('#')).map_or(message, |(_, rest)| rest);
    message.replace(prefix, "@PREFIX@")
}

/// Sends an exchange and reads its responses. The number is the port of the client.
fn ask(port: u16, exchange: &Exchange) -> (u16, Reading) {
    match exchange.wire {
        Wire::Http1 => ask_http1(port, exchange),
        Wire::Http2 => http2_client::ask(port, exchange),
    }
}

fn ask_http1(port: u16, exchange: &Exchange) -> (u16, Reading) {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return (0, Reading::default()) };
    let client = stream.local_addr().map_or(0, |addr| addr.port());
    let bytes = exchange.bytes();
    let methods: Vec<&str> = exchange.requests.iter().map(|request| request.method.as_str()).collect();
    let reading = thread::scope(|scope| {
        let writer = stream.try_clone();
        scope.spawn(move || writer.and_then(|mut writer| writer.write_all(bytes.as_bytes())));
        let reading = response::read(&mut stream, &methods);
        let _ = stream.shutdown(Shutdown::Both);
        reading
    });
    (client, reading)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_messages_without_place_and_process() {
        let nginx = "nginx: [emerg] unknown directive \"a\" in /p/nginx.conf:3\n";
        assert_eq!(refusal(nginx, "/p"), "unknown directive \"a\" in @PREFIX@/nginx.conf:3");
        let logged = "2026/11/29 11:31:55 [emerg] 1#1: bind() failed\n";
        assert_eq!(refusal(logged, "/p"), "bind() failed");
        assert_eq!(refusal("", "/p"), "no message");
    }

    #[test]
    fn log_lines_belong_to_the_port_of_their_client() {
        let lines = log_lines("2 a\n1 b\n2 c\nbad\n");
        let line = |text: &str| text.to_owned();
        assert_eq!(lines, [(2, vec![line("a"), line("c")]), (1, vec![line("b")])]);
    }
}
