//! `listen … transparent`: connections to addresses of others.

use std::process::Command;
use std::thread;

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};
use tw_testkit::{Client, Lacks, leave_out};

use crate::support::reload::reload;
use crate::support::{refusal, server};

/// Address of documents (RFC 5737), which no machine has.
const NOBODY: &str = "192.0.2.7";

/// Returns false, and says so, if this process may not open such sockets.
fn can_be_transparent() -> bool {
    let can = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    if !can {
        leave_out(Lacks::Run, "transparent sockets need CAP_NET_ADMIN");
    }
    can
}

/// Runs `test` on a thread with a network of its own, in which all of 192.0.2.0/24 and 2001:db8::/32 is delivered here, as TPROXY
/// delivers connections to any address. Children of the thread have that network, too.
fn in_network(test: impl FnOnce() + Send + 'static) {
    if !can_be_transparent() {
        return;
    }
    let thread = thread::spawn(move || {
        #[expect(deprecated, reason = "a network of its own affects nothing that another thread relies on")]
        let made = rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET);
        let ip = |words: &str| Command::new("ip").args(words.split(' ')).status().is_ok_and(|s| s.success());
        let has_network = made.is_ok()
            && ip("link set lo up")
            && ip("route add local 192.0.2.0/24 dev lo")
            && ip("-6 route add local 2001:db8::/32 dev lo");
        if !has_network {
            return leave_out(Lacks::Run, "a network of its own needs CAP_SYS_ADMIN and the program ip");
        }
        test();
    });
    thread.join().unwrap();
}

#[test]
fn client_reaches_addresses_of_others() {
    in_network(|| {
        let conf = |parameter: &str| {
            format!(
                "worker_processes 2; http {{
                     server {{ listen {{port}} {parameter}; listen [::]:{{port}} {parameter};
                         return 200 \"$server_addr:$server_port $remote_addr\"; }} }}"
            )
        };
        let mut server = server().with_master().start(&conf("transparent")).unwrap();
        let port = server.addr().port();
        let get = |ip: &str| {
            let mut client = Client::connect(format!("{ip}:{port}").parse().unwrap()).unwrap();
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            client.read_response().unwrap().text()
        };
        for ip in [NOBODY, "192.0.2.9", "127.0.0.1"] {
            let text = get(ip);
            assert!(text.starts_with(&format!("{ip}:{port} ")), "{text}");
        }
        assert!(get("[2001:db8::7]").starts_with(&format!("2001:db8::7:{port} ")));
        // The parameter comes and goes with a reload.
        for parameter in ["", "transparent"] {
            reload(&mut server, &conf(parameter));
            assert!(get(NOBODY).starts_with(NOBODY), "{parameter}");
        }
        assert!(!server.error_log().contains("setsockopt"), "{}", server.error_log());
    });
}

#[test]
fn socket_has_an_address_that_no_interface_has() {
    let conf = |parameter: &str| {
        format!(
            "http {{ server {{ listen 127.0.0.1:{{port}}; listen {NOBODY}:{{port}} {parameter}; listen [2001:db8::7]:{{port}} {parameter}; }} }}"
        )
    };
    if !can_be_transparent() {
        return;
    }
    drop(server().start(&conf("transparent")).unwrap());
    let error = server().start(&conf("")).unwrap_err().to_string();
    assert!(error.contains("no interface of this machine has that address"), "{error}");
}

#[test]
fn missing_capability_is_named() {
    let without = ["setpriv", "--bounding-set=-net_admin,-net_raw"];
    let mut builder = server();
    if geteuid().is_root() {
        if !Command::new("setpriv").arg("--version").output().is_ok_and(|output| output.status.success()) {
            return leave_out(Lacks::Run, "root gives capabilities away by the program setpriv");
        }
        builder = builder.by(&without);
    }
    let conf = "http { server { listen 127.0.0.1:{port} transparent; return 200; } }";
    let error = builder.start(conf).unwrap_err().to_string();
    assert!(error.contains("setsockopt(IP_TRANSPARENT) 127.0.0.1:"), "{error}");
    assert!(
        error.contains(
            "failed (1: Operation not permitted); \"transparent\" needs root or the capability CAP_NET_ADMIN"
        ),
        "{error}"
    );
}

#[test]
fn parameter_is_for_connections_of_ip() {
    for (listen, expected) in [
        ("listen unix:{prefix}/socket transparent;", "transparent is not supported for unix domain sockets"),
        (
            "listen 127.0.0.1:{port1} quic transparent;",
            "\"transparent\" parameter is incompatible with \"quic\"",
        ),
        ("listen 127.0.0.1:{port1} transparent=on;", "invalid parameter \"transparent=on\""),
    ] {
        let error = refusal(listen);
        assert!(error.contains(expected), "{listen}: {error}");
    }
}
