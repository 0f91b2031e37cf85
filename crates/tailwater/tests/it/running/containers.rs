//! Containers: process 1, standard streams as logs, few privileges, and missing parts of the system.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Mutex};

use tw_testkit::{Lacks, Server, Signal, TempDir, leave_out, wait};

use crate::support::process::{all_children, is_gone, kill};
use crate::support::{page, server};

const HTTP: &str = "http { server { listen 127.0.0.1:{port}; return 200 served; } }";
/// Command that starts a process in a pid namespace, as a container does.
const CONTAINER: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

/// True if this command runs here; leaves the test out if not.
fn runs_here(words: &[&str]) -> bool {
    let is_possible =
        Command::new(words[0]).args(&words[1..]).arg("true").output().is_ok_and(|run| run.status.success());
    if !is_possible {
        leave_out(Lacks::Machine, format_args!("this does not run here: {}", words.join(" ")));
    }
    is_possible
}

/// Pid of the server that `unshare` has started.
fn container_pid(server: &Server) -> u32 {
    wait::some(wait::TIMEOUT, || all_children(server.pid()).first().copied()).unwrap()
}

#[test]
fn process_1_reaps_orphans_and_stops() {
    if !runs_here(&CONTAINER) || !runs_here(&["nsenter", "--version"]) {
        return;
    }
    let mut server = server().by(&CONTAINER).daemon_on().with_master().start(HTTP).unwrap();
    let first = container_pid(&server);
    server.wait_error_log("process 1 cannot go to the background").unwrap();
    assert_eq!(page(&server, "/").1, "served");
    // An orphan of another process is adopted by the init process, and has to be reaped.
    let orphan = "sleep 0.01 & echo $!";
    let run = Command::new("nsenter").args(["-t", &first.to_string(), "-p", "sh", "-c", orphan]).output();
    assert!(run.unwrap().status.success());
    let only_worker = || matches!(all_children(first)[..], [pid] if !is_gone(pid));
    assert!(wait::until(wait::TIMEOUT, only_worker), "{:?}", all_children(first));
    kill(first, Signal::HUP);
    server.wait_error_log("reconfiguring").unwrap();
    kill(first, Signal::WINCH);
    server.wait_error_log("(SIGWINCH) received").unwrap();
    assert_eq!(page(&server, "/").1, "served");
    kill(first, Signal::TERM);
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
}

#[test]
fn process_1_obeys_signals_sent_during_start() {
    if !runs_here(&CONTAINER) {
        return;
    }
    let dir = TempDir::new("pipes").unwrap();
    let pipe = dir.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let socket = dir.join("socket");
    let conf =
        format!("http {{ server {{ listen unix:{}; include {}; }} }}", socket.display(), pipe.display());
    let mut server = server().by(&CONTAINER).with_master().start(&conf).unwrap();
    // The server reads its configuration once the other end of the pipe is open.
    let mut pipe = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    kill(container_pid(&server), Signal::TERM);
    pipe.write_all(b"return 200;").unwrap();
    drop(pipe);
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(server.error_log().contains("signal 15 (SIGTERM) received"), "{}", server.error_log());
}

#[test]
fn missing_proc_is_reported() {
    let without = ["unshare", "--mount", "sh", "-c", "umount -l /proc && exec \"$0\" \"$@\""];
    if !runs_here(&without) {
        return;
    }
    let run = server().by(&without).with_master().run(HTTP).unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(
        said.contains("failed while spawning worker process") && said.contains("/proc is not mounted"),
        "{said}"
    );
    let mut alone = server().by(&without).in_one_process().start(HTTP).unwrap();
    assert_eq!(page(&alone, "/").1, "served");
    assert!(alone.stop().unwrap().success());
}

#[test]
fn unknown_user_id_can_run_the_server() {
    let script = "chmod -R a+rwX \"$2\" && exec setpriv --reuid 12345 --regid 0 --clear-groups \"$0\" \"$@\"";
    if !runs_here(&["setpriv", "--reuid", "12345", "--regid", "0", "--clear-groups"]) {
        return;
    }
    for builder in [server(), server().with_master()] {
        let mut server = builder.by(&["sh", "-c", script]).start(HTTP).unwrap();
        assert_eq!(page(&server, "/").1, "served");
        assert!(server.stop().unwrap().success());
    }
}

#[test]
fn root_without_capabilities_serves_as_root_only() {
    let bare = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"];
    if !runs_here(&bare) {
        return;
    }
    let mut stays = server().by(&bare).with_master().start(&format!("user root; {HTTP}")).unwrap();
    assert_eq!(page(&stays, "/").1, "served");
    assert!(stays.stop().unwrap().success());
    let owner = ["setpriv", "--inh-caps=-all", "--bounding-set=-all,+chown"];
    for (by, expected) in
        [(bare, "takes the capability CHOWN"), (owner, "takes the capabilities SETUID and SETGID")]
    {
        let other = server().by(&by).with_master().run(&format!("user daemon daemon; {HTTP}")).unwrap();
        let said = String::from_utf8_lossy(&other.stderr);
        assert!(said.contains(expected), "{said}");
    }
}

/// Bytes read from one end of a stream.
struct Heard(Arc<Mutex<Vec<u8>>>);

impl Heard {
    fn from(mut end: impl Read + Send + 'static) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let writer = heard.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(size @ 1..) = end.read(&mut bytes) {
                writer.lock().unwrap().extend(&bytes[..size]);
            }
        });
        Self(heard)
    }

    fn wait_count(&self, text: &str, count: usize) {
        let heard = || String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        assert!(wait::until(wait::TIMEOUT, || heard().matches(text).count() >= count), "{text}: {}", heard());
    }
}

/// Two streams that another user cannot open, one of them not openable at all: the bytes read from both, and their
/// write ends.
fn streams(kind: &str) -> ([Heard; 2], [OwnedFd; 2]) {
    let stream = || -> (Heard, OwnedFd) {
        match kind {
            "pipe" => {
                let (reader, writer) = io::pipe().unwrap();
                (Heard::from(reader), writer.into())
            }
            _ => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                (Heard::from(ours), theirs.into())
            }
        }
    };
    let (a, b) = stream();
    let (c, d) = stream();
    ([a, c], [b, d])
}

#[test]
fn logs_go_to_the_standard_streams() {
    let links = TempDir::new("links").unwrap();
    std::os::unix::fs::symlink("/dev/stdout", links.join("access.log")).unwrap();
    std::os::unix::fs::symlink("/dev/stderr", links.join("error.log")).unwrap();
    let links = links.path().display();
    for (kind, with_master) in [("pipe", true), ("socket", true), ("pipe", false), ("socket", false)] {
        let ([out, err], [stdout, stderr]) = streams(kind);
        let builder = server().streams(stdout, stderr);
        let builder = if with_master { builder.with_master() } else { builder };
        let http = format!(
            "http {{ log_format line 'line $uri'; error_log {links}/error.log info; error_log stderr info;
             server {{ listen 127.0.0.1:{{port}}; root html;
               location /link {{ access_log {links}/access.log line; }}
               location /name {{ access_log /dev/stdout line; }} }} }}"
        );
        let mut server = builder.start(&http).unwrap();
        for round in 1..=2 {
            assert_eq!((page(&server, "/link").0, page(&server, "/name").0), (404, 404));
            out.wait_count("line /link", round);
            out.wait_count("line /name", round);
            err.wait_count("html/link\" failed (2", 2 * round);
            server.signal(Signal::USR1).unwrap();
            let reopened = || server.error_log().matches("reopening logs").count() >= round;
            assert!(wait::until(wait::TIMEOUT, reopened), "{}", server.error_log());
        }
        let alerts = server.error_log().lines().filter(|line| line.contains("[alert]")).count();
        assert_eq!(alerts, 0, "{kind}: {}", server.error_log());
        assert!(server.stop().unwrap().success());
    }
}
