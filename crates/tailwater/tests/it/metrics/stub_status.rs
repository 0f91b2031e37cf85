//! `stub_status`

use tw_testkit::wait;

use crate::support::{get, page, refusal, request, server, start_server};

#[test]
fn connections_are_counted_by_state() {
    let server = start_server(
        server().file("html/large", vec![b'x'; 32 << 20]),
        "location /status { stub_status; } location /except { stub_status on; limit_except GET { allow all; } }
         location /vars { return 200 '$connections_active $connections_reading $connections_writing $connections_waiting'; }",
    );
    let vars = |expected: &str| {
        let is_found = wait::until(wait::TIMEOUT, || page(&server, "/vars").1 == expected);
        assert!(is_found, "{expected}: {}", page(&server, "/vars").1);
    };
    vars("1 0 1 0");
    let response = get(&server, "/status");
    assert_eq!(response.status, 200);
    assert_eq!(response.field("Content-Type"), Some("text/plain"));
    // The connection before may be about to end.
    let is_alone = |text: &String| text.starts_with("Active connections: 1 \n");
    let text = wait::some(wait::TIMEOUT, || Some(get(&server, "/status").text()).filter(is_alone));
    let text = text.unwrap_or_else(|| panic!("{}", get(&server, "/status").text()));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "Active connections: 1 ");
    assert_eq!(lines[1], "server accepts handled requests");
    let counts: Vec<u64> = lines[2].split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert!(counts.len() == 3 && counts[0] == counts[1] && counts[2] >= 2, "{text}");
    assert_eq!(lines[3], "Reading: 0 Writing: 1 Waiting: 0 ");

    let new = server.connect().unwrap();
    vars("2 0 1 1");
    let mut idle = server.connect().unwrap();
    idle.send("GET /vars HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    idle.read_response().unwrap();
    vars("3 0 1 2");
    let mut slow = server.connect().unwrap();
    slow.send("GET / HT").unwrap();
    vars("4 1 1 2");
    let mut busy = server.connect().unwrap();
    busy.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    busy.read_head().unwrap();
    vars("5 1 2 2");
    drop((new, idle, slow, busy));
    vars("1 0 1 0");

    assert_eq!(request(&server, "HEAD /status", &[]).status, 200);
    assert_eq!(request(&server, "POST /status", &[]).status, 405);
    assert_eq!(get(&server, "/except").status, 200);
    assert_eq!(request(&server, "DELETE /except", &[]).status, 405);
    assert!(refusal("stub_status a b;").contains("invalid number of arguments in \"stub_status\" directive"));
}
