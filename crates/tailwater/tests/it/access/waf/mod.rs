//! `modsecurity`: the web application firewall, with rules of these tests.

mod bodies;
mod configuration;
mod head;
mod logs;
mod responses;
mod tools;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use tw_testkit::server::Builder;
use tw_testkit::{Client, Response, Server};

use crate::support::{server, start};

/// A server with `rules` around `locations`.
fn start_firewall(rules: &str, locations: &str) -> Server {
    start_at(server(), rules, locations)
}

/// Server with the firewall and the directory `audit/records`, in which the user of its worker may write.
fn start_firewall_with_directory(rules: &str, locations: &str) -> Server {
    let server = start_at(server().file("audit/records/old", ""), rules, locations);
    let directory = server.prefix().join("audit/records");
    fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
    server
}

fn start_at(server: Builder, rules: &str, locations: &str) -> Server {
    start(
        server.file("html/index.html", "page").file("html/other.html", "other"),
        &format!(
            "server {{
               listen 127.0.0.1:{{port}}; root html; error_log logs/error.log info; modsecurity on;
               modsecurity_rules '
                 SecRuleEngine On
                 SecRequestBodyAccess On
                 {rules}
               ';
               {locations}
             }}"
        ),
    )
}

/// Sends a body.
fn post(server: &Server, target: &str, media_type: &str, body: &str) -> Response {
    let mut client: Client = server.connect().unwrap();
    let length = body.len();
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    client.send(head).unwrap();
    client.send(body).unwrap();
    client.read_response().unwrap()
}
