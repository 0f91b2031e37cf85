//! Upstream servers that speak another protocol than the one that is configured: the log and `$upstream_faults` say which.

use rustls::ALL_VERSIONS;
use tw_testkit::origin::{origin, secured};
use tw_testkit::tls::Authority;

use crate::support::{get, server, start};

#[test]
fn protocol_that_an_upstream_server_speaks_instead_is_named() {
    // Each origin waits for the end of the connection, so that no reset overtakes its answer.
    let plain = origin(|mut conn| {
        conn.send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nno");
        conn.head();
    });
    let frames = origin(|mut conn| {
        conn.send([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        conn.head();
    });
    let tls =
        secured(Authority::server(ALL_VERSIONS, &Authority::new().certify(&["localhost"])), |mut conn| {
            conn.head();
        });
    let cases = [
        (format!("proxy_pass https://{plain}"), "does the server speak TLS on this port?"),
        (format!("proxy_pass http://{tls}"), "does this port need https://?"),
        (format!("proxy_pass http://{frames}"), "does the server speak only HTTP/2?"),
        (format!("fastcgi_pass {plain}"), "does the server speak only HTTP?"),
    ];
    let locations: String =
        cases.iter().enumerate().map(|(nth, (pass, _))| format!("location /{nth} {{ {pass}; }}")).collect();
    let server = start(
        server(),
        &format!(
            "log_format faults '$upstream_faults'; access_log logs/access.log faults;
             server {{ listen 127.0.0.1:{{port}}; {locations} }}"
        ),
    );
    for (nth, (pass, question)) in cases.iter().enumerate() {
        assert_eq!(get(&server, &format!("/{nth}")).status, 502, "{pass}");
        let faults = server.access_log(nth + 1).unwrap()[nth].clone();
        assert!(faults.ends_with(question), "{pass}: {faults}");
        server.wait_error_log(question).unwrap();
    }
}
