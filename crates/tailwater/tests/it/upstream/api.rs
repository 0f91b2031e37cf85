//! `api` and `state`: changes of groups at run time.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use tw_testkit::origin::origin;
use tw_testkit::{Client, Response, Server, Signal, wait};

use crate::support::reload::reload;
use crate::support::{get, own_user, page, refusal, request, server, start, start_as_we_are};

/// An origin that answers with its name.
fn origin_named(name: &'static str) -> SocketAddr {
    origin(move |mut conn| {
        while conn.head().is_some() {
            conn.answer("", name);
        }
    })
}

/// A server with the group `u` of these servers, a writable API, a read-only one, and metrics.
fn start_with_api(upstream: &str) -> Server {
    start_as_we_are(server(), &http(upstream))
}

fn http(upstream: &str) -> String {
    format!(
        "upstream u {{ {upstream} }}
         server {{ listen 127.0.0.1:{{port}};
             location /api/ {{ api write=on; }}
             location /read/ {{ api; }}
             location /metrics {{ metrics; }}
             location / {{ proxy_pass http://u; }} }}"
    )
}

fn send(server: &Server, line: &str, body: &str) -> Response {
    let mut client = server.connect().unwrap();
    let length = body.len();
    client
        .send(format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .unwrap();
    client.read_response().unwrap()
}

/// Sends a change that must succeed; returns the response.
fn change(server: &Server, line: &str, body: &str) -> String {
    let response = send(server, line, body);
    assert!(matches!(response.status, 200 | 201), "{line} {body}: {} {}", response.status, response.text());
    response.text()
}

const SERVERS: &str = "/api/9/http/upstreams/u/servers";

/// Adds a server and returns its number.
fn add(server: &Server, addr: SocketAddr, more: &str) -> u32 {
    let response = send(server, &format!("POST {SERVERS}"), &format!("{{\"server\":\"{addr}\"{more}}}"));
    assert_eq!(response.status, 201, "{}", response.text());
    let location = response.field("Location").unwrap();
    location.rsplit_once('/').unwrap().1.parse().unwrap()
}

/// Bodies of `count` responses.
fn bodies(server: &Server, count: usize) -> String {
    let mut names: Vec<_> = (0..count).map(|_| get(server, "/").text()).collect();
    names.sort();
    names.concat()
}

/// The addresses that the API shows.
fn shown(server: &Server) -> BTreeSet<String> {
    let text = get(server, SERVERS).text();
    text.split("\"server\":\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

fn error_of(response: &Response) -> (u16, String) {
    let text = response.text();
    let code = text.split("\"code\":\"").nth(1).and_then(|rest| rest.split('"').next());
    assert!(text.contains(&format!("{{\"error\":{{\"status\":{},\"text\":\"", response.status)), "{text}");
    assert_eq!(response.field("Content-Type"), Some("application/json"));
    (response.status, code.unwrap_or_default().to_owned())
}

#[test]
fn api_adds_changes_and_removes_servers_under_load() {
    let a = origin_named("a");
    let b = origin_named("b");
    let server = start_with_api(&format!("server {a};"));
    assert_eq!(bodies(&server, 2), "aa");
    let added = add(&server, b, "");
    assert_eq!(bodies(&server, 4), "aabb");
    let one = |id: u32| format!("{SERVERS}/{id}");
    let patch = |id: u32, body: &str| change(&server, &format!("PATCH {}", one(id)), body);

    assert!(patch(added, "{\"weight\":3}").contains("\"weight\":3"));
    assert_eq!(bodies(&server, 8), "aabbbbbb");
    assert!(patch(0, "{\"down\":true}").contains("\"down\":true"));
    assert_eq!(bodies(&server, 3), "bbb");
    patch(0, "{\"down\":false}");
    assert!(patch(added, "{\"drain\":true}").contains("\"drain\":true"));
    assert_eq!(bodies(&server, 3), "aaa");

    // The API shows the same numbers as the metrics.
    let view = get(&server, "/api/http/upstreams/u").text();
    for expected in [
        "\"zone\":\"u\"".to_owned(),
        format!(
            "\"server\":\"{b}\",\"name\":\"{b}\",\"backup\":false,\"weight\":3,\"state\":\"draining\",\"active\":0"
        ),
        "\"requests\":11,\"responses\":{\"1xx\":0,\"2xx\":11,\"3xx\":0,\"4xx\":0,\"5xx\":0,\"total\":11}"
            .to_owned(),
    ] {
        assert!(view.contains(&expected), "{expected}: {view}");
    }
    let numbers = get(&server, "/metrics").text();
    let state = format!("server=\"{b}\",id=\"{added}\",state=\"draining\"");
    assert!(numbers.contains(&state), "{state}: {numbers}");
    let weight = format!(
        "upstream_peer_weight{{protocol=\"http\",upstream=\"u\",peer=\"{b}\",server=\"{b}\",id=\"{added}\"}} 3"
    );
    assert!(numbers.contains(&weight), "{weight}: {numbers}");

    let rest = change(&server, &format!("DELETE {}", one(0)), "");
    assert!(rest.contains(&b.to_string()) && !rest.contains(&a.to_string()), "{rest}");
    patch(added, "{\"drain\":false}");
    assert_eq!(bodies(&server, 2), "bb");
    change(&server, &format!("DELETE {}", one(added)), "");
    assert_eq!((get(&server, SERVERS).text(), get(&server, "/").status), ("[]".to_owned(), 502));
}

#[test]
fn request_to_a_removed_server_is_finished() {
    let (arrived, came) = channel();
    let (answer, may) = channel::<()>();
    let arrived = Arc::new(Mutex::new(arrived));
    let may = Arc::new(Mutex::new(may));
    let slow = origin(move |mut conn| {
        while conn.head().is_some() {
            arrived.lock().unwrap().send(()).unwrap();
            may.lock().unwrap().recv().unwrap();
            conn.answer("", "late");
        }
    });
    let server = start_with_api(&format!("server {slow}; server {};", origin_named("b")));
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    came.recv_timeout(wait::TIMEOUT).unwrap();
    change(&server, &format!("DELETE {SERVERS}/0"), "");
    assert_eq!(bodies(&server, 3), "bbb");
    answer.send(()).unwrap();
    assert_eq!(client.read_response().unwrap().text(), "late");
}

#[test]
fn invalid_api_request_changes_nothing() {
    let server = start_with_api("server 127.0.0.1:1 backup; server 127.0.0.1:2;");
    let before = get(&server, SERVERS).text();
    let long = format!("{{\"server\":\"{}\"}}", "a".repeat(20_000));
    for (line, body, expected) in [
        ("POST /api/http/upstreams/u/servers", "{\"server\":", (415, "JsonError")),
        ("POST /api/http/upstreams/u/servers", "{}", (400, "UpstreamConfFormatError")),
        ("POST /api/http/upstreams/u/servers", "{\"name\":\"a\"}", (400, "UpstreamConfFormatError")),
        ("POST /api/http/upstreams/u/servers", "{\"server\":\"127.0.0.1:x\"}", (400, "UpstreamBadAddress")),
        ("POST /api/http/upstreams/u/servers", "{\"server\":\"127.0.0.1:2\"}", (409, "EntryExists")),
        ("POST /api/http/upstreams/u/servers", &long, (413, "BodyTooLarge")),
        ("POST /api/http/upstreams/v/servers", "{\"server\":\"127.0.0.1:3\"}", (404, "UpstreamNotFound")),
        ("POST /api/http/upstreams/u", "{}", (405, "MethodDisabled")),
        ("PUT /api/http/upstreams/u/servers", "{}", (405, "MethodDisabled")),
        ("POST /read/http/upstreams/u/servers", "{\"server\":\"127.0.0.1:3\"}", (405, "MethodDisabled")),
        ("DELETE /read/http/upstreams/u/servers/0", "", (405, "MethodDisabled")),
        ("PATCH /api/http/upstreams/u/servers/0", "{\"weight\":0}", (400, "UpstreamBadWeight")),
        ("PATCH /api/http/upstreams/u/servers/0", "{\"backup\":false}", (400, "UpstreamServerImmutable")),
        ("PATCH /api/http/upstreams/u/servers/0", "{\"server\":\"a\"}", (400, "UpstreamServerImmutable")),
        ("PATCH /api/http/upstreams/u/servers/7", "{\"weight\":1}", (404, "UpstreamServerNotFound")),
        ("DELETE /api/http/upstreams/u/servers/7", "", (404, "UpstreamServerNotFound")),
        ("DELETE /api/http/upstreams/u/servers/x", "", (400, "UpstreamBadServerId")),
        ("GET /api/http/upstreams/v", "", (404, "UpstreamNotFound")),
        ("GET /api/nonsense", "", (404, "PathNotFound")),
        ("GET /api/77/http", "", (404, "UnknownVersion")),
    ] {
        let response = send(&server, line, body);
        assert_eq!(error_of(&response), (expected.0, expected.1.to_owned()), "{line} {body}");
    }
    assert_eq!(get(&server, SERVERS).text(), before);
    // The connection is kept after a body that was not needed, and a chunked body has the same limit.
    let mut client = server.connect().unwrap();
    let piece = "a".repeat(10_000);
    client
        .send(format!(
            "POST {SERVERS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2710\r\n{piece}\r\n2710\r\n{piece}\r\n0\r\n\r\n\
             GET /api/ HTTP/1.1\r\nHost: x\r\n\r\n"
        ))
        .unwrap();
    assert_eq!(client.read_response().unwrap().status, 413);
    assert_eq!(client.read_response().unwrap().text(), "[\"http\",\"stream\",\"mail\"]");
    for (line, allow) in [
        (format!("PUT {SERVERS}"), "GET, HEAD, POST"),
        (format!("POST {SERVERS}/0"), "GET, HEAD, PATCH, DELETE"),
        ("POST /read/http/upstreams/u/servers".to_owned(), "GET, HEAD"),
    ] {
        assert_eq!(request(&server, &line, &[]).field("Allow"), Some(allow), "{line}");
    }
    assert_eq!(request(&server, &format!("HEAD {SERVERS}"), &[]).status, 200);
    for path in ["/api/", "/api/9/http/", "/api/http/upstreams/"] {
        assert_eq!(page(&server, path).0, 200, "{path}");
    }
}

#[test]
fn pages_of_other_origins_change_nothing() {
    let server = start_with_api("zone u 64k; server 127.0.0.1:1;");
    let body = "{\"server\":\"127.0.0.1:2\"}";
    let post = |fields: &str| {
        let mut client = server.connect().unwrap();
        let length = body.len();
        client
            .send(format!(
                "POST {SERVERS} HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n{fields}\
                 Content-Length: {length}\r\n\r\n{body}"
            ))
            .unwrap();
        client.read_response().unwrap()
    };
    for fields in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        "Origin: http://api.example:81\r\n",
        "Origin: http://api.example\r\nSec-Fetch-Site: same-site\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        let response = post(fields);
        assert_eq!(response.status, 403, "{fields}");
        assert!(response.text().contains("CrossOrigin"), "{}", response.text());
    }
    assert_eq!(post("Origin: http://API.example\r\n").status, 201, "the page of the API's own host");
    assert_eq!(page(&server, "/read/http/upstreams/u/servers").1.matches("\"id\"").count(), 2);
    let by_reading = "Origin: http://evil.example\r\n";
    let mut client = server.connect().unwrap();
    client
        .send(format!("GET {SERVERS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{by_reading}\r\n"))
        .unwrap();
    assert_eq!(client.read_response().unwrap().status, 200);
}

#[test]
fn access_directives_apply_to_the_api() {
    let server = start(
        server(),
        "upstream u { server 127.0.0.1:1; } server { listen 127.0.0.1:{port};
             location /api/ { api write=on; limit_except GET { deny all; } }
             location /none/ { api write=on; deny all; } }",
    );
    assert_eq!(page(&server, "/api/http").1, "[\"caches\",\"keyvals\",\"upstreams\"]");
    assert_eq!(send(&server, "DELETE /api/http/upstreams/u/servers/0", "").status, 403);
    assert_eq!(get(&server, "/none/").status, 403);
    for (conf, expected) in [
        ("location / { api nonsense; }", "invalid parameter \"nonsense\""),
        ("location / { api; api; }", "is duplicate"),
        ("location ~ x { api; }", "\"api\" cannot be used in a named location"),
    ] {
        let message = refusal(conf);
        assert!(message.contains(expected), "{conf}: {message}");
    }
}

/// The lines of the state file, in any order.
fn state(server: &Server) -> BTreeSet<String> {
    let text = fs::read_to_string(server.prefix().join("state/u.conf")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn lines<const N: usize>(lines: [String; N]) -> BTreeSet<String> {
    lines.into()
}

#[test]
fn state_survives_reload_and_restart() {
    let a = origin_named("a");
    let b = origin_named("b");
    let conf = |turn: u32, method: &str| {
        format!(
            "{} worker_processes 2; http {{ add_header X-Turn {turn}; {} }}",
            own_user(),
            http(&format!("{method} state state/u.conf;"))
        )
    };
    for [first, again] in [[server(), server()], [server().with_master(), server().with_master()]] {
        let mut server = first.file("state/keep", "").start(&conf(0, "")).unwrap();
        assert_eq!((shown(&server), get(&server, "/").status), (BTreeSet::new(), 502));
        let first = add(&server, a, "");
        let second = add(&server, b, ",\"weight\":2,\"route\":\"r1\",\"fail_timeout\":\"1m\"");
        let with_b = format!("server {b} weight=2 fail_timeout=60s route=r1;");
        assert_eq!(state(&server), lines([format!("server {a};"), with_b.clone()]));
        assert_eq!(bodies(&server, 3), "abb");

        // The same group goes on, with its numbers, whatever method it has now.
        for (turn, method) in [(1, "keepalive 1;"), (2, "keepalive 2; least_conn;")] {
            server.write_conf(&conf(turn, method)).unwrap();
            reload_for_turn(&server, turn);
            assert_eq!(shown(&server), lines([a.to_string(), b.to_string()]));
            change(&server, &format!("PATCH {SERVERS}/{first}"), "{\"down\":true}");
            assert_eq!(bodies(&server, 2), "bb");
            assert!(state(&server).contains(&format!("server {a} down;")));
            change(&server, &format!("PATCH {SERVERS}/{first}"), "{\"down\":false}");
        }
        let requests = get(&server, "/api/http/upstreams/u").text();
        assert!(!requests.contains("\"requests\":0,"), "{requests}");
        change(&server, &format!("DELETE {SERVERS}/{first}"), "");

        // The operator edits the file by hand.
        fs::write(
            server.prefix().join("state/u.conf"),
            format!("{with_b}\n# by hand\nserver {a} max_conns=5;\n"),
        )
        .unwrap();
        server.write_conf(&conf(3, "keepalive 2; least_conn;")).unwrap();
        reload_for_turn(&server, 3);
        assert!(wait::until(wait::TIMEOUT, || shown(&server).len() == 2), "{}", server.error_log());
        change(&server, &format!("DELETE {SERVERS}/{second}"), "");
        assert_eq!(state(&server), lines([format!("server {a} max_conns=5;")]));

        let saved = fs::read(server.prefix().join("state/u.conf")).unwrap();
        server.stop().unwrap();
        let server = again.file("state/u.conf", saved).start(&conf(0, "")).unwrap();
        assert_eq!((shown(&server), bodies(&server, 2)), (lines([a.to_string()]), "aa".to_owned()));
    }
}

/// Reloads, and waits until every loop has the configuration of this turn.
fn reload_for_turn(server: &Server, turn: u32) {
    server.signal(Signal::HUP).unwrap();
    let turn = turn.to_string();
    // A loop has the new configuration a moment after it was told. Connections that are open at the same time are
    // spread over both loops.
    let have_turned = || {
        let mut clients: Vec<_> = (0..16).map(|_| server.connect().unwrap()).collect();
        clients.iter_mut().all(|client| {
            client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            client.read_response().unwrap().field("X-Turn") == Some(&*turn)
        })
    };
    assert!(wait::until(wait::TIMEOUT, have_turned), "{}", server.error_log());
}

#[test]
fn changes_without_a_state_file_end_with_the_configuration() {
    let a = origin_named("a");
    let b = origin_named("b");
    let server = start_with_api(&format!("server {a};"));
    add(&server, b, "");
    assert_eq!(bodies(&server, 2), "ab");
    server.signal(Signal::HUP).unwrap();
    assert!(wait::until(wait::TIMEOUT, || shown(&server) == lines([a.to_string()])));
    assert_eq!(bodies(&server, 2), "aa");
}

#[test]
fn unwritable_state_is_logged_and_the_change_applies() {
    let a = origin_named("a");
    // A directory in its place makes the file unwritable for any user.
    let conf = format!("http {{ {} }}", http("state state/u.conf;"));
    let message = server().file("state/u.conf/x", "").start(&conf).err().unwrap().to_string();
    assert!(message.contains("state/u.conf\" failed (21: Is a directory)"), "{message}");

    // The sandbox knows only directories that there are.
    let conf = format!("sandbox off; {} http {{ {} }}", own_user(), http("state no-such-directory/u.conf;"));
    let server = server().start(&conf).unwrap();
    let response = send(&server, &format!("POST {SERVERS}"), &format!("{{\"server\":\"{a}\"}}"));
    assert_eq!(error_of(&response), (500, "StateNotSaved".to_owned()));
    assert!(response.text().contains("the change is in force"), "{}", response.text());
    let line = server.wait_error_log("while saving the state of an upstream").unwrap();
    assert!(
        line.contains("[crit]") && line.contains("no-such-directory/u.conf\" failed (2: No such file"),
        "{line}"
    );
    assert_eq!(bodies(&server, 1), "a");
    // Once the directory exists, the next change saves all changes.
    let dir = server.prefix().join("no-such-directory");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    change(&server, &format!("PATCH {SERVERS}/0"), "{\"weight\":2}");
    assert_eq!(fs::read_to_string(dir.join("u.conf")).unwrap(), format!("server {a} weight=2;\n"));
    let rest: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(rest, ["u.conf"], "nothing else is left");
}

#[test]
fn changes_that_a_reload_undoes_are_told() {
    const NOTE: &str = "a reload undoes this change, because the upstream block has no \"state\"";
    let conf =
        |more: &str| format!("{} http {{ {} }}", own_user(), http(&format!("server 127.0.0.1:1; {more}")));
    let mut server = server().with_master().start(&conf("server 127.0.0.1:2;")).unwrap();
    let first = format!("{SERVERS}/0");
    let second = format!("{SERVERS}/1");
    for (method, target, body) in
        [("PATCH", &first, "{\"drain\":true}"), ("PATCH", &first, "{\"weight\":5}"), ("DELETE", &second, "")]
    {
        let response = send(&server, &format!("{method} {target}"), body);
        assert_eq!((response.status, response.field("Tailwater-Note")), (200, Some(NOTE)), "{body}");
        let note = format!(",\"note\":\"{}\"}}", NOTE.replace('"', "\\\""));
        assert_eq!(response.text().ends_with(&note), method == "PATCH", "{}", response.text());
    }
    assert!(!get(&server, &first).text().contains("note"));
    reload(&mut server, &conf("server 127.0.0.1:2;"));
    let line = server.wait_error_log("the reload has undone changes").unwrap();
    let changes = "in upstream \"u\", which has no \"state\": \
                   changed \"127.0.0.1:1\" to \"127.0.0.1:1 weight=5 drain\", removed \"127.0.0.1:2\"";
    assert!(line.contains("[warn]") && line.contains(changes), "{line}");
    // The next reload has nothing to undo, and neither has one whose configuration contains the change.
    change(&server, &format!("PATCH {first}"), "{\"weight\":3}");
    reload(&mut server, &conf("server 127.0.0.1:2;").replace("127.0.0.1:1;", "127.0.0.1:1 weight=3;"));
    assert!(wait::until(wait::TIMEOUT, || get(&server, &first).text().contains("\"weight\":3")));
    assert_eq!(server.error_log().matches("the reload has undone changes").count(), 1);
}

#[test]
fn changes_that_a_state_file_keeps_have_no_note() {
    let conf = format!("{} http {{ {} }}", own_user(), http("state state/u.conf;"));
    let server = server().file("state/keep", "").start(&conf).unwrap();
    let response = send(&server, &format!("POST {SERVERS}"), "{\"server\":\"127.0.0.1:1\"}");
    assert_eq!((response.status, response.field("Tailwater-Note")), (201, None));
    assert!(!response.text().contains("note"), "{}", response.text());
}

#[test]
fn invalid_state_files_are_refused() {
    for (http, file, expected) in [
        (
            "upstream u { state s; server 127.0.0.1:1; }",
            "",
            "the servers of upstream \"u\" stand both in its block and in the state file \"s\"",
        ),
        (
            "upstream u { state s; } upstream v { state s; }",
            "",
            "state file \"s\" is already used in upstream \"u\"",
        ),
        (
            "upstream u { state s; }",
            "server 127.0.0.1:1;\nserver 127.0.0.1:2 wieght=2;\n",
            "invalid parameter \"wieght=2\" in ",
        ),
    ] {
        let conf = format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; }} }}");
        let message = server().file("s", file).start(&conf).err().unwrap().to_string();
        assert!(message.contains(expected), "{http}: {message}");
    }
}

#[test]
fn concurrent_changes_lose_nothing() {
    const CLIENTS: u16 = 8;
    const EACH: u16 = 6;
    let conf = format!(
        "{} worker_processes 2; http {{ {} }}",
        own_user(),
        http("state state/u.conf; hash $uri consistent;")
    );
    let server = server().file("state/keep", "").start(&conf).unwrap();
    let addr = server.addr();
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                for nth in 0..EACH {
                    let port = 1000 + client * EACH + nth;
                    let body = format!("{{\"server\":\"127.0.0.1:{port}\",\"down\":true}}");
                    let length = body.len();
                    let mut conn = Client::connect(addr).unwrap();
                    conn.send(format!(
                        "POST {SERVERS} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"
                    ))
                    .unwrap();
                    let added = conn.read_response().unwrap();
                    assert_eq!(added.status, 201, "{}", added.text());
                    // Every other one goes again.
                    if nth % 2 == 1 {
                        let at = added.field("Location").unwrap();
                        conn.send(format!("DELETE {at} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
                        assert_eq!(conn.read_response().unwrap().status, 200);
                    }
                }
            });
        }
    });
    let ports =
        (0..CLIENTS).flat_map(|client| (0..EACH).step_by(2).map(move |nth| 1000 + client * EACH + nth));
    let expected: BTreeSet<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    assert_eq!(shown(&server), expected);
    assert_eq!(state(&server), expected.iter().map(|addr| format!("server {addr} down;")).collect());
}

#[test]
fn change_applies_to_all_loops_at_once() {
    let a = origin_named("a");
    let b = origin_named("b");
    let conf = format!("worker_processes 2; http {{ {} }}", http(&format!("server {a};")));
    let server = server().start(&conf).unwrap();
    // Connections that live on, of both loops.
    let mut clients: Vec<_> = (0..16).map(|_| server.connect().unwrap()).collect();
    let mut all = |expected: &str| {
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            assert_eq!(client.read_response().unwrap().text(), expected);
        }
    };
    all("a");
    add(&server, b, "");
    change(&server, &format!("PATCH {SERVERS}/0"), "{\"down\":true}");
    all("b");
    change(&server, &format!("PATCH {SERVERS}/0"), "{\"down\":false}");
    change(&server, &format!("DELETE {SERVERS}/1"), "");
    all("a");
}

#[test]
fn restored_group_has_no_connections_to_former_servers() {
    let a = origin_named("a");
    let b = origin_named("b");
    let conf = |turn: &str, upstream: &str, to: &str| {
        format!(
            "http {{ {upstream} server {{ listen 127.0.0.1:{{port}}; add_header X-Turn {turn};
                 location / {{ proxy_pass http://{to}; }} }} }}"
        )
    };
    let with = |turn: &str, addr: SocketAddr| {
        conf(turn, &format!("upstream u {{ server {addr}; keepalive 8; }}"), "u")
    };
    let mut server = server().start(&with("zero", a)).unwrap();
    assert_eq!(bodies(&server, 2), "aa");
    for (turn, conf) in [("one", conf("one", "", &b.to_string())), ("two", with("two", b))] {
        reload(&mut server, &conf);
        // The loop has the new configuration a moment after it was told.
        let has_turned = || get(&server, "/").field("X-Turn") == Some(turn);
        assert!(wait::until(wait::TIMEOUT, has_turned), "{}", server.error_log());
        assert_eq!(get(&server, "/").text(), "b", "{turn}");
    }
}
