//! Master and worker process: privileges, reloads and shutdown.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::process::{Pid, geteuid, kill_process};
use tw_testkit::server::Builder;
use tw_testkit::{Client, Lacks, Server, Signal, leave_out, ports, wait};

use crate::support::download::{LARGE, begin_download, with_large_file};
use crate::support::process::{children, is_gone, kill, worker};
use crate::support::reload::reload_until;
use crate::support::text_on;
use crate::support::{page, server};

/// Process title of the worker.
const TITLE: &str = "tailwater: worker process";

pub(super) fn builder() -> Builder {
    with_large_file().with_master()
}

pub(super) fn conf(main: &str, locations: &str) -> String {
    format!(
        "{main} http {{ server {{ listen 127.0.0.1:{{port}}; location /old {{ return 200 old; }} {locations} \
         location / {{ root html; }} }} }}"
    )
}

/// A server with a master and a worker that serves. Started by root, its worker runs as `nobody`.
pub(super) fn started(main: &str) -> Server {
    start(builder(), &conf(main, ""))
}

pub(super) fn start(builder: Builder, conf: &str) -> Server {
    let server = builder.start(conf).unwrap();
    // The master listens before a worker process exists, and handles signals as soon as that one serves.
    server.signal(Signal::CHILD).unwrap();
    server.wait_error_log("(SIGCHLD) received").unwrap();
    assert_eq!(page(&server, "/old").0, 200);
    server
}

pub(super) fn new_location(text: &str) -> String {
    format!("location /new {{ return 200 {text}; }}")
}

#[test]
fn requests_during_start_are_logged() {
    // The last of so many loops starts long after the first one.
    let conf = "worker_processes 100; http { log_format f '$uri'; access_log logs/f.log f;
                server { listen 127.0.0.1:{port}; return 200 x; } }";
    let mut server = server().with_master().start(conf).unwrap();
    assert_eq!(page(&server, "/one").0, 200);
    assert!(server.stop().unwrap().success());
    assert_eq!(server.log("logs/f.log", 1).unwrap(), ["/one"]);
    assert!(!server.error_log().contains("signal 9"), "{}", server.error_log());
}

#[test]
fn worker_serves_without_privileges() {
    // The parent process leaves a file open.
    let careless = ["sh", "-c", "exec 9</etc/passwd; exec \"$@\"", "sh"];
    let server = start(builder().env("SECRET", "s").by(&careless), &conf("env GIVEN=given;", ""));
    let master = server.pid();
    let worker = worker(&server);
    let words = fs::read(format!("/proc/{worker}/cmdline")).unwrap();
    assert_eq!(words, [TITLE.as_bytes(), b"\0"].concat());
    assert_eq!(fs::read_to_string(format!("/proc/{worker}/comm")).unwrap(), "tailwater\n");

    let field = |pid: u32, name: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned())).unwrap()
    };
    let owner = field(worker, "Uid:");
    if geteuid().is_root() {
        assert!(owner.split_whitespace().all(|uid| uid != "0") && field(master, "Uid:").starts_with("0\t"));
        assert!(field(worker, "Groups:").split_whitespace().all(|gid| gid != "0"));
        assert_eq!(field(worker, "CapPrm:"), "0".repeat(16));
    } else {
        assert_eq!(owner, field(master, "Uid:"))
    }

    // The environment of the worker has only the configured variables.
    if let Ok(env) = fs::read(format!("/proc/{worker}/environ")) {
        let env = String::from_utf8(env).unwrap();
        let names: Vec<_> = env.split_terminator('\0').filter(|one| !one.starts_with("TZ=")).collect();
        assert_eq!(names, ["GIVEN=given"]);
    } else {
        leave_out(Lacks::Machine, "nobody may look into the process: its environment");
    }
    if let Ok(fds) = fs::read_dir(format!("/proc/{worker}/fd")) {
        let targets = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        for target in targets.map(|target| target.display().to_string()) {
            let kinds = [
                "/dev/null",
                "socket:[",
                "anon_inode:[event",
                "anon_inode:[signalfd]",
                "anon_inode:[timerfd]",
                "pipe:[",
            ];
            let program = fs::read_link(format!("/proc/{worker}/exe")).unwrap().display().to_string();
            let log = server.prefix().join("logs").display().to_string();
            // Each loop reads how long its thread waited for a processor.
            let own = format!("/proc/{worker}/task/");
            // The pools look up the device of a path.
            let mounts = format!("/proc/{worker}/mountinfo");
            let mut known_names = kinds.into_iter().chain([&*program, &*log, &*own, &*mounts]);
            assert!(known_names.any(|name| target.starts_with(name)), "{target}, of {program}");
        }
    } else {
        leave_out(Lacks::Machine, "nobody may look into the process: its descriptors");
    }
}

#[test]
fn reload_keeps_worker_and_connections() {
    let mut server = started("");
    let before = worker(&server);
    let mut download = begin_download(&server);
    let mut idle = server.connect().unwrap();
    assert_eq!(text_on(&mut idle, "/old").unwrap(), "old");
    reload_until(&mut server, &conf("", &new_location("new")), "/new", "new");
    assert_eq!(worker(&server), before);
    assert_eq!(text_on(&mut idle, "/new").unwrap(), "new");
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE);
    assert!(server.stop().unwrap().success());
}

#[test]
fn refused_reload_changes_nothing() {
    let zone = |key: &str| format!("http {{ limit_req_zone {key} zone=one:1m rate=1r/s; ");
    let text = |zone: &str, more: &str| {
        format!(
            "{zone} server {{ listen 127.0.0.1:{{port}}; location /old {{ return 200 old; }} {more} }} }}"
        )
    };
    let mut server = start(builder(), &text(&zone("$uri"), ""));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let before = worker(&server);
    let mut kept = server.connect().unwrap();
    assert_eq!(text_on(&mut kept, "/old").unwrap(), "old");
    let unix = "listen unix:{prefix}/socket;";
    let bad = [
        (text("http {", "nonsense;"), "unknown directive \"nonsense\""),
        (text("http {", &format!("listen {taken};")), "still could not bind()"),
        (text("http {", "access_log /proc/none/access.log;"), "none/access.log\" failed (2: No such file"),
        // Only a process that already has the zone can detect this error.
        (text(&zone("$host"), unix), "uses the \"$host\" key while previously it used the \"$uri\" key"),
        // A process that cannot start.
        (format!("worker_rlimit_nofile 4; {}", text("http {", unix)), "[emerg]"),
        (format!("pid /proc/none/server.pid; {}", text("http {", unix)), "[emerg]"),
    ];
    for (count, (conf, line)) in bad.iter().enumerate() {
        server.write_conf(conf).unwrap();
        let lines = server.error_log().matches("[emerg]").count();
        server.signal(Signal::HUP).unwrap();
        let kept_it = || server.error_log().matches("the configuration stays as it was").count() > count;
        assert!(wait::until(wait::TIMEOUT, kept_it), "{conf}: {}", server.error_log());
        assert!(server.error_log().matches("[emerg]").count() > lines, "{conf}: {}", server.error_log());
        server.wait_error_log(line).unwrap();
        assert_eq!(text_on(&mut kept, "/old").unwrap(), "old", "{conf}");
        assert_eq!(page(&server, "/old"), (200, "old".to_owned()), "{conf}");
        assert_eq!(worker(&server), before, "{conf}");
        assert!(!server.prefix().join("socket").exists(), "{conf}");
    }
    assert!(server.stop().unwrap().success());
}

#[test]
fn reload_of_process_settings_starts_another_worker() {
    let mut server = started("");
    let mut mains = vec![
        "working_directory /;",
        "working_directory /; env A=b;",
        "env A=b; worker_memory_lock off;",
        "env A=b; worker_priority 3;",
        "worker_priority 3; worker_rlimit_nofile 500; events { worker_connections 100; }",
        "worker_rlimit_core 0; worker_rlimit_nofile 500; events { worker_connections 100; }",
    ];
    if geteuid().is_root() {
        mains.push("user root;");
    }
    for (count, main) in mains.into_iter().enumerate() {
        let before = worker(&server);
        let mut download = begin_download(&server);
        reload_until(
            &mut server,
            &conf(main, &new_location(&format!("new{count}"))),
            "/new",
            &format!("new{count}"),
        );
        assert!(!is_gone(before), "{main}: it finishes what it has begun");
        assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE, "{main}");
        assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{main}");
        let log = server.wait_error_log(&format!("worker process {before} exited with code 0")).unwrap();
        assert!(log.contains("[notice]"), "{log}");
        assert_ne!(worker(&server), before, "{main}");
    }
    assert!(server.stop().unwrap().success());
}

#[test]
fn logs_writable_only_by_the_master_are_rotated() {
    let server = started("");
    let logs = server.prefix().join("logs");
    if !geteuid().is_root() {
        leave_out(Lacks::Run, "only root can have files that a worker process cannot open");
    }
    fs::set_permissions(&logs, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(page(&server, "/old").0, 200);
    server.access_log(2).unwrap();
    let owner = |name: &str| {
        let metadata = fs::metadata(logs.join(name)).unwrap();
        (metadata.uid(), metadata.mode() & 0o777)
    };
    let before = [owner("access.log"), owner("error.log")];
    assert_eq!(before.map(|(uid, _)| uid), [geteuid().as_raw(); 2], "root keeps them");
    for log in ["access", "error"] {
        fs::rename(logs.join(format!("{log}.log")), logs.join(format!("{log}.1"))).unwrap();
    }
    server.signal(Signal::USR1).unwrap();
    let opened = || ["access", "error"].iter().all(|log| logs.join(format!("{log}.log")).exists());
    assert!(wait::until(wait::TIMEOUT, opened), "{}", server.error_log());
    // The worker process is told only after that.
    let arrives =
        || page(&server, "/old").0 == 200 && fs::metadata(logs.join("access.log")).unwrap().len() > 0;
    assert!(wait::until(wait::TIMEOUT, arrives));
    assert_eq!([owner("access.log"), owner("error.log")], before);
    assert!(!server.error_log().contains("failed"), "{}", server.error_log());

    // A reload opens them as well.
    fs::rename(logs.join("access.log"), logs.join("access.2")).unwrap();
    server.signal(Signal::HUP).unwrap();
    assert!(wait::until(wait::TIMEOUT, || logs.join("access.log").exists()));
    assert!(wait::until(wait::TIMEOUT, arrives));
}

#[test]
fn term_cuts_downloads_and_quit_finishes_them() {
    for (signal, is_soft) in [(Signal::TERM, false), (Signal::INT, false), (Signal::QUIT, true)] {
        let mut server = started("worker_processes 2;");
        let worker = worker(&server);
        let mut download = begin_download(&server);
        server.signal(signal).unwrap();
        if is_soft {
            let port = server.addr().port();
            assert!(wait::until(wait::TIMEOUT, || !ports::listening(port)), "another server may have it");
            assert!(!is_gone(worker));
        }
        if !is_soft {
            // Until the worker process has ended, it sends what the client reads, which may be the whole response.
            assert!(wait::until(wait::TIMEOUT, || is_gone(worker)));
        }
        assert_eq!(download.read_bytes(LARGE).is_ok(), is_soft);
        assert!(wait::until(wait::TIMEOUT, || is_gone(worker)));
        assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
        let log = server.error_log();
        let expected = format!("worker process {worker} exited with code 0");
        assert!(log.contains(&expected) && log.ends_with(": exit\n"), "{log}");
        assert!(!log.contains("[alert]"), "{log}");
        assert!(!server.prefix().join("logs/server.pid").exists());
    }
}

#[test]
fn graceful_shutdown_ends_by_timeout_or_term() {
    let mut server = started("worker_shutdown_timeout 50ms;");
    let mut download = begin_download(&server);
    server.signal(Signal::QUIT).unwrap();
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(download.read_bytes(LARGE).is_err());

    let mut server = started("");
    let mut download = begin_download(&server);
    server.signal(Signal::QUIT).unwrap();
    server.wait_error_log("gracefully shutting down").unwrap();
    server.signal(Signal::TERM).unwrap();
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(download.read_bytes(LARGE).is_err());
}

#[test]
fn worker_ignores_hup_usr1_and_winch_and_obeys_quit_and_term() {
    let mut server = started("");
    let first = worker(&server);
    let mut download = begin_download(&server);
    for (signal, line) in [
        (Signal::HUP, "signal 1 (SIGHUP) received from "),
        (Signal::USR1, "signal 10 (SIGUSR1) received from "),
        (Signal::WINCH, "signal 28 (SIGWINCH) received from "),
    ] {
        kill(first, signal);
        server.wait_error_log(line).unwrap();
        assert_eq!(page(&server, "/old").0, 200);
    }
    // The worker finishes what it has begun, and another one takes its place at once.
    kill(first, Signal::QUIT);
    let second = wait::some(wait::TIMEOUT, || children(server.pid()).into_iter().find(|pid| *pid != first));
    let second = second.expect("another one");
    assert!(!is_gone(first));
    assert_eq!(page(&server, "/old").0, 200);
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE);
    assert!(wait::until(wait::TIMEOUT, || is_gone(first)));
    // Before it serves, the new process may not handle signals yet, and the first one may have answered the requests
    // until now.
    assert_eq!(page(&server, "/old").0, 200);
    kill(second, Signal::TERM);
    server.wait_error_log(&format!("worker process {second} exited with code 0")).unwrap();
    assert_eq!(page(&server, "/old").0, 200);
    assert!(![first, second].contains(&worker(&server)));
    assert!(server.stop().unwrap().success());
}

/// A daemon; dropping it ends it.
struct Daemon {
    site: tw_testkit::TempDir,
    port: ports::Port,
}

impl Daemon {
    fn start(main: &str, server: &str) -> Self {
        let site = tw_testkit::TempDir::new("daemon").unwrap();
        let port = ports::Port::reserve().unwrap();
        let number = port.number();
        let text = format!(
            "{main} loop_guard enforce; pid server.pid; error_log error.log info; events {{}} http {{ access_log off; \
             server {{ listen 127.0.0.1:{number}; root html; location /old {{ return 200 old; }} {server} }} }}"
        );
        site.write("nginx.conf", text).unwrap();
        site.write("html/large", vec![b'x'; LARGE]).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command.arg("-p").arg(site.path()).args(["-c", "nginx.conf"]);
        let started = Self { site, port };
        assert!(command.status().unwrap().success(), "{}", started.error_log());
        started
    }

    fn pid(&self) -> Option<u32> {
        fs::read_to_string(self.site.join("server.pid")).ok()?.trim().parse().ok()
    }

    fn error_log(&self) -> String {
        fs::read_to_string(self.site.join("error.log")).unwrap_or_default()
    }

    fn addr(&self) -> std::net::SocketAddr {
        ([127, 0, 0, 1], self.port.number()).into()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            for pid in children(pid).into_iter().chain([pid]) {
                let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
            }
        }
    }
}

#[test]
fn winch_ends_the_worker_of_a_daemon_and_hup_starts_another() {
    let server = Daemon::start("", "");
    let master = server.pid().unwrap();
    let mut download = Client::connect(server.addr()).unwrap();
    download.send("GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    download.read_head().unwrap();
    kill(master, Signal::WINCH);
    let said = || server.error_log().contains("(SIGWINCH) received from ");
    assert!(wait::until(wait::TIMEOUT, said), "{}", server.error_log());
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE);
    assert!(wait::until(wait::TIMEOUT, || children(master).is_empty()), "{}", server.error_log());
    // The listening socket is still open, so a new client waits.
    let mut waiting = Client::connect(server.addr()).unwrap();
    waiting.send("GET /old HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    kill(master, Signal::HUP);
    assert_eq!(waiting.read_response().unwrap().text(), "old");

    // WINCH to a worker process of a daemon: as QUIT.
    let second = children(master)[0];
    kill(second, Signal::WINCH);
    assert!(wait::until(wait::TIMEOUT, || is_gone(second)), "{}", server.error_log());
    assert_eq!(Client::get(server.addr(), "/old").unwrap().text(), "old");
    kill(master, Signal::QUIT);
    assert!(wait::until(wait::TIMEOUT, || is_gone(master)), "{}", server.error_log());
    assert!(server.pid().is_none());
}
