//! Binary upgrade by USR2: forward, back, and the state that is handed over.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::process::{kill, processes, stat};
use rustix::process::{Pid, kill_process};
use rustls::HandshakeKind;
use rustls::version::{TLS12, TLS13};
use tw_testkit::ports::{self, Port};
use tw_testkit::process::Group;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Lacks, Signal, TempDir, leave_out, wait};

const TAILWATER: &str = env!("CARGO_BIN_EXE_tailwater");
/// A body that no socket buffer takes as a whole.
const LARGE: usize = 24 << 20;
/// Every address that a configuration here has.
const LISTEN: &str =
    "listen 127.0.0.1:{port0}; listen 127.0.0.1:{port1} reuseport; listen unix:{prefix}/socket;";
/// Locations of every server here.
const LOCATIONS: &str = "location / { return 200 $pid; } location /large { root html; }";

/// A daemon whose program file can be replaced. Dropping it kills all processes that it has started.
struct Daemon {
    dir: TempDir,
    ports: [Port; 3],
    /// Session of the first master: all its descendants are in it.
    session: u32,
}

impl Daemon {
    fn start() -> Self {
        Self::start_as(Path::new(TAILWATER), &http(LISTEN))
    }

    /// `program` is started by a name in its prefix.
    fn start_as(program: &Path, http: &str) -> Self {
        let dir = TempDir::new("upgrade").unwrap();
        fs::create_dir(dir.join("logs")).unwrap();
        dir.write("html/large", vec![b'x'; LARGE]).unwrap();
        let mut daemon = Self { dir, ports: std::array::from_fn(|_| Port::reserve().unwrap()), session: 0 };
        daemon.write_conf(http);
        daemon.install(program);
        let mut command = daemon.command();
        let said = File::create(daemon.dir.join("logs/stderr.log")).unwrap();
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).status().unwrap();
        assert!(status.success(), "{}", daemon.log());
        daemon.session = wait::some(wait::TIMEOUT, || daemon.master()).unwrap();
        assert!(wait::until(wait::TIMEOUT, || daemon.try_serving_master().is_ok()), "{}", daemon.log());
        daemon
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.dir.join("program"));
        command.arg("-p").arg(self.dir.path()).arg("-c").arg(self.dir.join("conf"));
        command
    }

    /// Runs `-s`.
    fn order(&self, order: &str) -> Output {
        Command::new(TAILWATER).args(self.command().get_args()).args(["-s", order]).output().unwrap()
    }

    fn write_conf(&self, http: &str) {
        let mut text = format!(
            "user root; worker_processes 2; pid logs/server.pid; error_log logs/error.log info; events {{}} {http}"
        );
        for (index, port) in self.ports.iter().enumerate() {
            text = text.replace(&format!("{{port{index}}}"), &port.number().to_string());
        }
        let text = text.replace("{prefix}", &self.dir.path().to_string_lossy());
        self.dir.write("conf", text).unwrap();
    }

    /// Replaces the binary with another one.
    fn install(&self, program: &Path) {
        let temp_path = self.dir.join("program.new");
        symlink(program, &temp_path).unwrap();
        fs::rename(temp_path, self.dir.join("program")).unwrap();
    }

    /// Installs a script in place of the binary.
    fn install_script(&self, text: &str, mode: u32) {
        let temp_path = self.dir.write_program("program.new", text, mode).unwrap();
        fs::rename(temp_path, self.dir.join("program")).unwrap();
    }

    fn addr(&self, index: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[index].number()))
    }

    fn pid_file(&self) -> PathBuf {
        self.dir.join("logs/server.pid")
    }

    fn old_pid_file(&self) -> PathBuf {
        self.dir.join("logs/server.pid.oldbin")
    }

    /// The number in the pid file.
    fn master(&self) -> Option<u32> {
        fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()
    }

    fn log(&self) -> String {
        let read = |name| fs::read(self.dir.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&[read("logs/stderr.log"), read("logs/error.log")].concat()).into_owned()
    }

    fn wait_log(&self, text: &str) {
        self.wait_logs(text, 1);
    }

    fn wait_logs(&self, text: &str, count: usize) {
        let is_found = || self.log().matches(text).count() >= count;
        assert!(wait::until(wait::TIMEOUT, is_found), "no {text:?} in\n{}", self.log());
    }

    /// Starts the new binary and waits for its pid file.
    fn upgrade(&self) -> u32 {
        let old = self.master().unwrap();
        kill(old, Signal::USR2);
        self.wait_master(|new| new != old)
    }

    fn wait_master(&self, is_it: impl Fn(u32) -> bool) -> u32 {
        let value = wait::some(wait::TIMEOUT, || self.master().filter(|pid| is_it(*pid)));
        value.unwrap_or_else(|| panic!("{}", self.log()))
    }

    /// The master of the worker process that answers.
    fn try_serving_master(&self) -> io::Result<u32> {
        let answer = Client::get(self.addr(0), "/")?.text();
        Ok(parent(answer.parse().unwrap()))
    }

    fn serving_master(&self) -> u32 {
        self.try_serving_master().unwrap_or_else(|error| panic!("{error}: {}", self.log()))
    }

    /// Waits until a process has ended.
    fn wait_end(&self, pid: u32) {
        assert!(wait::until(wait::TIMEOUT, || has_ended(pid)), "{pid} goes on\n{}", self.log());
    }

    fn members(&self) -> Vec<u32> {
        processes().filter(|pid| stat(*pid).is_some_and(|stat| stat.session == self.session)).collect()
    }

    fn masters(&self) -> usize {
        let is_master = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            !has_ended(*pid) && !String::from_utf8_lossy(&line).contains("worker process")
        };
        self.members().iter().filter(|pid| is_master(pid)).count()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let all = || self.members().into_iter().filter(|pid| self.session > 0 && !has_ended(*pid));
        let is_over = wait::until(wait::TIMEOUT, || {
            for pid in all().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
                // The process may just have ended.
                let _ = kill_process(pid, Signal::KILL);
            }
            all().next().is_none()
        });
        assert!(is_over || std::thread::panicking(), "processes that cannot be killed");
    }
}

/// True if all threads have ended: children keep their parent until its last thread ends, and the first thread is often
/// not the last.
fn has_ended(pid: u32) -> bool {
    stat(pid).is_none_or(|stat| stat.state == b'Z' && stat.threads <= 1)
}

fn parent(pid: u32) -> u32 {
    stat(pid).map_or(0, |stat| stat.parent)
}

fn http(listen: &str) -> String {
    format!("loop_guard enforce; http {{ access_log off; server {{ {listen} {LOCATIONS} }} }}")
}

/// A client that counts what fails, but for a connection that is closed between two requests.
fn request_until(done: &AtomicBool, addr: SocketAddr, keeps: bool, answers: &AtomicUsize) -> io::Result<()> {
    let fields = if keeps { "" } else { "Connection: close\r\n" };
    let mut client: Option<Client> = None;
    while !done.load(Ordering::Relaxed) {
        let was_used = client.is_some();
        let mut one = client.take().map_or_else(|| Client::connect(addr), Ok)?;
        let answer = one
            .send(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"))
            .and_then(|()| one.read_response());
        match answer {
            Ok(response) if response.status == 200 => {
                answers.fetch_add(1, Ordering::Relaxed);
                if keeps && response.field("Connection") != Some("close") {
                    client = Some(one);
                }
            }
            Ok(response) => return Err(io::Error::other(response.head)),
            // RFC 9112, section 9.3.1: closed before the request was there, asked again on another connection.
            Err(error) if was_used && error.kind() != io::ErrorKind::TimedOut => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[test]
fn old_process_answers_its_datagrams_and_the_new_one_gets_the_next() {
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        socket
    };
    // The new binary has another server, and so does not take the session over.
    let upstream = socket();
    let other = socket();
    let client = socket();
    let conf = |upstream: &UdpSocket| {
        format!(
            "{} stream {{ server {{ listen 127.0.0.1:{{port1}} udp; return $pid; }}
             server {{ listen 127.0.0.1:{{port2}} udp; proxy_pass {}; proxy_responses 1; }} }}",
            http(LISTEN),
            upstream.local_addr().unwrap()
        )
    };
    let daemon = Daemon::start_as(Path::new(TAILWATER), &conf(&upstream));
    let receive = |socket: &UdpSocket| {
        let mut buffer = [0; 64];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        (String::from_utf8_lossy(&buffer[..len]).into_owned(), from)
    };
    client.send_to(b"early", daemon.addr(2)).unwrap();
    let (_, session) = receive(&upstream);
    let old = daemon.master().unwrap();
    daemon.write_conf(&conf(&other));
    let new = daemon.upgrade();
    kill(old, Signal::QUIT);
    let is_served_by_new = || {
        let other = socket();
        other.send_to(b"who", daemon.addr(1)).unwrap();
        parent(receive(&other).0.parse().unwrap()) == new
    };
    let is_all_new = || (0..8).all(|_| is_served_by_new());
    assert!(wait::until(wait::TIMEOUT, is_all_new), "{}", daemon.log());
    assert!(!has_ended(old), "it waits for the response");
    client.send_to(b"next", daemon.addr(2)).unwrap();
    let (text, next) = receive(&other);
    assert!(text == "next" && next != session);
    upstream.send_to(b"late", session).unwrap();
    assert_eq!(receive(&client), ("late".to_owned(), daemon.addr(2)));
    other.send_to(b"new", next).unwrap();
    assert_eq!(receive(&client).0, "new");
    daemon.wait_end(old);
}

#[test]
fn upgrade_fails_no_request() {
    const CLIENTS: usize = 64;
    let daemon = Daemon::start();
    let mut download = Client::connect(daemon.addr(0)).unwrap();
    download.send("GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(download.read_head().unwrap().status, 200);
    let done = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let request = |index: usize| {
            let addr = daemon.addr(index % 2);
            let keeps = index % 4 < 2;
            let done = &done;
            let answers = &answers;
            scope.spawn(move || request_until(done, addr, keeps, answers))
        };
        let clients: Vec<_> = (0..CLIENTS).map(request).collect();
        // A panic in here would otherwise wait for the clients for ever.
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut download = Some(download);
            for _ in 0..3 {
                let old = daemon.master().unwrap();
                let before = answers.load(Ordering::Relaxed);
                let new = daemon.upgrade();
                kill(old, Signal::QUIT);
                assert!(wait::until(wait::TIMEOUT, || daemon
                    .try_serving_master()
                    .is_ok_and(|who| who == new)));
                if let Some(mut download) = download.take() {
                    assert!(!has_ended(old), "it waits for the download");
                    // Each read has its own timeout: other tests compete for the processor.
                    for _ in 0..LARGE >> 20 {
                        assert_eq!(download.read_bytes(1 << 20).unwrap().len(), 1 << 20);
                    }
                }
                daemon.wait_end(old);
                let enough = || answers.load(Ordering::Relaxed) > before + 10 * CLIENTS;
                assert!(wait::until(wait::TIMEOUT, enough), "{}", daemon.log());
            }
        }));
        done.store(true, Ordering::Relaxed);
        let failed: Vec<_> = clients.into_iter().filter_map(|client| client.join().unwrap().err()).collect();
        assert!(failed.is_empty(), "{failed:?}\n{}", daemon.log());
        changed.unwrap();
    });
    assert!(wait::until(wait::TIMEOUT, || daemon.masters() == 1), "{}", daemon.log());
    assert!(!daemon.old_pid_file().exists());
    assert!(UnixStream::connect(daemon.dir.join("socket")).is_ok(), "the new one listens there");
}

#[test]
fn old_binary_can_take_over_again() {
    let daemon = Daemon::start();
    let old = daemon.master().unwrap();
    assert_eq!(daemon.serving_master(), old);
    let new = daemon.upgrade();
    daemon.wait_log("using inherited sockets from \"");
    assert_eq!(parent(new), old, "it sees how the new one ends");
    let text = fs::read_to_string(daemon.old_pid_file()).unwrap();
    assert_eq!(text.trim(), old.to_string());

    // Only the new master serves.
    kill(old, Signal::WINCH);
    daemon.wait_log("stop accepting connections");
    assert!(wait::until(wait::TIMEOUT, || daemon.serving_master() == new && daemon.serving_master() == new));
    daemon.wait_log(" exited with code 0");

    // Both masters serve again. The configuration is not read for that.
    daemon.write_conf("http {");
    kill(old, Signal::HUP);
    daemon.wait_log("a new binary runs: serving beside it");
    assert!(wait::until(wait::TIMEOUT, || daemon.serving_master() == old));
    assert!(!daemon.log().contains("[emerg]"), "{}", daemon.log());
    // A second one changes nothing.
    kill(old, Signal::HUP);
    daemon.wait_logs("a new binary runs: serving beside it", 2);

    // Only the old master serves.
    kill(new, Signal::QUIT);
    daemon.wait_end(new);
    daemon.wait_master(|pid| pid == old);
    assert!(!daemon.old_pid_file().exists());
    assert_eq!((daemon.serving_master(), daemon.masters()), (old, 1));
    assert!(UnixStream::connect(daemon.dir.join("socket")).is_ok());
    assert!(TcpStream::connect(daemon.addr(1)).is_ok());
    daemon.wait_log(&format!("new binary process {new} exited with code 0"));

    // The old binary reads its configuration again.
    daemon.write_conf(&http(LISTEN));
    kill(old, Signal::HUP);
    daemon.wait_log(", reconfiguring");
    assert!(daemon.order("stop").status.success());
    daemon.wait_end(old);
    assert!(!daemon.pid_file().exists() && !daemon.dir.join("socket").exists());
}

#[test]
fn old_binary_serves_again_when_the_new_one_dies() {
    let daemon = Daemon::start();
    let old = daemon.master().unwrap();
    for signal in [Signal::KILL, Signal::TERM] {
        let new = daemon.upgrade();
        kill(old, Signal::WINCH);
        assert!(
            wait::until(wait::TIMEOUT, || daemon.serving_master() == new && daemon.serving_master() == new)
        );
        kill(new, signal);
        daemon.wait_master(|pid| pid == old);
        assert!(wait::until(wait::TIMEOUT, || daemon.try_serving_master().is_ok_and(|who| who == old)));
        assert!(UnixStream::connect(daemon.dir.join("socket")).is_ok());
    }
    daemon.wait_log("exited on signal 9");
    assert_eq!(daemon.order("quit").status.code(), Some(0));
    daemon.wait_end(old);
    assert!(!daemon.dir.join("socket").exists());
}

#[test]
fn failed_new_binary_changes_nothing() {
    let daemon = Daemon::start();
    let old = daemon.master().unwrap();
    let script = |text: &'static str, mode: u32| move |daemon: &Daemon| daemon.install_script(text, mode);
    type Prepare = Box<dyn Fn(&Daemon)>;
    let table: [(&str, Prepare); 7] = [
        (" exited with code 7\n", Box::new(script("exit 7", 0o755))),
        (" exited on signal 11", Box::new(script("kill -SEGV $$", 0o755))),
        ("\" (13: Permission denied)\n", Box::new(script("exit 0", 0o644))),
        (
            "\" (2: No such file or directory)\n",
            Box::new(|daemon| {
                fs::remove_file(daemon.dir.join("program")).unwrap();
            }),
        ),
        (" exited with code 0\n", Box::new(script("exit 0", 0o755))),
        (
            "unknown directive \"nonsense\"",
            Box::new(|daemon| {
                daemon.install(Path::new(TAILWATER));
                daemon.write_conf("nonsense;");
            }),
        ),
        (
            "still could not bind()",
            Box::new(|daemon| {
                daemon.write_conf(&http(&format!("{LISTEN} listen 127.0.0.1:{{port2}};")));
            }),
        ),
    ];
    let _taken = TcpListener::bind(daemon.addr(2)).unwrap();
    for (count, (line, prepare)) in table.iter().enumerate() {
        prepare(&daemon);
        kill(old, Signal::USR2);
        daemon.wait_logs(", changing binary\n", count + 1);
        daemon.wait_log(line);
        daemon.wait_master(|pid| pid == old);
        assert!(wait::until(wait::TIMEOUT, || !daemon.old_pid_file().exists()), "{line}");
        assert_eq!((daemon.serving_master(), daemon.masters()), (old, 1), "{line}");
        assert!(UnixStream::connect(daemon.dir.join("socket")).is_ok(), "{line}");
    }
    let expected = format!(
        "execve() failed while executing new binary process \"{}\" (2: ",
        daemon.dir.join("program").display()
    );
    daemon.wait_log(&expected);
    daemon.write_conf(&http(LISTEN));
    let new = daemon.upgrade();
    assert_ne!(new, old, "and it can be tried again");
}

#[test]
fn hung_new_binary_is_left_alone() {
    let daemon = Daemon::start();
    let old = daemon.master().unwrap();
    daemon.install_script("kill -STOP $$", 0o755);
    kill(old, Signal::USR2);
    let stopped =
        || daemon.members().into_iter().find(|pid| stat(*pid).is_some_and(|stat| stat.state == b'T'));
    let new = wait::some(wait::TIMEOUT, stopped).unwrap();
    assert_eq!((parent(new), daemon.serving_master()), (old, old));
    assert!(!daemon.pid_file().exists() && daemon.old_pid_file().exists());
    kill(old, Signal::USR2);
    daemon.wait_log("[crit] ");
    daemon.wait_log("the changing binary signal is ignored: you should shutdown or terminate before either old or new binary's process");
    let said = daemon.order("reload");
    assert_eq!(said.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&said.stderr).contains("(2: No such file or directory)"), "{said:?}");
    kill(new, Signal::KILL);
    daemon.wait_master(|pid| pid == old);
    assert_eq!((daemon.serving_master(), daemon.old_pid_file().exists()), (old, false));
}

#[test]
fn repeated_usr2_starts_one_new_binary() {
    let daemon = Daemon::start();
    let old = daemon.master().unwrap();
    for _ in 0..100 {
        kill(old, Signal::USR2);
        kill(old, Signal::HUP);
    }
    let new = daemon.wait_master(|pid| pid != old);
    assert!(wait::until(wait::TIMEOUT, || daemon.try_serving_master().is_ok_and(|who| who == new)));
    assert_eq!(daemon.masters(), 2);
    // The new one is no place for another one as long as the old one lives.
    for _ in 0..100 {
        kill(new, Signal::USR2);
        kill(new, Signal::HUP);
    }
    // The command is carried out after the signals.
    assert!(daemon.order("reload").status.success());
    daemon.wait_log(&format!("[crit] {new}#"));
    kill(old, Signal::QUIT);
    daemon.wait_end(old);
    assert_eq!(daemon.master(), Some(new));
    assert!(wait::until(wait::TIMEOUT, || daemon.try_serving_master().is_ok_and(|who| who == new)));
    assert_eq!(daemon.masters(), 1);
    assert_ne!(daemon.upgrade(), new, "now it is");
}

#[test]
fn tls_sessions_are_resumed_by_the_next_worker_and_binary() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let pem = made.pem;
    let key = made.key;
    let secured = format!(
        "{LISTEN} listen 127.0.0.1:{{port2}} ssl; ssl_certificate 'data:{pem}'; ssl_certificate_key 'data:{key}';"
    );
    for version in [&TLS12, &TLS13] {
        let daemon = Daemon::start_as(Path::new(TAILWATER), &http(&secured));
        let config = authority.client(&[version]);
        // The worker that answered, and whether the session was resumed.
        let request = || -> io::Result<(u32, bool)> {
            let mut client = Client::connect_tls(daemon.addr(2), &config, "localhost")?;
            client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            let worker = client.read_response()?.text().parse().map_err(io::Error::other)?;
            let kind = client.session().and_then(|session| session.handshake_kind());
            Ok((worker, kind == Some(HandshakeKind::Resumed)))
        };
        let (worker, is_resumed) = request().unwrap();
        assert!(!is_resumed);
        assert_eq!(request().unwrap(), (worker, true));

        kill(worker, Signal::KILL);
        daemon.wait_log("exited on signal 9");
        let (next, is_resumed) = wait::some(wait::TIMEOUT, || request().ok()).unwrap();
        assert!(next != worker && is_resumed, "{}", daemon.log());

        let old = daemon.master().unwrap();
        daemon.upgrade();
        kill(old, Signal::QUIT);
        daemon.wait_end(old);
        let (last, is_resumed) = request().unwrap();
        assert!(last != next && is_resumed, "{}", daemon.log());
    }
}

#[test]
fn cache_directory_stays_locked_during_an_upgrade() {
    let cache = "proxy_cache_path {prefix}/cache keys_zone=z:1m;";
    let daemon = Daemon::start_as(
        Path::new(TAILWATER),
        &format!("http {{ {cache} server {{ {LISTEN} {LOCATIONS} }} }}"),
    );
    let old = daemon.master().unwrap();
    let new = daemon.upgrade();
    kill(old, Signal::QUIT);
    daemon.wait_end(old);
    // The new one has it alone.
    let directory = daemon.dir.join("cache").display().to_string();
    let other = crate::support::server().start(&format!(
        "http {{ proxy_cache_path {directory} keys_zone=z:1m; server {{ listen 127.0.0.1:{{port}}; }} }}"
    ));
    let error = other.err().unwrap().to_string();
    assert!(error.contains(") has its cache in ") && error.contains(&directory), "{error}");
    daemon.order("reload");
    assert_eq!(daemon.serving_master(), new);
    kill(new, Signal::QUIT);
    daemon.wait_end(new);
}

#[test]
fn new_binary_may_listen_on_other_addresses() {
    let daemon = Daemon::start();
    let old = daemon.master().unwrap();
    daemon.write_conf(&http(
        "listen 127.0.0.1:{port0} reuseport; listen 127.0.0.1:{port2}; listen unix:{prefix}/other;",
    ));
    let new = daemon.upgrade();
    assert!(wait::until(wait::TIMEOUT, || daemon.serving_master() == new));
    let address = daemon.addr(1);
    daemon.wait_log(&format!("{address} is not configured, closing inherited sockets: 2"));
    assert_eq!(Client::get(daemon.addr(2), "/").unwrap().status, 200);
    assert_eq!(Client::get(address, "/").unwrap().status, 200, "the old one listens there");
    assert!(UnixStream::connect(daemon.dir.join("socket")).is_ok(), "and there");
    kill(old, Signal::QUIT);
    daemon.wait_end(old);
    assert!(!ports::listening(address.port()));
    assert!(!daemon.dir.join("socket").exists() && daemon.dir.join("other").exists());
    assert_eq!(daemon.serving_master(), new);

    // Sockets inherited from the old binary are closed as well, by a reload and at the end.
    assert_ne!(daemon.upgrade(), new);
    kill(new, Signal::QUIT);
    daemon.wait_end(new);
    daemon.write_conf(&http("listen 127.0.0.1:{port0}; listen unix:{prefix}/socket;"));
    let last = daemon.master().unwrap();
    assert!(wait::until(wait::TIMEOUT, || daemon.try_serving_master().is_ok_and(|who| who == last)));
    assert!(daemon.order("reload").status.success());
    let is_gone = || {
        kill(last, Signal::USR1);
        !daemon.dir.join("other").exists()
    };
    assert!(wait::until(wait::TIMEOUT, is_gone), "{}", daemon.log());
    assert!(daemon.order("stop").status.success());
    daemon.wait_end(last);
    assert!(!daemon.dir.join("socket").exists() && !daemon.pid_file().exists());
}

#[test]
fn upgrade_works_in_the_foreground_with_a_master() {
    const HTTP: &str = "http { server { listen 127.0.0.1:{port}; return 200 $pid; } }";
    let server = crate::support::server().with_master().start(HTTP).unwrap();
    let old = server.pid();
    let serving_master = || parent(Client::get(server.addr(), "/").unwrap().text().parse().unwrap());
    assert_eq!(serving_master(), old);
    server.signal(Signal::USR2).unwrap();
    let read = || fs::read_to_string(server.prefix().join("logs/server.pid")).ok()?.trim().parse().ok();
    let new = wait::some(wait::TIMEOUT, || read().filter(|pid: &u32| *pid != old));
    let new = new.unwrap_or_else(|| panic!("{}", server.error_log()));
    // A terminal that changes its size stops neither.
    kill(old, Signal::WINCH);
    kill(new, Signal::WINCH);
    assert!(wait::until(wait::TIMEOUT, || serving_master() == new));
    assert!(wait::until(wait::TIMEOUT, || serving_master() == old));
    kill(old, Signal::QUIT);
    assert!(wait::until(wait::TIMEOUT, || has_ended(old)), "{}", server.error_log());
    assert_eq!(serving_master(), new);

    let single = crate::support::server().start(HTTP).unwrap();
    single.signal(Signal::USR2).unwrap();
    single.wait_error_log("(SIGUSR2) received from").unwrap();
    single.wait_error_log("ignoring: there is no master process").unwrap();
    assert_eq!(Client::get(single.addr(), "/").unwrap().text(), single.pid().to_string());
}

#[test]
fn sockets_of_systemd_are_inherited() {
    let dir = TempDir::new("activation").unwrap();
    fs::create_dir(dir.join("logs")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let conf = format!(
        "daemon off; user root; pid logs/server.pid; error_log logs/error.log info; events {{}} \
            loop_guard enforce; http {{ access_log off; server {{ listen {addr}; return 200 here; }} }}"
    );
    let conf = dir.write("conf", conf).unwrap();
    let script = "export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web; exec \"$0\" \"$@\" 3<&0 </dev/null";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, TAILWATER, "-p"]).arg(dir.path()).arg("-c").arg(conf);
    command.stdin(OwnedFd::from(listener.try_clone().unwrap()));
    command.stderr(File::create(dir.join("logs/stderr.log")).unwrap());
    let mut group = Group::new(command.process_group(0).spawn().unwrap());
    let log = || fs::read_to_string(dir.join("logs/error.log")).unwrap_or_default();
    assert_eq!(Client::get(addr, "/").unwrap().text(), "here", "{}", log());
    let expected = format!("socket #3 \"web\" listens on {addr}");
    assert!(wait::until(wait::TIMEOUT, || log().contains(&expected)), "{}", log());
    group.signal(Signal::TERM).unwrap();
    assert_eq!(group.wait(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(TcpStream::connect(addr).is_ok(), "it is systemd's");
}

#[test]
fn signals_that_reach_no_server_are_refused_with_their_reason() {
    let daemon = Daemon::start();
    let master = daemon.master().unwrap();
    let path = &daemon.pid_file();
    let name = path.display().to_string();
    let mut stranger = Group::new(Command::new("/bin/sleep").arg("600").process_group(0).spawn().unwrap());
    let ended = {
        let mut child = Command::new("/bin/true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    };
    type Prepare<'a> = Box<dyn Fn() + 'a>;
    let text = |text: String| -> Prepare<'_> { Box::new(move || fs::write(path, &text).unwrap()) };
    let table: [(Prepare<'_>, String); 7] = [
        (Box::new(|| {}), format!("open() \"{name}\" failed (2: No such file or directory)")),
        (
            Box::new(|| fs::create_dir(path).unwrap()),
            format!("read() \"{name}\" failed (21: Is a directory)"),
        ),
        (
            Box::new(|| {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            }),
            format!("invalid PID number \"\" in \"{name}\""),
        ),
        (text(String::new()), format!("invalid PID number \"\" in \"{name}\"")),
        (text("nonsense\n".to_owned()), format!("invalid PID number \"nonsense\" in \"{name}\"")),
        (text(format!("{ended}\n")), format!("kill({ended}, ")),
        (text(format!("{}\n", stranger.pid())), format!("process {} is not the server", stranger.pid())),
    ];
    for (prepare, expected) in &table {
        if path.is_dir() {
            fs::remove_dir(path).unwrap();
        } else {
            let _ = fs::remove_file(path);
        }
        prepare();
        for order in ["stop", "quit", "reopen", "reload"] {
            let said = daemon.order(order);
            assert_eq!(said.status.code(), Some(1), "{order} {expected}");
            let stderr = String::from_utf8_lossy(&said.stderr);
            assert!(stderr.contains(expected.as_str()), "{order}: {stderr}");
        }
    }
    assert!(!stranger.ended() && daemon.serving_master() == master);
    stranger.kill().unwrap();
    kill(master, Signal::TERM);
    daemon.wait_end(master);
    assert!(path.exists(), "not ours any more");
}

/// nginx, if there is one.
fn peer() -> Option<PathBuf> {
    let named = std::env::var_os("TAILWATER_PEER").map(PathBuf::from);
    let found_path = named.or_else(|| Some(PathBuf::from("/usr/sbin/nginx"))).filter(|path| path.exists());
    if found_path.is_none() {
        leave_out(Lacks::Machine, "there is no nginx (TAILWATER_PEER names one)");
    }
    found_path
}

#[test]
fn nginx_and_tailwater_upgrade_each_other() {
    let Some(nginx) = peer() else { return };
    let common = format!("http {{ access_log off; server {{ {LISTEN} {LOCATIONS} }} }}");
    let daemon = Daemon::start_as(&nginx, &common);
    let mut old = daemon.master().unwrap();
    for program in [Path::new(TAILWATER), &nginx, Path::new(TAILWATER)] {
        daemon.install(program);
        let new = daemon.upgrade();
        kill(old, Signal::QUIT);
        assert!(wait::until(wait::TIMEOUT, || !daemon.old_pid_file().exists()), "{}", daemon.log());
        for index in [0, 1] {
            assert_eq!(Client::get(daemon.addr(index), "/").unwrap().status, 200, "{}", daemon.log());
        }
        assert!(UnixStream::connect(daemon.dir.join("socket")).is_ok());
        assert!(
            wait::until(wait::TIMEOUT, || daemon.masters() == 1 && daemon.serving_master() == new),
            "{}",
            daemon.log()
        );
        old = new;
    }
    // The old binary takes over again, without a stop in between.
    daemon.install(&nginx);
    let new = daemon.upgrade();
    kill(old, Signal::WINCH);
    assert!(wait::until(wait::TIMEOUT, || daemon.serving_master() == new && daemon.serving_master() == new));
    kill(new, Signal::QUIT);
    daemon.wait_master(|pid| pid == old);
    assert!(wait::until(wait::TIMEOUT, || daemon.try_serving_master().is_ok_and(|who| who == old)));
    assert!(daemon.order("quit").status.success());
    daemon.wait_end(old);
}
