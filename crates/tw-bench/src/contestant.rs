//! Servers under measurement: binary, configuration, and cores.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tw_testkit::ports::{self, Port};
use tw_testkit::process::Group;
use tw_testkit::{Client, TempDir, wait};

use super::conf;
use super::exec::{Pages, RunPlacement, SELF};
use super::options::Options;
use super::{Outcome, home};
use crate::root;

/// Name of our server in results.
pub(super) const OURS: &str = "ours";
/// Name of nginx in results.
pub(super) const NGINX: &str = "nginx";

/// The programs that are compared.
#[derive(Debug, Clone)]
pub(super) struct Binaries {
    pub(super) ours: Binary,
    pub(super) nginx: Binary,
}

/// A server that understands `-p PREFIX -c CONF` and nginx's configuration.
#[derive(Debug, Clone)]
pub(super) struct Binary {
    pub(super) path: PathBuf,
    /// First line of `-V`.
    pub(super) version: String,
    /// All that it prints for `-V`, modules included.
    build: String,
    /// Directives added to `http {}`.
    http: String,
    /// Directives added before `events {}`.
    main: String,
}

impl Binary {
    /// Returns `true` if the server accepts this in `http {}`.
    pub(super) fn knows(&self, http: &str) -> Outcome<bool> {
        if self.is_absent() {
            return Ok(false);
        }
        let (prefix, port) = prepare()?;
        let args = server_args(&prefix, &conf(port.number(), self, http, "", &Loops::default()))?;
        Ok(Command::new(&self.path).arg("-t").args(args).output()?.status.success())
    }

    /// Directives before `events {}`.
    pub(super) fn main(&self) -> &str {
        &self.main
    }

    /// Path of the program; empty if this machine has none.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` for nginx on a machine that has none.
    pub(super) fn is_absent(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// Line of `-V` about the library of TLS.
    pub(super) fn library(&self) -> &str {
        let line = self.build.lines().find(|line| line.starts_with("built with"));
        line.unwrap_or("built without TLS")
    }

    /// Returns `true` if the server was built with this module of nginx; Tailwater has them all.
    pub(super) fn has_module(&self, name: &str) -> bool {
        self.is_tailwater() || self.build.contains(name)
    }

    /// Returns `true` if the server has directives that nginx lacks.
    pub(super) fn is_tailwater(&self) -> bool {
        self.version.contains("tailwater/")
    }
}

/// A server to start.
#[derive(Debug, Clone)]
pub(super) struct Contestant {
    pub(super) name: String,
    program: Program,
    /// Page size, overriding that of the place.
    pages: Option<Pages>,
    /// Program that runs the server, and its arguments; empty for none.
    runner: Vec<String>,
}

#[derive(Debug, Clone)]
enum Program {
    /// A binary with directives for `http {}`, and the content of `server {}`.
    Server { binary: Binary, http: String, server: String, loops: Loops },
    /// `xtask bench bare-loop` with these bytes as its response.
    BareLoop { response: Vec<u8> },
    /// Another bare loop: `xtask bench NAME` with these arguments after its port.
    Loop { name: &'static str, args: Vec<String> },
    /// Program with files and arguments of its own, in which [`PORT`] and the like are replaced when it is started.
    External { path: PathBuf, args: Vec<String>, files: Vec<(String, String)> },
}

/// Placeholder for the port in the content of `server {}`, and in the configuration and the arguments of a program that
/// does not read nginx's configuration.
pub(super) const PORT: &str = "@PORT@";
/// Placeholder for its directory.
pub(super) const PREFIX: &str = "@PREFIX@";
/// Placeholder for the file with its configuration.
pub(super) const CONF: &str = "@CONF@";

/// Path of that file, below the directory.
const OTHER_CONF: &str = "conf/other.conf";

/// Number of loops or workers, and their settings.
#[derive(Debug, Clone)]
struct Loops {
    /// Number of loops or workers; nginx has a master in addition if there are several.
    count: usize,
    /// Directives in `events {}`.
    events: String,
    /// Parameters of `listen`.
    listen: String,
    /// Connections of one loop, those to origins included.
    connections_max: usize,
    /// Directives of Tailwater alone, in the main context.
    guard: &'static str,
    /// True if a master process is needed even for one loop.
    has_master: bool,
}

impl Default for Loops {
    fn default() -> Self {
        Self {
            count: 1,
            events: String::new(),
            listen: String::new(),
            connections_max: 16_384,
            // The promise is measured with the kernel watching.
            guard: "loop_guard enforce;",
            has_master: false,
        }
    }
}

/// A server that runs. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) name: String,
    pub(super) prefix: TempDir,
    group: Group,
    port: Port,
    scheme: &'static str,
}

impl Binaries {
    /// Finds both, by option, environment or path. nginx is left out if there is none.
    pub(super) fn find(options: &Options) -> Outcome<Self> {
        let nginx = options
            .text("nginx")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("NGINX").map(PathBuf::from))
            .or_else(|| find_program("nginx"));
        let main = options.text("nginx-main").unwrap_or_default().to_owned();
        // An empty path leaves it out, too.
        let nginx = match nginx.filter(|path| !path.as_os_str().is_empty()) {
            Some(path) => Binary::new(path, String::new(), main)?,
            None => Binary::absent(),
        };
        Ok(Self { ours: Binary::ours(options)?, nginx })
    }
}

impl Binaries {
    /// Both with their names in results, or ours alone.
    pub(super) fn named(&self) -> Vec<(&'static str, &Binary)> {
        let both = [(OURS, &self.ours), (NGINX, &self.nginx)];
        both.into_iter().filter(|(_, binary)| !binary.is_absent()).collect()
    }

    /// nginx, or ours if there is none.
    pub(super) fn any(&self) -> &Binary {
        if self.nginx.is_absent() { &self.ours } else { &self.nginx }
    }
}

/// Path of our server unless an option says otherwise.
pub(super) fn default_ours() -> PathBuf {
    root().join("target/release/tailwater")
}

impl Binary {
    /// Our server, by option or at its usual path.
    pub(super) fn ours(options: &Options) -> Outcome<Self> {
        let path = options.text("ours").map_or_else(default_ours, PathBuf::from);
        if !path.is_file() {
            return Err(
                format!("{}: build it with cargo build --release, or give --ours", path.display()).into()
            );
        }
        let text = |name| options.text(name).unwrap_or_default().to_owned();
        Self::new(path, text("ours-http"), text("ours-main"))
    }

    /// Adds directives to the main context.
    pub(super) fn with_main(mut self, directives: &str) -> Self {
        self.main = format!("{} {directives}", self.main);
        self
    }

    /// Stands for a program that this machine does not have.
    fn absent() -> Self {
        let version = "no nginx: left out".to_owned();
        Self { path: PathBuf::new(), version, build: String::new(), http: String::new(), main: String::new() }
    }

    fn new(path: PathBuf, http: String, main: String) -> Outcome<Self> {
        let build = version_text(&path, "-V")?;
        let version = build.lines().next().unwrap_or_default().to_owned();
        Ok(Self { path, version, build, http, main })
    }
}

/// A program of another kind, to compare with.
pub(super) struct OtherProgram {
    pub(super) path: PathBuf,
    /// First line of its version output.
    pub(super) version: String,
}

impl OtherProgram {
    /// Reads the version of a program, if there is one, with this argument.
    pub(super) fn at(path: Option<PathBuf>, argument: &str) -> Outcome<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        let version = version_line(&path, argument)?;
        Ok(Some(Self { path, version }))
    }
}

/// First line that a program prints for this argument.
pub(super) fn version_line(path: &Path, argument: &str) -> Outcome<String> {
    Ok(version_text(path, argument)?.lines().next().unwrap_or_default().to_owned())
}

fn version_text(path: &Path, argument: &str) -> Outcome<String> {
    let output = Command::new(path).arg(argument).output().map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

impl Contestant {
    /// A server with directives for `http {}` and the content of `server {}`, which need not listen.
    pub(super) fn server(name: &str, binary: &Binary, http: &str, server: &str) -> Self {
        let program = Program::Server {
            binary: binary.clone(),
            http: http.to_owned(),
            server: server.to_owned(),
            loops: Loops::default(),
        };
        Self::new(name, program)
    }

    fn new(name: &str, program: Program) -> Self {
        Self { name: name.to_owned(), program, pages: None, runner: Vec::new() }
    }

    /// Runs the server under another program, with these words before its own; [`PREFIX`] is replaced in them. The
    /// loop guard and the sandbox are off, since they forbid what such a program does.
    pub(super) fn under(mut self, runner: &[String]) -> Self {
        if let Program::Server { loops, .. } = &mut self.program {
            loops.guard = "loop_guard off; sandbox off;";
        }
        runner.clone_into(&mut self.runner);
        self
    }

    /// Sets the number of loops or workers, directives for `events {}` and parameters of `listen`.
    pub(super) fn with_loops(mut self, count: usize, events: &str, listen: &str) -> Self {
        if let Program::Server { loops, .. } = &mut self.program {
            let events = events.to_owned();
            let listen = listen.to_owned();
            *loops = Loops { count, events, listen, ..Loops::default() };
        }
        self
    }

    /// Runs the server with a master process, which scripts need.
    pub(super) fn with_master(mut self) -> Self {
        if let Program::Server { loops, .. } = &mut self.program {
            loops.has_master = true;
        }
        self
    }

    /// Sets the number of connections, including those to origins.
    pub(super) fn with_connections(mut self, count: usize) -> Self {
        if let Program::Server { loops, .. } = &mut self.program {
            loops.connections_max = count;
        }
        self
    }

    /// Disables large pages of memory.
    pub(super) fn with_small_pages(mut self) -> Self {
        self.pages = Some(Pages::Small);
        self
    }

    /// Enables TLS: the directives in `server {}` name the certificate.
    pub(super) fn with_tls(self) -> Self {
        self.with_loops(1, "", "ssl")
    }

    /// Returns `true` if its program is on this machine.
    pub(super) fn is_present(&self) -> bool {
        let path = match &self.program {
            Program::Server { binary, .. } => &binary.path,
            Program::External { path, .. } => path,
            Program::BareLoop { .. } | Program::Loop { .. } => return true,
        };
        !path.as_os_str().is_empty()
    }

    /// URL scheme of the server.
    fn scheme(&self) -> &'static str {
        match &self.program {
            Program::Server { loops, .. } if loops.listen.split(' ').any(|word| word == "ssl") => "https",
            _ => "http",
        }
    }

    /// Returns `true` if the server has metrics of its loops.
    pub(super) fn has_metrics(&self) -> bool {
        matches!(&self.program, Program::Server { binary, .. } if binary.is_tailwater())
    }

    /// The physical limit.
    pub(super) fn bare_loop(response: Vec<u8>) -> Self {
        Self::new("bare epoll loop", Program::BareLoop { response })
    }

    /// A loop of our own: `xtask bench WORD` with its port and these arguments.
    pub(super) fn own_loop(name: &str, word: &'static str, args: &[String]) -> Self {
        Self::new(name, Program::Loop { name: word, args: args.to_vec() })
    }

    /// Another program, with [`PORT`] and its sisters replaced in its arguments and its configuration.
    pub(super) fn other(name: &str, path: &Path, args: &[&str], conf: String) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let files = vec![(OTHER_CONF.to_owned(), conf)];
        Self::new(name, Program::External { path: path.to_owned(), args, files })
    }

    /// Adds a file below the server's directory; missing directories are created.
    pub(super) fn with_file(mut self, name: &str, content: String) -> Self {
        if let Program::External { files, .. } = &mut self.program {
            files.push((name.to_owned(), content));
        }
        self
    }

    /// Starts it in a place and waits until it listens.
    pub(super) fn start(&self, place: &RunPlacement) -> Outcome<Running> {
        let (prefix, port) = prepare()?;
        let place = RunPlacement { pages: self.pages.unwrap_or(place.pages), ..place.clone() };
        let mut command = match &self.program {
            Program::Server { binary, http, server, loops } => {
                let mut words =
                    self.runner.iter().map(|word| word.replace(PREFIX, &prefix.path().display().to_string()));
                let mut command = match words.next() {
                    Some(runner) => place.command(Path::new(&runner)),
                    None => place.command(&binary.path),
                };
                if !self.runner.is_empty() {
                    command.args(words).arg(&binary.path);
                }
                command.args(server_args(&prefix, &conf(port.number(), binary, http, server, loops))?);
                command
            }
            Program::BareLoop { response } => {
                let response = prefix.write("response", response)?;
                let mut command = place.command(Path::new(SELF));
                command.args(["bench", "bare-loop", "--port", &port.number().to_string(), "--response"]);
                command.arg(response);
                command
            }
            Program::Loop { name, args } => {
                let mut command = place.command(Path::new(SELF));
                command.args(["bench", name, "--port", &port.number().to_string()]).args(args);
                command
            }
            Program::External { path, args, files } => {
                let port = port.number().to_string();
                let dir = prefix.path().display().to_string();
                let file = prefix.join(OTHER_CONF).display().to_string();
                let find_known =
                    |text: &String| text.replace(PORT, &port).replace(PREFIX, &dir).replace(CONF, &file);
                for (name, content) in files {
                    if let Some(parent) = prefix.join(name).parent() {
                        fs::create_dir_all(parent)?;
                    }
                    prefix.write(name, find_known(content))?;
                }
                let mut command = place.command(path);
                command.args(args.iter().map(find_known));
                command
            }
        };
        let group = spawn(&mut command, &prefix)?;
        let running = Running { name: self.name.clone(), prefix, group, port, scheme: self.scheme() };
        let listens =
            wait::until(wait::TIMEOUT, || running.group.ended() || ports::listening(running.port()));
        if listens && !running.group.ended() { Ok(running) } else { Err(running.complaint()) }
    }
}

impl Binary {
    /// From the start of the process to the first byte of an answer to a client that tries until it is let in.
    pub(super) fn time_to_first_byte(&self, server: &str, path: &str) -> Outcome<Duration> {
        /// Pause between attempts: short beside the milliseconds measured; spinning would take a core from the
        /// server.
        const RETRY: Duration = Duration::from_micros(100);
        let (prefix, port) = prepare()?;
        let mut command = Command::new(&self.path);
        command.args(server_args(
            &prefix,
            &conf(port.number(), self, "access_log off;", server, &Loops::default()),
        )?);
        let port_number = port.number();
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port_number));

        let start = Instant::now();
        let group = spawn(&mut command, &prefix)?;
        let running = Running { name: self.version.clone(), prefix, group, port, scheme: "http" };
        loop {
            match Client::connect(addr) {
                Ok(mut client) => {
                    client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
                    client.read_bytes(1)?;
                    return Ok(start.elapsed());
                }
                Err(_) if running.group.ended() || start.elapsed() > wait::TIMEOUT => {
                    return Err(running.complaint());
                }
                Err(_) => wait::pause(RETRY),
            }
        }
    }
}

/// A prefix with the directories every server expects, and a port.
pub(super) fn prepare() -> Outcome<(TempDir, Port)> {
    let prefix = TempDir::new("bench")?;
    for dir in ["conf", "logs"] {
        fs::create_dir(prefix.join(dir))?;
    }
    Ok((prefix, Port::reserve()?))
}

pub(super) fn server_args(prefix: &TempDir, conf: &str) -> Outcome<[PathBuf; 4]> {
    let conf = prefix.write("conf/nginx.conf", conf)?;
    Ok(["-p".into(), prefix.path().to_owned(), "-c".into(), conf])
}

fn spawn(command: &mut Command, prefix: &TempDir) -> Outcome<Group> {
    let stderr = File::create(prefix.join("logs/stderr.log"))?;
    command.stdin(Stdio::null()).stdout(stderr.try_clone()?).stderr(stderr).process_group(0);
    Ok(Group::new(command.spawn()?))
}

impl Running {
    pub(super) fn pid(&self) -> u32 {
        self.group.pid()
    }

    pub(super) fn port(&self) -> u16 {
        self.port.number()
    }

    pub(super) fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// The URL of a path that begins with `/`.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.addr())
    }

    /// Error output of a server that does not serve.
    fn complaint(&self) -> Box<dyn std::error::Error> {
        let logs = ["logs/stderr.log", "logs/error.log"].map(|log| self.prefix.join(log));
        let said: String = logs.iter().filter_map(|log| fs::read_to_string(log).ok()).collect();
        format!("{} does not start: {}", self.name, said.trim()).into()
    }
}

/// A program on the PATH.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // As root finds it: a user's PATH often lacks the directory nginx is installed to.
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Time after which a file that was just written is served as others are: its contents may be kept in memory then.
const SETTLED: Duration = Duration::from_secs(4);

/// Writes files of these names and sizes to serve, once; returns their directory.
pub(super) fn hot_files(sizes: &[(&str, usize)]) -> Outcome<PathBuf> {
    let dir = home().join("files");
    fs::create_dir_all(&dir)?;
    let mut is_new = false;
    for (name, size) in sizes {
        let path = dir.join(name);
        if fs::metadata(&path).map(|metadata| metadata.len()).ok() != Some(*size as u64) {
            fs::write(&path, super::data::noise(1, *size))?;
            is_new = true;
        }
    }
    if is_new {
        wait::pause(SETTLED);
    }
    Ok(dir)
}

/// One process, unless nginx has several workers, and connections that no limit ends before the measurement does.
fn conf(port: u16, binary: &Binary, http: &str, server: &str, loops: &Loops) -> String {
    let has_master = loops.has_master || loops.count > 1 && !binary.is_tailwater();
    let master = if has_master { "on" } else { "off" };
    conf_with(&format!("daemon off; master_process {master};"), port, binary, http, server, loops)
}

/// Configuration with these directives in the main context.
pub(super) fn configuration(processes: &str, port: u16, binary: &Binary, http: &str, server: &str) -> String {
    conf_with(processes, port, binary, http, server, &Loops::default())
}

fn conf_with(processes: &str, port: u16, binary: &Binary, http: &str, server: &str, loops: &Loops) -> String {
    let Binary { http: own, main, .. } = binary;
    let Loops { count, events, listen, connections_max, guard, .. } = loops;
    let guard = if binary.is_tailwater() { guard } else { "" };
    conf::fill(
        conf::SERVER,
        &[
            ("@GUARD@", guard),
            ("@MAIN@", main),
            ("@PROCESSES@", processes),
            ("@WORKERS@", &count.to_string()),
            ("@CONNECTIONS@", &connections_max.to_string()),
            ("@EVENTS@", events),
            ("@HTTP@", &format!("{own}\n    {http}")),
            ("@LISTEN@", listen),
            ("@SERVER@", server),
            // Last: what is put in before may have it, too.
            ("@PORT@", &port.to_string()),
        ],
    )
}

/// Contestants whose programs are on this machine.
pub(super) fn present(contestants: impl IntoIterator<Item = Contestant>) -> Vec<Contestant> {
    contestants.into_iter().filter(Contestant::is_present).collect()
}

/// The content of `server {}` for files under one directory.
pub(super) fn root_directive(dir: &Path) -> String {
    format!("root \"{}\";", dir.display())
}
