//! Script processes: started, replaced, reloaded and ended with the server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tw_testkit::{Server, Signal, TempDir, wait};

use super::scripted;
use crate::support::process::{children, is_gone, kill};
use crate::support::{get, page};

const SCRIPT: &str = "
    function content(r) { r.return(200, `one ${process.pid}`); }
    async function slow(r) { r.error('slow has begun'); await new Promise(done => setTimeout(done, 500)); r.return(200, 'slow one'); }
    export default {content, slow};";

fn conf(processes: &str) -> String {
    format!(
        "worker_processes 2; http {{ js_import main.js; {processes} server {{ listen 127.0.0.1:{{port}}; \
           error_log logs/error.log info; \
           location / {{ js_content main.content; }} location /slow {{ js_content main.slow; }} \
           location /plain {{ return 200 plain; }} }} }}"
    )
}

/// Script processes of a server: children of the master that run that program.
fn script_processes(server: &Server) -> Vec<u32> {
    processes_like(server, "tailwater-scripts")
}

/// Children of the master with this word in their commands.
fn processes_like(server: &Server, word: &str) -> Vec<u32> {
    let is_like = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(word)
    };
    children(server.pid()).into_iter().filter(is_like).collect()
}

fn wait_for_processes(server: &Server, count: usize) -> Vec<u32> {
    wait_for_processes_like(server, "tailwater-scripts", count)
}

fn wait_for_processes_like(server: &Server, word: &str, count: usize) -> Vec<u32> {
    let all = || processes_like(server, word);
    wait::some(wait::TIMEOUT, || Some(all()).filter(|all| all.len() == count))
        .unwrap_or_else(|| panic!("{count} processes \"{word}\", not {:?}", all()))
}

fn worker(server: &Server) -> u32 {
    let scripts = script_processes(server);
    *children(server.pid()).iter().find(|pid| !scripts.contains(pid)).unwrap()
}

#[test]
fn each_loop_has_a_process_unless_the_configuration_says_otherwise() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let mut server = builder.start(&conf("")).unwrap();
    let first = wait_for_processes(&server, 2);
    assert_eq!(get(&server, "/").status, 200);
    server.write_conf(&conf("js_processes 1;")).unwrap();
    server.signal(Signal::HUP).unwrap();
    // One of the first two may be alone for a moment, before the new one runs its program.
    let is_new = |all: &Vec<u32>| matches!(all.as_slice(), [pid] if !first.contains(pid));
    let second = wait::some(wait::TIMEOUT, || Some(script_processes(&server)).filter(is_new));
    let second = second.unwrap_or_else(|| panic!("{first:?}, then {:?}", script_processes(&server)));
    for _ in 0..10 {
        assert_eq!(get(&server, "/").status, 200);
    }
    server.signal(Signal::QUIT).unwrap();
    server.wait_exit(wait::TIMEOUT).unwrap();
    assert!(wait::until(wait::TIMEOUT, || second.iter().all(|pid| is_gone(*pid))));
    assert!(!server.error_log().contains("starting another one"), "{}", server.error_log());
}

#[test]
fn processes_end_when_no_configuration_has_scripts() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let mut server = builder.start(&conf("")).unwrap();
    wait_for_processes(&server, 2);
    assert_eq!(get(&server, "/").status, 200);
    // A request of the configuration before keeps them until it ends.
    let mut client = server.connect().unwrap();
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    server.wait_error_log("slow has begun").unwrap();
    let plain = "worker_processes 2; http { server { listen 127.0.0.1:{port}; error_log logs/error.log info; return 200 plain; } }";
    server.write_conf(plain).unwrap();
    server.signal(Signal::HUP).unwrap();
    server.wait_error_log("the configuration is taken over").unwrap();
    assert_eq!(client.read_response().unwrap().text(), "slow one");
    wait_for_processes(&server, 0);
    assert_eq!(page(&server, "/").1, "plain");
    server.write_conf(&conf("")).unwrap();
    server.signal(Signal::HUP).unwrap();
    wait_for_processes(&server, 2);
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/").1.starts_with("one ")));
    assert!(!server.error_log().contains("starting another one"), "{}", server.error_log());
}

#[test]
fn process_that_is_killed_is_replaced_and_requests_go_on() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let server = builder.start(&conf("js_processes 1;")).unwrap();
    for round in 0..3 {
        let [pid] = wait_for_processes(&server, 1)[..] else { unreachable!() };
        assert_eq!(get(&server, "/").status, 200, "{round}");
        kill(pid, Signal::KILL);
        assert!(wait::until(wait::TIMEOUT, || is_gone(pid)));
        assert_eq!(get(&server, "/").status, 200, "the next process answers");
    }
    server.wait_error_log("exited on signal 9, starting another one").unwrap();
}

/// Program that checks configurations as the real one does, and serves by this command of a shell.
fn write_program(path: &Path, serve: &str) {
    let real = Path::new(env!("CARGO_BIN_EXE_tailwater")).with_file_name("tailwater-scripts");
    let real = real.display();
    let program = format!("#!/bin/bash\nif [ \"$1\" = serve ]; then {serve}; fi\nexec {real} \"$@\"\n");
    // A program that runs cannot be written to.
    let next = path.with_extension("next");
    fs::write(&next, program).unwrap();
    fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&next, path).unwrap();
}

#[test]
fn process_that_breaks_the_protocol_is_killed_and_replaced() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let directory = TempDir::new("script-program").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("program");
    // The length of a message, which is none, and the process does not end by itself.
    write_program(&program, "printf '\\377\\377\\377\\377' >&\"$2\"; exec sleep 1000");
    let server = builder.start(&conf(&format!("js_processes 1; js_program {};", program.display()))).unwrap();
    let [pid] = wait_for_processes_like(&server, "sleep", 1)[..] else { unreachable!() };
    // The request waits for a process that answers.
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    server.wait_error_log("does not answer, killing it").unwrap();
    write_program(&program, ":");
    assert!(wait::until(wait::TIMEOUT, || is_gone(pid)));
    let status = client.read_response().unwrap().status;
    assert!(matches!(status, 200 | 500), "{status}");
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/").1.starts_with("one ")));
}

#[test]
fn request_that_runs_in_a_process_that_dies_gets_500() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let server = builder.start(&conf("js_processes 1;")).unwrap();
    let [pid] = wait_for_processes(&server, 1)[..] else { unreachable!() };
    assert_eq!(get(&server, "/").status, 200);
    let mut client = server.connect().unwrap();
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    server.wait_error_log("slow has begun").unwrap();
    kill(pid, Signal::KILL);
    assert_eq!(client.read_response().unwrap().status, 500);
    assert_eq!(get(&server, "/plain").text(), "plain");
}

#[test]
fn process_that_is_stopped_is_killed() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let server = builder.start(&conf("js_processes 1;")).unwrap();
    let [pid] = wait_for_processes(&server, 1)[..] else { unreachable!() };
    assert_eq!(get(&server, "/").status, 200);
    kill(pid, Signal::STOP);
    let status = get(&server, "/").status;
    assert!(matches!(status, 200 | 500), "{status}");
    server.wait_error_log("does not answer, killing it").unwrap();
    assert!(is_gone(pid));
    assert_eq!(get(&server, "/").status, 200);
}

#[test]
fn reload_uses_new_scripts_and_lets_old_requests_end() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let mut server = builder.start(&conf("")).unwrap();
    let before = wait_for_processes(&server, 2);
    let mut client = server.connect().unwrap();
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(page(&server, "/").1.starts_with("one "));
    fs::write(server.prefix().join("conf/main.js"), SCRIPT.replace("one", "two")).unwrap();
    server.write_conf(&format!("{} # reloaded", conf(""))).unwrap();
    server.signal(Signal::HUP).unwrap();
    server.wait_error_log("the configuration is taken over").unwrap();
    assert!(page(&server, "/").1.starts_with("two "));
    assert_eq!(client.read_response().unwrap().text(), "slow one");
    assert_eq!(script_processes(&server), before, "the same processes run both");
    // A script with a mistake changes nothing.
    fs::write(server.prefix().join("conf/main.js"), "function (").unwrap();
    server.signal(Signal::HUP).unwrap();
    server.wait_error_log("the configuration stays as it was").unwrap();
    assert!(page(&server, "/").1.starts_with("two "));
}

#[test]
fn worker_process_that_is_replaced_has_processes_of_its_own() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let server = builder.start(&conf("")).unwrap();
    let before = wait_for_processes(&server, 2);
    kill(worker(&server), Signal::KILL);
    assert!(
        wait::until(wait::TIMEOUT, || before.iter().all(|pid| is_gone(*pid))),
        "they end with their worker"
    );
    wait_for_processes(&server, 2);
    assert!(wait::until(wait::TIMEOUT, || {
        crate::support::try_request(&server, "GET /", &[]).is_ok_and(|response| response.status == 200)
    }));
}
