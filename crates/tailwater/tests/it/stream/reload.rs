//! Reloads and stops with sessions that go on.

use tw_testkit::{Signal, wait};

use super::{echo, start, text, upstream};
use crate::support::reload::reload;

#[test]
fn session_goes_on_over_a_reload() {
    let addr = upstream(echo);
    let conf = |text: &str| {
        format!(
            "stream {{ log_format l '{text} $status'; access_log logs/access.log l;
             server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}
             server {{ listen 127.0.0.1:{{port1}}; return {text}; }} }}"
        )
    };
    let mut server = crate::support::server().start(&conf("old")).unwrap();
    let mut session = server.connect().unwrap();
    session.send("before").unwrap();
    assert_eq!(session.read_bytes(6).unwrap(), b"before");
    reload(&mut server, &conf("new"));
    assert!(wait::until(wait::TIMEOUT, || text(server.addr_of(1)) == "new"));
    session.send("after").unwrap();
    assert_eq!(session.read_bytes(5).unwrap(), b"after");
    drop(session);
    // The session is logged by the configuration that it began with.
    let is_logged = || {
        let log = std::fs::read_to_string(server.prefix().join("logs/access.log")).unwrap_or_default();
        log.lines().last() == Some("old 200")
    };
    assert!(wait::until(wait::TIMEOUT, is_logged));
}

#[test]
fn reload_moves_an_address_from_one_protocol_to_the_other() {
    // A process that serves no http has no right to make its directories later.
    let stream = |text: &str| {
        format!(
            "http {{ server {{ listen 127.0.0.1:{{port1}}; }} }}
             stream {{ server {{ listen 127.0.0.1:{{port}}; return {text}; }} }}"
        )
    };
    let mut server = crate::support::server().start(&stream("stream")).unwrap();
    assert_eq!(text(server.addr()), "stream");
    reload(
        &mut server,
        "http { server { listen 127.0.0.1:{port}; listen 127.0.0.1:{port1}; return 200 http; } }",
    );
    let page = || tw_testkit::Client::get(server.addr(), "/").is_ok_and(|page| page.text() == "http");
    assert!(wait::until(wait::TIMEOUT, page), "{}", server.error_log());
    reload(&mut server, &stream("again"));
    // A server of http that is asked for nothing waits; a session that gets more than it reads is reset.
    let session = || {
        let mut client = server.connect().unwrap();
        client.send("GET / HTTP/1.0\r\n\r\n").is_ok()
            && client.read_bytes(5).is_ok_and(|came| came == b"again")
    };
    assert!(wait::until(wait::TIMEOUT, session), "{}", server.error_log());
}

#[test]
fn quit_waits_for_sessions() {
    let addr = upstream(echo);
    let mut server = start(&format!("server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}"));
    let mut session = server.connect().unwrap();
    session.send("x").unwrap();
    assert_eq!(session.read_bytes(1).unwrap(), b"x");
    server.signal(Signal::QUIT).unwrap();
    server.wait_error_log("gracefully shutting down").unwrap();
    session.send("y").unwrap();
    assert_eq!(session.read_bytes(1).unwrap(), b"y");
    drop(session);
    assert!(server.wait_exit(wait::TIMEOUT).unwrap().success());
}
