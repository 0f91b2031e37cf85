//! Debug log: the level `debug`, and `debug_connection`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tw_testkit::{Client, Server};

use crate::support::{get, refusal_of, server, start_server};

/// Messages of the debug lines in a log, without their prefix.
fn steps(server: &Server, name: &str, last: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let is_logged = tw_testkit::wait::until(tw_testkit::wait::TIMEOUT, || {
        lines =
            std::fs::read_to_string(server.prefix().join(name)).unwrap().lines().map(str::to_owned).collect();
        lines.iter().any(|line| line.contains(last))
    });
    assert!(is_logged, "{last} is not in {lines:?}");
    let step = |line: &String| Some(line.split_once("[debug] ")?.1.split_once(" ").unwrap().1.to_owned());
    let steps: Vec<String> = lines.iter().filter_map(step).collect();
    assert!(steps.iter().all(|step| step.starts_with('*')), "{steps:?}");
    steps.iter().map(|step| step.split_once(' ').unwrap().1.to_owned()).collect()
}

#[test]
fn debug_level_logs_steps_of_a_request() {
    let server = start_server(
        server().file("html/to.txt", "hello"),
        "error_log logs/debug.log debug; error_log logs/info.log info; server_name one.example;
         location /from { return 404; error_page 404 /to.txt; } location /quiet { error_log logs/quiet.log; }",
    );
    let mut client = server.connect().unwrap();
    client
        .send("GET /from?a=%22 HTTP/1.1\r\nHost: one.example\r\nX: \x1b[1m\r\nConnection: close\r\n\r\n")
        .unwrap();
    assert_eq!(client.read_response().unwrap().status, 404);
    assert_eq!(
        steps(&server, "logs/debug.log", "http log: "),
        [
            "http request line: \"GET /from?a=%22 HTTP/1.1\"",
            "http header: \"Host: one.example\"",
            "http header: \"X: \\x1B[1m\"",
            "http header: \"Connection: close\"",
            "http uri: \"/from\"",
            "http args: \"a=%22\"",
            "using server \"one.example\"",
            "using configuration \"/from\"",
            "Rewrite phase: status 404",
            "internal redirect: \"/to.txt?\"",
            "using configuration \"\"",
            "Content phase: response",
            "http response: 404, Length",
        ]
        .into_iter()
        .map(str::to_owned)
        .chain(steps(&server, "logs/debug.log", "http log: ").last().cloned())
        .collect::<Vec<_>>()
    );
    // Requests of other clients are not debugged.
    get(&server, "/quiet");
    server.log("logs/quiet.log", 1).unwrap();
    for name in ["logs/info.log", "logs/quiet.log", "logs/error.log"] {
        assert!(!std::fs::read_to_string(server.prefix().join(name)).unwrap().contains("[debug]"), "{name}");
    }
}

#[test]
fn debug_connection_logs_steps_of_its_clients() {
    let server = |peers: &str| {
        let conf = format!(
            "events {{ {peers} }} http {{ error_log logs/one.log alert; error_log logs/two.log alert;
             server {{ listen 127.0.0.1:{{port}}; listen unix:{{prefix}}/socket; return 200 x; }} }}"
        );
        server().start(&conf).unwrap()
    };
    let read = |server: &Server, name: &str| std::fs::read_to_string(server.prefix().join(name)).unwrap();
    for peers in [
        "debug_connection 127.0.0.1;",
        "debug_connection 10.0.0.0/8; debug_connection 127.0.0.1/8;",
        "debug_connection localhost;",
    ] {
        let server = server(peers);
        assert_eq!(Client::get(server.addr(), "/x").unwrap().status, 200);
        for name in ["logs/one.log", "logs/two.log"] {
            assert!(steps(&server, name, "http log: 200").contains(&"http uri: \"/x\"".to_owned()));
        }
        assert_eq!(read(&server, "logs/one.log"), read(&server, "logs/two.log"));
        assert!(server.wait_error_log("accept: 127.0.0.1:").unwrap().contains("[debug]"));
    }

    let server = server("debug_connection unix:; debug_connection 192.0.2.0/24; debug_connection ::1;");
    assert_eq!(Client::get(server.addr(), "/x").unwrap().status, 200);
    let mut client = UnixStream::connect(server.prefix().join("socket")).unwrap();
    client.write_all(b"GET /y HTTP/1.0\r\n\r\n").unwrap();
    client.read_to_end(&mut Vec::new()).unwrap();
    let steps = steps(&server, "logs/one.log", "http log: 200");
    assert!(
        steps.contains(&"http uri: \"/y\"".to_owned()) && !steps.contains(&"http uri: \"/x\"".to_owned())
    );
}

#[test]
fn debug_connection_refuses_invalid_addresses() {
    let refused =
        refusal_of("events { debug_connection \"\"; } http { server { listen 127.0.0.1:{port}; } }");
    assert!(refused.contains("host not found in debug_connection \"\" in "), "{refused}");
    let server = server()
        .start("events { debug_connection 127.0.0.1/8; } http { server { listen 127.0.0.1:{port}; } }")
        .unwrap();
    assert!(
        server.stderr().contains("[warn] low address bits of 127.0.0.1/8 are meaningless in "),
        "{}",
        server.stderr()
    );
}
