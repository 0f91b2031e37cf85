//! The binary under test: an inline configuration, a fresh prefix, ports of its own, and a certain end.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use tw_testkit::{Client, Server};
//!
//! let server = Server::build("target/debug/tailwater")
//!     .file("html/index.html", "hello")
//!     .start("http { server { listen 127.0.0.1:{port}; access_log logs/access.log; root html; } }")?;
//! assert_eq!(Client::get(server.addr(), "/")?.text(), "hello");
//! # Ok(())
//! # }
//! ```
//!
//! In the configuration `{port}` (the same as `{port0}`) to `{port9}` stand for reserved ports (see [`crate::ports`])
//! and `{prefix}` for the prefix. The main context gets `daemon off`, `master_process off`, a pid file, an error log
//! at `info`, and always `loop_guard enforce`: in a test the kernel itself proves that no loop waits for a file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::client::Client;
use crate::ports::{self, Port};
use crate::process::Group;
use crate::temp::TempDir;
use crate::tls::Certificate;
use crate::wait;

/// If this variable of the environment is not empty, every server gets a master and a worker process.
const MASTER_VARIABLE: &str = "TAILWATER_TEST_MASTER";
/// Largest number of different ports in a configuration.
const PORT_COUNT_MAX: usize = 10;

/// Server to be started.
#[derive(Debug)]
pub struct Builder {
    binary: PathBuf,
    files: Vec<(PathBuf, Vec<u8>)>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// Standard output and error, if not a file.
    streams: [Option<OwnedFd>; 2],
    /// The program that starts the server, with its arguments.
    by: Vec<String>,
    processes: Processes,
    daemon: Daemon,
}

/// Process of the server: in the foreground or as a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Daemon {
    Off,
    On,
}

/// Process model: one process, or a master with a worker.
#[derive(Debug, Clone, Copy)]
enum Processes {
    /// `master_process off`: the process that was started.
    One,
    /// A master in the foreground and its worker process.
    MasterAndWorker,
}

impl Default for Processes {
    /// Single process, unless the environment asks for a master in every test.
    fn default() -> Self {
        match std::env::var_os(MASTER_VARIABLE) {
            Some(value) if !value.is_empty() => Self::MasterAndWorker,
            _ => Self::One,
        }
    }
}

/// A running server. Dropping it kills the process and all that it has started.
#[derive(Debug)]
pub struct Server {
    group: Group,
    site: Site,
}

/// The files and ports of one server.
#[derive(Debug)]
struct Site {
    prefix: TempDir,
    ports: Vec<Port>,
    processes: Processes,
    daemon: Daemon,
}

impl Builder {
    /// Puts a file into the prefix before the start, with the directories above it.
    #[must_use]
    pub fn file(mut self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Self {
        self.files.push((name.as_ref().to_owned(), content.as_ref().to_owned()));
        self
    }

    /// Puts a certificate and its key into the prefix, as `conf/NAME.crt` and `conf/NAME.key`.
    #[must_use]
    pub fn certificate(self, name: &str, made: &Certificate) -> Self {
        self.file(format!("conf/{name}.crt"), &made.pem).file(format!("conf/{name}.key"), &made.key)
    }

    /// Adds an argument after `-p PREFIX -c CONF`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds a variable to the environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Gives it a standard output and error instead of the file of [`Server::stderr`].
    #[must_use]
    pub fn streams(mut self, stdout: OwnedFd, stderr: OwnedFd) -> Self {
        self.streams = [Some(stdout), Some(stderr)];
        self
    }

    /// Starts the server by another program, which gets the binary and its arguments after these words.
    #[must_use]
    pub fn by(mut self, words: &[&str]) -> Self {
        self.by = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Sets `daemon on`, for a server that nevertheless stays in the foreground: one that detaches is not ended with
    /// the test.
    #[must_use]
    pub fn daemon_on(mut self) -> Self {
        self.daemon = Daemon::On;
        self
    }

    /// Runs everything in one process, whatever the environment asks for: for behaviour that only one process has.
    #[must_use]
    pub fn in_one_process(mut self) -> Self {
        self.processes = Processes::One;
        self
    }

    /// Runs a master and a worker process instead of everything in one process.
    #[must_use]
    pub fn with_master(mut self) -> Self {
        self.processes = Processes::MasterAndWorker;
        self
    }

    /// Starts the server and waits until it listens on every port the configuration names, and one of its loops runs.
    ///
    /// # Errors
    /// The error of starting the program; its exit before it listens, with its output and log; `TimedOut`.
    pub fn start(self, conf: &str) -> io::Result<Server> {
        let site = self.prepare(conf)?;
        let [stdout, stderr] = self.streams.each_ref().map(|stream| match stream {
            Some(stream) => stream.try_clone(),
            None => OpenOptions::new()
                .append(true)
                .create(true)
                .open(site.path("logs/stderr.log"))
                .map(OwnedFd::from),
        });
        let group = self.spawn(&site, stdout?, stderr?)?;
        let mut server = Server { group, site };
        server.wait_for_ports()?;
        // nginx has no such threads, a daemon is not a child of this process, and another program decides when it starts the server.
        if self.binary.ends_with("tailwater") && self.daemon == Daemon::Off && self.by.is_empty() {
            server.wait_for_loop()?;
        }
        Ok(server)
    }

    /// Runs the server to its end, for `-t`, `-T` and configurations it must refuse.
    ///
    /// # Errors
    /// The error of starting the program; `TimedOut` if it has not ended after [`wait::TIMEOUT`], and then it is
    /// killed.
    pub fn run(self, conf: &str) -> io::Result<Output> {
        let site = self.prepare(conf)?;
        let out = site.path("logs/stdout.log");
        let err = site.path("logs/stderr.log");
        let mut group = self.spawn(&site, File::create(&out)?.into(), File::create(&err)?.into())?;
        let status = group.wait(wait::TIMEOUT)?;
        Ok(Output { status, stdout: fs::read(out)?, stderr: fs::read(err)? })
    }

    fn prepare(&self, conf: &str) -> io::Result<Site> {
        let prefix = TempDir::new("server")?;
        for dir in ["conf", "logs", "html"] {
            fs::create_dir(prefix.join(dir))?;
        }
        for (name, content) in &self.files {
            prefix.write(name, content)?;
        }
        let mut site = Site { prefix, ports: Vec::new(), processes: self.processes, daemon: self.daemon };
        site.write_conf(conf)?;
        Ok(site)
    }

    fn spawn(&self, site: &Site, stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Group> {
        let mut command = match &self.by[..] {
            [] => Command::new(&self.binary),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(&self.binary);
                command
            }
        };
        command.arg("-p").arg(site.prefix.path()).arg("-c").arg(site.path("conf/nginx.conf"));
        command.args(&self.args).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        // A group of its own: when a master is killed its worker goes with it.
        Ok(Group::new(command.process_group(0).spawn()?))
    }
}

impl Server {
    /// Begins the description of a server; `binary` is `env!("CARGO_BIN_EXE_tailwater")` in tests of the product.
    #[must_use]
    pub fn build(binary: impl AsRef<Path>) -> Builder {
        Builder {
            binary: binary.as_ref().to_owned(),
            files: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            streams: [None, None],
            by: Vec::new(),
            processes: Processes::default(),
            daemon: Daemon::Off,
        }
    }

    /// The address of `{port}`.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr_of(0)
    }

    /// The address of `{portN}`; panics if the configuration does not name it.
    #[must_use]
    pub fn addr_of(&self, index: usize) -> SocketAddr {
        let port =
            self.site.ports.get(index).unwrap_or_else(|| panic!("the configuration has no {{port{index}}}"));
        SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()))
    }

    /// Connects to `{port}`.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(&self) -> io::Result<Client> {
        Client::connect(self.addr())
    }

    /// The process that was started: the master, or the only one.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.group.pid()
    }

    /// The directory given with `-p`.
    #[must_use]
    pub fn prefix(&self) -> &Path {
        self.site.prefix.path()
    }

    /// Sends a signal to the process that was started.
    ///
    /// # Errors
    /// The error of `kill`.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.group.signal(signal)
    }

    /// Replaces the configuration file; the server reads it after [`Signal::HUP`]. New ports may be named.
    ///
    /// # Errors
    /// The error of reserving ports or writing the file.
    pub fn write_conf(&mut self, conf: &str) -> io::Result<()> {
        self.site.write_conf(conf)
    }

    /// Waits until the server listens on every port named so far, TCP or UDP.
    ///
    /// # Errors
    /// The exit of the server, with its output and log; `TimedOut`.
    pub fn wait_for_ports(&mut self) -> io::Result<()> {
        let Self { group, site } = self;
        let mut ended = false;
        let listens = wait::until(wait::TIMEOUT, || {
            ended = group.ended();
            ended || site.ports.iter().all(|port| ports::in_use(port.number()))
        });
        match (listens, ended) {
            (true, false) => Ok(()),
            (true, true) => Err(io::Error::other(format!("ended before it listened: {}", site.story()))),
            (false, _) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("does not listen: {}", site.story())))
            }
        }
    }

    /// Waits until a loop runs. A server listens on its first addresses before it fails at a later one, so listening sockets
    /// alone do not show that it has started.
    ///
    /// # Errors
    /// The exit of the server before it has a loop, with its output and log; `TimedOut`.
    fn wait_for_loop(&mut self) -> io::Result<()> {
        let Self { group, site } = self;
        let mut has_loop = false;
        let is_decided = wait::until(wait::TIMEOUT, || {
            has_loop = group.has_thread("loop-");
            has_loop || group.ended()
        });
        match (has_loop, is_decided) {
            (true, _) => Ok(()),
            (false, true) => Err(io::Error::other(format!("ended before it had a loop: {}", site.story()))),
            (false, false) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("has no loop: {}", site.story())))
            }
        }
    }

    /// Requests a fast shutdown (`SIGTERM`) and waits for the exit.
    ///
    /// # Errors
    /// `TimedOut` if it does not end; it is killed then.
    pub fn stop(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait_exit(wait::TIMEOUT)
    }

    /// Waits for the server to exit, for whatever reason.
    ///
    /// # Errors
    /// `TimedOut` if it does not end; it is killed then.
    pub fn wait_exit(&mut self, within: Duration) -> io::Result<ExitStatus> {
        self.group.wait(within)
    }

    /// Output so far, of both streams.
    #[must_use]
    pub fn stderr(&self) -> String {
        read(&self.site.path("logs/stderr.log"))
    }

    /// The error log so far.
    #[must_use]
    pub fn error_log(&self) -> String {
        read(&self.site.path("logs/error.log"))
    }

    /// Waits for a line of the error log that contains `text`.
    ///
    /// # Errors
    /// `TimedOut`, with the whole log.
    pub fn wait_error_log(&self, text: &str) -> io::Result<String> {
        let path = self.site.path("logs/error.log");
        let look = || {
            let log = read(&path);
            // The last line may be incomplete.
            let (whole, _) = log.rsplit_once('\n')?;
            whole.lines().find(|line| line.contains(text)).map(str::to_owned)
        };
        wait::some(wait::TIMEOUT, look)
            .ok_or_else(|| late(&format!("no line with {text:?} in the error log"), &path))
    }

    /// Waits until `logs/access.log` has `count` lines, and returns all it has.
    ///
    /// # Errors
    /// `TimedOut`, with the whole log.
    pub fn access_log(&self, count: usize) -> io::Result<Vec<String>> {
        self.log("logs/access.log", count)
    }

    /// Waits until a log of any name under the prefix has `count` complete lines, and returns all it has.
    ///
    /// # Errors
    /// `TimedOut`, with the whole log.
    pub fn log(&self, name: &str, count: usize) -> io::Result<Vec<String>> {
        let path = self.site.path(name);
        wait::some(wait::TIMEOUT, || {
            let text = read(&path);
            let (complete, _) = text.rsplit_once('\n')?;
            let lines: Vec<_> = complete.split('\n').map(str::to_owned).collect();
            (lines.len() >= count).then_some(lines)
        })
        .ok_or_else(|| late(&format!("fewer than {count} lines"), &path))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            #[expect(
                clippy::print_stderr,
                reason = "shown by the test runner beside the failure it explains"
            )]
            {
                eprintln!("{}", self.site.story());
            }
        }
    }
}

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.prefix.join(name)
    }

    fn write_conf(&mut self, conf: &str) -> io::Result<()> {
        while self.ports.len() < ports_named(conf) {
            self.ports.push(Port::reserve()?);
        }
        let mut text = format!("{}{conf}\n", head(self.processes, self.daemon, conf));
        for (index, port) in self.ports.iter().enumerate() {
            text = text.replace(&format!("{{port{index}}}"), &port.number().to_string());
            if index == 0 {
                text = text.replace("{port}", &port.number().to_string());
            }
        }
        let text = text.replace("{prefix}", &self.prefix.path().to_string_lossy());
        // Replaced in one step, because a master may read the file at this moment.
        let next = self.path("conf/nginx.conf.next");
        fs::write(&next, text)?;
        fs::rename(next, self.path("conf/nginx.conf"))
    }

    /// Report for a failed test of this server.
    fn story(&self) -> String {
        let stderr = read(&self.path("logs/stderr.log"));
        let error_log = read(&self.path("logs/error.log"));
        format!("--- printed:\n{stderr}--- error log:\n{error_log}---")
    }
}

/// The lines every configuration starts with.
fn head(processes: Processes, daemon: Daemon, conf: &str) -> String {
    let daemon = match daemon {
        Daemon::Off => "off",
        Daemon::On => "on",
    };
    let master = match processes {
        Processes::One => "master_process off;\n",
        Processes::MasterAndWorker => "",
    };
    let events = if conf.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "events") {
        ""
    } else {
        "events {}\n"
    };
    format!(
        "daemon {daemon};\n{master}loop_guard enforce;\npid logs/server.pid;\nerror_log logs/error.log info;\n{events}"
    )
}

/// Number of ports to reserve so that every `{portN}` of the configuration has one.
fn ports_named(conf: &str) -> usize {
    let named = (0..PORT_COUNT_MAX).rev().find(|index| conf.contains(&format!("{{port{index}}}")));
    named.map_or(usize::from(conf.contains("{port}")), |index| index + 1)
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn late(what: &str, log: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what}; {}:\n{}", log.display(), read(log)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_gets_its_head_ports_and_prefix() {
        let builder = Server::build("/bin/echo").file("html/a/b.txt", "hello");
        let mut site = builder.prepare("http { listen {port}; also {port2}; root {prefix}/html; }").unwrap();
        assert_eq!(site.ports.len(), 3);
        assert_eq!(read(&site.path("html/a/b.txt")), "hello");

        let first = site.ports[0].number();
        let third = site.ports[2].number();
        let root = site.path("html").display().to_string();
        let conf = read(&site.path("conf/nginx.conf"));
        for expected in [
            "master_process off;",
            "loop_guard enforce;",
            "events {}",
            &format!("listen {first}; also {third}; root {root};"),
        ] {
            assert!(conf.contains(expected), "{expected} in {conf}");
        }

        site.write_conf("events { worker_connections 9; } http { listen {port0}; }").unwrap();
        let conf = read(&site.path("conf/nginx.conf"));
        assert!(conf.contains(&format!("listen {first};")) && !conf.contains("events {}"), "{conf}");
    }

    #[test]
    fn the_ports_a_configuration_names_are_counted() {
        for (conf, expected) in
            [("", 0), ("{port}", 1), ("{port0}", 1), ("{port} {port1}", 2), ("{port3}", 4)]
        {
            assert_eq!(ports_named(conf), expected, "{conf}");
        }
    }

    #[test]
    fn run_returns_the_output() {
        let output = Server::build("/bin/echo").arg("-t").run("http {}").unwrap();
        assert!(output.status.success());
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            printed.starts_with("-p /") && printed.contains(" -c /") && printed.ends_with(" -t\n"),
            "{printed}"
        );
    }

    #[test]
    fn immediate_exit_is_an_error_with_the_output() {
        let error = Server::build("/bin/ls").start("http { listen {port}; }").unwrap_err();
        let error = error.to_string();
        assert!(error.contains("ended before it listened") && error.contains("conf/nginx.conf"), "{error}");
    }

    #[test]
    fn exit_behind_the_first_listening_socket_is_an_error_with_the_output() {
        let builder = Server::build("/bin/ls");
        let site = builder.prepare("http { }").unwrap();
        let stream = || File::create(site.path("logs/stderr.log")).map(OwnedFd::from).unwrap();
        let group = builder.spawn(&site, stream(), stream()).unwrap();
        let mut server = Server { group, site };
        let error = server.wait_for_loop().unwrap_err().to_string();
        assert!(error.contains("ended before it had a loop") && error.contains("conf/nginx.conf"), "{error}");
    }
}
