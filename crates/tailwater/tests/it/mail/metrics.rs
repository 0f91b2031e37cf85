//! `status_zone`: metrics, status page and API of servers of mail and of groups of auth servers.

use std::net::SocketAddr;

use tw_testkit::{Server, wait};

use super::{AuthServer, LineClient, MailServer};
use crate::support::metrics::{metric, metrics_text, try_metric};
use crate::support::{get, server};

const GREETING: &str = "+OK POP3 ready";

/// Starts a server with metrics on its first address, and a `mail` block with this content beside it.
fn start(mail: &str) -> Server {
    let http = "http { access_log off; server { listen 127.0.0.1:{port}; location = /metrics { metrics; }
        location = /status { status_page; } location /api/ { api write=on; } } }";
    server().start(&format!("{http} mail {{ {mail} }}")).unwrap()
}

fn connect(server: &Server) -> LineClient {
    let mut client = LineClient(tw_testkit::Client::connect(server.addr_of(1)).unwrap());
    client.gets(GREETING);
    client
}

fn zone(name: &str) -> String {
    match name.strip_suffix('}') {
        Some(labelled) => format!("mail_zone_{}}}", labelled.replacen('{', "{zone=\"pop\",", 1)),
        None => format!("mail_zone_{name}{{zone=\"pop\"}}"),
    }
}

/// Waits until a sample has this value: a session may be over for its client first.
fn becomes(server: &Server, series: &str, expected: u64) {
    let is_found = wait::until(wait::TIMEOUT, || try_metric(server, series).unwrap_or(0) == expected);
    assert!(is_found, "{series} is not {expected}: {}", metrics_text(server));
}

fn pop3(auth: SocketAddr) -> String {
    format!(
        "upstream auth {{ zone auth 64k; server {auth}; keepalive 2; }} auth_http http://auth/;
         server {{ listen 127.0.0.1:{{port1}}; protocol pop3; status_zone pop; }}"
    )
}

#[test]
fn counters_grow_while_a_session_runs() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&pop3(auth.addr));
    let mut client = connect(&server);
    becomes(&server, &zone("sent_bytes_total"), "+OK POP3 ready\r\n".len() as u64);
    client.asks("USER user", "+OK");
    client.asks("PASS secret", "+OK PASS");
    let received = "USER user\r\nPASS secret\r\n".len() as u64;
    becomes(&server, &zone("received_bytes_total"), received);
    client.asks("STAT", "+OK STAT");
    becomes(&server, &zone("received_bytes_total"), received + 6);
    assert_eq!(metric(&server, &zone("active")), 1);
    assert_eq!(metric(&server, &zone("connections_total")), 1);
    assert_eq!(metric(&server, &zone("logins_total{result=\"accepted\"}")), 1);
    drop(client);
    becomes(&server, &zone("active"), 0);
    becomes(&server, &zone("sessions_total{class=\"2xx\"}"), 1);
    assert_eq!(metric(&server, &zone("session_seconds_count")), 1);
}

#[test]
fn failed_sessions_are_counted_by_cause() {
    let auth = AuthServer::start(|fields| match &*fields["auth-user"] {
        "nobody" => vec!["Auth-Status: no".to_owned()],
        "lost" => super::accepted(([127, 0, 0, 1], 1).into()),
        _ => vec!["Bad_Name: x".to_owned()],
    });
    let server = start(&pop3(auth.addr));
    for (user, answer, cause) in [
        ("nobody", "-ERR no", "refused"),
        ("lost", "-ERR internal server error", "mail_server"),
        ("other", "-ERR internal server error", "auth_server"),
    ] {
        let mut client = connect(&server);
        client.asks(&format!("USER {user}"), "+OK");
        client.asks("PASS x", answer);
        client.is_closed();
        becomes(&server, &zone(&format!("failures_total{{cause=\"{cause}\"}}")), 1);
    }
    let mut client = connect(&server);
    (0..5).for_each(|_| client.asks("FOO", "-ERR invalid command"));
    client.is_closed();
    becomes(&server, &zone("failures_total{cause=\"invalid\"}"), 1);
    drop(connect(&server));
    becomes(&server, &zone("discarded_total"), 1);
    connect(&server).asks("QUIT", "+OK");
    becomes(&server, &zone("failures_total{cause=\"left\"}"), 1);
    assert_eq!(metric(&server, &zone("logins_total{result=\"refused\"}")), 1);
    assert_eq!(metric(&server, &zone("logins_total{result=\"failed\"}")), 2);
    assert_eq!(metric(&server, &zone("sessions_total{class=\"4xx\"}")), 3);
    assert_eq!(metric(&server, &zone("sessions_total{class=\"5xx\"}")), 2);
}

#[test]
fn status_page_and_api_show_zones_and_auth_servers() {
    let backend = MailServer::pop3();
    let auth = AuthServer::accepting(backend.addr);
    let server = start(&pop3(auth.addr));
    let mut client = connect(&server);
    client.asks("USER user", "+OK");
    client.asks("PASS secret", "+OK PASS");
    drop(client);
    becomes(&server, &zone("sessions_total{class=\"2xx\"}"), 1);
    let page = get(&server, "/status?format=json");
    assert!(page.text().contains("\"mail_zone_logins_total\""), "{}", page.text());
    assert!(get(&server, "/status").text().contains("id=\"mail-zones\""));
    let json = |path: &str| -> serde_json::Value {
        serde_json::from_str(&get(&server, &format!("/api/{path}")).text()).unwrap()
    };
    let zones = json("mail/server_zones");
    assert_eq!(zones["pop"]["logins"]["accepted"], 1, "{zones}");
    assert_eq!((&zones["pop"]["connections"], &zones["pop"]["failures"]["left"]), (&1.into(), &0.into()));
    assert_eq!(json("mail/server_zones/pop"), zones["pop"]);
    let peer = &json("mail/upstreams/auth")["peers"][0];
    assert_eq!((&peer["requests"], &peer["responses"]["2xx"]), (&1.into(), &1.into()), "{peer}");
    assert!(peer["sent"].as_u64() > Some(100) && peer["received"].as_u64() > Some(60), "{peer}");
}
