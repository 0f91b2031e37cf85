//! Access logs: formats, levels, escapes, conditions, buffers, and variables of the log phase.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tw_testkit::http2::{Frames, get as get_frame, kind};
use tw_testkit::origin::origin;
use tw_testkit::{Client, Server, Signal, wait};

use crate::support::{raw, server, start};

/// Sends requests to a server with this `http` block, one connection each, then stops it. Returns the contents of its
/// logs by name.
fn logs(http: &str, requests: &[&str]) -> BTreeMap<String, String> {
    logs_of(start(server().file("html/a.txt", "hello"), http), requests)
}

fn logs_of(mut server: Server, requests: &[&str]) -> BTreeMap<String, String> {
    for request in requests {
        raw(&server, request);
    }
    assert!(server.stop().unwrap().success());
    let mut logs = BTreeMap::new();
    for entry in fs::read_dir(server.prefix().join("logs")).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.extension().is_some_and(|end| end == "log") {
            logs.insert(name.into_string().unwrap(), fs::read_to_string(path).unwrap());
        }
    }
    logs
}

/// Requests these targets with HTTP/1.0 and checks the contents of each log.
fn check(http: &str, targets: &[&str], expected: &[(&str, &str)]) {
    let requests: Vec<_> = targets.iter().map(|target| format!("GET {target} HTTP/1.0\r\n\r\n")).collect();
    let mut logs = logs(http, &requests.iter().map(String::as_str).collect::<Vec<_>>());
    logs.retain(|name, _| !matches!(name.as_str(), "error.log" | "stderr.log" | "stdout.log"));
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    assert_eq!(logs, expected, "{http}");
}

#[test]
fn combined_is_the_default_format() {
    let request = "GET /a?b HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Basic dTpw\r\n\
                   Referer: \"r\"\r\nUser-Agent: é\\\r\n\r\n";
    let log =
        &logs("server { listen 127.0.0.1:{port}; return 200 hello; }", &["GET /x HTTP/1.0\r\n\r\n", request])
            ["access.log"];
    let (before, after): (Vec<_>, Vec<_>) = log.lines().map(|line| line.split_once(']').unwrap()).unzip();
    assert!(before[0].starts_with("127.0.0.1 - - ["), "{}", before[0]);
    assert_eq!(before[0].len(), "127.0.0.1 - - [20/Nov/2026:11:00:00 +0000".len());
    assert!(before[1].starts_with("127.0.0.1 - u ["), "{}", before[1]);
    assert_eq!(
        after,
        [
            " \"GET /x HTTP/1.0\" 200 5 \"-\" \"-\"",
            " \"GET /a?b HTTP/1.1\" 200 5 \"\\x22r\\x22\" \"\\xC3\\xA9\\x5C\"",
        ]
    );
}

#[test]
fn access_log_of_an_inner_level_replaces_outer_ones() {
    let locations = "location /in { return 204; } location /off { access_log off; return 204; }
                     location /own { access_log logs/own.log f; access_log logs/own2.log f; return 204;
                         location /own/in { return 204; } }
                     location /both { access_log logs/both.log f; access_log off; return 204; }";
    check(
        &format!(
            "log_format f '$uri'; access_log logs/http.log f;
             server {{ listen 127.0.0.1:{{port}}; {locations} }}"
        ),
        &["/in", "/off", "/own", "/own/in", "/both"],
        &[
            ("http.log", "/in\n"),
            ("own.log", "/own\n/own/in\n"),
            ("own2.log", "/own\n/own/in\n"),
            ("both.log", ""),
        ],
    );
    // The default is opened only where something needs it.
    check(
        &format!(
            "log_format f '$uri';
             server {{ listen 127.0.0.1:{{port}}; access_log logs/s.log f; {locations} }}"
        ),
        &["/in", "/nowhere"],
        &[("s.log", "/in\n/nowhere\n"), ("own.log", ""), ("own2.log", ""), ("both.log", "")],
    );
}

#[test]
fn escape_parameters_escape_values() {
    check(
        "log_format d escape=default '$uri' '$arg_b' \"\\\"$arg_c\"; log_format n escape=none $uri$arg_b$arg_c;
         log_format j escape=json '{\"u\":\"$uri\",\"b\":\"${arg_b}\"}\"';
         server { listen 127.0.0.1:{port}; return 200 x;
             access_log logs/d.log d; access_log logs/n.log n; access_log logs/j.log j; }",
        &["/%22%5c%01%c3%a9?c=2"],
        &[
            ("d.log", "/\\x22\\x5C\\x01\\xC3\\xA9-\"2\n"),
            ("n.log", "/\"\\\u{1}é2\n"),
            ("j.log", "{\"u\":\"/\\\"\\\\\\u0001é\",\"b\":\"\"}\"\n"),
        ],
    );
}

#[test]
fn if_parameter_selects_requests() {
    check(
        "log_format f '$uri'; server { listen 127.0.0.1:{port}; return 200 x;
         access_log logs/one.log f if=$arg_a; access_log logs/two.log f if=$arg_a$arg_b; }",
        &["/", "/0?a=0", "/1?a=1", "/2?b=1", "/3?a=0&b=0", "/4?a="],
        &[("one.log", "/1\n"), ("two.log", "/1\n/2\n/3\n")],
    );
}

#[test]
fn buffers_lose_nothing() {
    let targets: Vec<_> = (0..50).map(|n| format!("/{n}")).collect();
    let expected: String = targets.iter().map(|target| format!("{target}\n")).collect();
    check(
        "log_format f '$uri'; server { listen 127.0.0.1:{port}; return 200 x;
         access_log logs/a.log f buffer=4k flush=1h; access_log logs/b.log f buffer=2m; }",
        &targets.iter().map(String::as_str).collect::<Vec<_>>(),
        &[("a.log", &expected), ("b.log", &expected)],
    );
}

#[test]
fn flush_parameter_writes_the_buffer() {
    let server = start(
        server(),
        "log_format f '$uri'; server { listen 127.0.0.1:{port}; return 200 x;
         access_log logs/f.log f buffer=1m flush=50ms; }",
    );
    raw(&server, "GET /one HTTP/1.0\r\n\r\n");
    assert_eq!(server.log("logs/f.log", 1).unwrap(), ["/one"]);
}

#[test]
fn size_variables_count_bytes_sent_and_received() {
    let conf =
        "log_format f '$status $bytes_sent $body_bytes_sent $request_length $request_completion $pipe \
                $connection_requests $sent_http_content_length $sent_http_location';
                server { listen 127.0.0.1:{port}; access_log logs/f.log f;
                location / { return 200 hello; } location /to { return 301 /there; } }";
    let two = "GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /22 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let to = "GET /to HTTP/1.0\r\nHost: h.example\r\n\r\n";
    let log = &logs(conf, &[two, "HEAD / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", to])["f.log"];
    let lines: Vec<Vec<_>> = log.lines().map(|line| line.split(' ').collect()).collect();
    let column = |at: usize| lines.iter().map(|line| line[at]).collect::<Vec<_>>();
    assert_eq!(column(0), ["200", "200", "200", "400", "301"]);
    assert_eq!(column(2)[..3], ["5", "5", "0"]);
    assert_eq!(column(3), ["28", "48", "19", "18", "37"]);
    assert_eq!(column(4), ["OK"; 5]);
    assert_eq!(column(5), [".", "p", ".", ".", "."]);
    assert_eq!(column(6), ["1", "2", "1", "1", "1"]);
    assert_eq!(column(7)[..3], ["5", "5", "5"]);
    let location = column(8)[4];
    assert!(location.starts_with("http://h.example:") && location.ends_with("/there"), "{location}");
    for line in &lines {
        let sizes: Vec<u64> = line[1..3].iter().map(|size| size.parse().unwrap()).collect();
        assert!(sizes[0] > sizes[1] + 100, "{log}");
    }
}

#[test]
fn refused_requests_are_logged() {
    let conf =
        "log_format f '$status|$request|$uri|$request_uri|$args|$host|$request_method|$request_length';
                server { listen 127.0.0.1:{port}; server_name first.example; access_log logs/f.log f; }";
    let table = [
        ("\x16\x03\x01\r\n", "400|\\x16\\x03\\x01|-|-|-|first.example|-|0"),
        ("get / HTTP/1.1\r\n\r\n", "400|get / HTTP/1.1|-|-|-|first.example|-|0"),
        ("GET /../x HTTP/1.1\r\n\r\n", "400|GET /../x HTTP/1.1||-|-|first.example|GET|20"),
        ("GET /x?y HTTP/1.1\r\n\r\n", "400|GET /x?y HTTP/1.1|/x|/x?y|y|first.example|GET|21"),
        ("GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400|GET /x HTTP/1.1|/x|/x|-|a|GET|35"),
    ];
    let log = &logs(conf, &table.map(|(request, _)| request))["f.log"];
    assert_eq!(log.lines().collect::<Vec<_>>(), table.map(|(_, line)| line));
}

#[test]
fn realpath_root_resolves_links() {
    let server = start(
        server().file("html/one/a.txt", "one").file("html/two/a.txt", "two"),
        "log_format f '$realpath_root|$document_root|$request_filename';
         server { listen 127.0.0.1:{port}; access_log logs/f.log f;
             root current; location /other/ { root nowhere; } }",
    );
    let current = server.prefix().join("current");
    symlink("html/one", &current).unwrap();
    raw(&server, "GET /a.txt HTTP/1.0\r\n\r\n");
    fs::remove_file(&current).unwrap();
    symlink("html/two", &current).unwrap();
    raw(&server, "GET /a.txt HTTP/1.0\r\n\r\n");
    raw(&server, "GET /other/a.txt HTTP/1.0\r\n\r\n");
    let prefix = fs::canonicalize(server.prefix()).unwrap();
    let (prefix, real) = (server.prefix().display(), prefix.display());
    assert_eq!(
        server.log("logs/f.log", 3).unwrap(),
        [
            format!("{real}/html/one|{prefix}/current|{prefix}/current/a.txt"),
            format!("{real}/html/two|{prefix}/current|{prefix}/current/a.txt"),
            format!("-|{prefix}/nowhere|{prefix}/nowhere/other/a.txt"),
        ]
    );
    let failed = format!("realpath() \"{prefix}/nowhere\" failed (2: No such file or directory)");
    server.wait_error_log(&failed).unwrap();
}

#[test]
fn log_subrequest_logs_subrequests() {
    let parts =
        "location /parts/ { add_before_body /before; add_after_body /sub/after; addition_types text/plain;
                     root html; types { text/plain txt; } }
                 location /before { return 200 before; }
                 location /sub/ { return 200 after; }";
    let server = || server().file("html/parts/a.txt", "hello");
    for (on, expected) in [
        ("", "/parts/a.txt 200 16\n"),
        ("log_subrequest off;", "/parts/a.txt 200 16\n"),
        ("log_subrequest on;", "/before 200\n/sub/after 200\n/parts/a.txt 200\n"),
    ] {
        let conf = format!(
            "log_format f '$uri $status $body_bytes_sent'; access_log logs/f.log f;
             server {{ listen 127.0.0.1:{{port}}; {on} {parts} }}"
        );
        let log = &logs_of(start(server(), &conf), &["GET /parts/a.txt HTTP/1.0\r\n\r\n"])["f.log"];
        let lines: String = match on {
            "log_subrequest on;" => {
                log.lines().map(|line| format!("{}\n", line.rsplit_once(' ').unwrap().0)).collect()
            }
            _ => log.clone(),
        };
        assert_eq!(lines, expected, "{on} {log}");
    }
    // The location of the subrequest decides whether it is logged, where, and in which format.
    let conf = format!(
        "log_format f '$uri'; log_format s 'part $uri of $request_uri'; access_log logs/f.log f;
         server {{ listen 127.0.0.1:{{port}}; {} }}",
        parts.replace("location /sub/ {", "location /sub/ { log_subrequest on; access_log logs/s.log s;")
    );
    let logs = logs_of(start(server(), &conf), &["GET /parts/a.txt HTTP/1.0\r\n\r\n"]);
    assert_eq!(logs["f.log"], "/parts/a.txt\n");
    assert_eq!(logs["s.log"], "part /sub/after of /parts/a.txt\n");
}

#[test]
fn requests_cut_by_a_shutdown_are_logged() {
    let have_come = Arc::new(AtomicUsize::new(0));
    let counted = have_come.clone();
    let silent = origin(move |mut conn| {
        let _ = conn.head();
        counted.fetch_add(1, SeqCst);
        let _ = conn.head();
    });
    let begun = origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun");
        let _ = conn.head();
    });
    let conf = format!(
        "worker_shutdown_timeout 50ms;
         http {{ map $upstream_response_time $took {{ ~^[0-9.]+$ spans; default $upstream_response_time; }}
             map $upstream_bytes_sent $sent {{ ~^[1-9] bytes; default $upstream_bytes_sent; }}
             log_format cut '$request $status $request_completion $upstream_addr $upstream_status $took $sent';
             server {{ listen 127.0.0.1:{{port}}; http2 on; access_log logs/cut.log cut; root html;
                 location /slow {{ alias html/a.txt; limit_rate 1; }}
                 location /begun {{ proxy_pass http://{begun}; proxy_buffering off; }}
                 location /hangs {{ proxy_pass http://{silent}; }}
                 location /kept {{ proxy_pass http://{silent}; proxy_ignore_client_abort on; }} }} }}"
    );
    for (nth, builder) in [server(), server().with_master()].into_iter().enumerate() {
        let mut server = builder.file("html/a.txt", "hello").start(&conf).unwrap();
        let mut clients = Vec::new();
        for target in ["/slow", "/begun", "/hangs", "/kept"] {
            let mut client = server.connect().unwrap();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
            clients.push(client);
        }
        let mut frames = Frames::connect(server.addr()).unwrap();
        let streams = [(1, "/slow"), (3, "/begun"), (5, "/hangs"), (7, "/kept")];
        frames.send(streams.map(|(stream, target)| get_frame(stream, target, &[])).concat()).unwrap();
        // All four requests are in progress.
        for client in &mut clients[..2] {
            client.read_head().unwrap();
        }
        for _ in 0..2 {
            assert!(frames.wait(kind::HEADERS).unwrap().is_some());
        }
        assert!(wait::until(wait::TIMEOUT, || have_come.load(SeqCst) == 4 * (nth + 1)));
        // A connection that waits for its next request has no line.
        let mut idle = server.connect().unwrap();
        idle.send("GET /a.txt HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(idle.read_response().unwrap().text(), "hello");
        server.signal(Signal::QUIT).unwrap();
        assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
        let log = fs::read_to_string(server.prefix().join("logs/cut.log")).unwrap();
        let mut lines: Vec<_> = log.lines().map(str::trim_end).collect();
        lines.sort_unstable();
        let line_end = |addr| format!("{addr} - spans bytes");
        let expected = [
            "GET /a.txt HTTP/1.1 200 OK - -".to_owned(),
            format!("GET /begun HTTP/1.1 200  {begun} 200 spans bytes"),
            format!("GET /begun HTTP/2.0 200  {begun} 200 spans bytes"),
            format!("GET /hangs HTTP/1.1 000  {}", line_end(silent)),
            format!("GET /hangs HTTP/2.0 499  {}", line_end(silent)),
            format!("GET /kept HTTP/1.1 000  {}", line_end(silent)),
            format!("GET /kept HTTP/2.0 499  {}", line_end(silent)),
            "GET /slow HTTP/1.1 200  - -".to_owned(),
            "GET /slow HTTP/2.0 200  - -".to_owned(),
        ];
        assert_eq!(lines, expected, "{}", server.error_log());
    }
}

/// Configuration of a page of the manual that begins with this line.
fn recipe(page: &str, first_line: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(file).unwrap();
    let start = format!("```nginx\n{first_line}");
    let at = text.find(&start).unwrap_or_else(|| panic!("{page} has no {first_line}"));
    text[at..].trim_start_matches("```nginx\n").split("```").next().unwrap().to_owned()
}

#[test]
fn json_recipe_gives_valid_json_with_hostile_input() {
    let format = recipe("logging-and-metrics.md", "log_format json escape=json");
    let conf = format!(
        "{format} server {{ listen 127.0.0.1:{{port}}; return 200 x; }}
         server {{ listen 127.0.0.1:{{port1}}; location / {{ proxy_pass http://127.0.0.1:1; }} }}"
    );
    let mut server = start(server(), &conf);
    let long = "\"\\\u{1}".repeat(1000);
    let bytes: Vec<u8> = (0x80..=0xFF).collect();
    let escaped: String = (0..=0xFF).map(|byte| format!("%{byte:02x}")).collect();
    let requests: Vec<Vec<u8>> = vec![
        b"GET /a%22%5c%7d%00 HTTP/1.0\r\n\r\n".to_vec(),
        format!("GET /{escaped} HTTP/1.0\r\n\r\n").into_bytes(),
        [b"GET /", &*bytes, b" HTTP/1.0\r\n\r\n"].concat(),
        [b"GET / HTTP/1.0\r\nUser-Agent: \",\"status\":0,\"x\":\"", &*bytes, b"\t\\\r\n\r\n"].concat(),
        format!("GET / HTTP/1.0\r\nUser-Agent: {}\r\n\r\n", long.replace('\u{1}', "\t")).into_bytes(),
        b"GET / HTTP/1.1\r\nHost: \"\\\r\n\r\n".to_vec(),
        b"G\"T / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n".to_vec(),
        b"{}\r\n\r\n".to_vec(),
    ];
    for addr in [server.addr(), server.addr_of(1)] {
        for request in &requests {
            let mut client = Client::connect(addr).unwrap();
            client.send(request).unwrap();
            client.finish_sending().unwrap();
            // Some requests are answered, others end the connection.
            let _ = client.read_until_close();
        }
    }
    assert!(server.stop().unwrap().success());
    let log = fs::read(server.prefix().join("logs/access.json")).unwrap();
    let lines: Vec<_> = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    assert!(lines.len() >= requests.len(), "{} lines", lines.len());
    let mut statuses = BTreeSet::new();
    for line in lines {
        let value: serde_json::Value = serde_json::from_slice(line)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(line)));
        let object = value.as_object().unwrap();
        assert_eq!(object.len(), 13, "{value}");
        statuses.insert(object["status"].as_u64().unwrap());
    }
    assert!(statuses.is_superset(&[200, 400, 502].into()), "{statuses:?}");
}

#[test]
fn bodies_that_no_handler_reads_are_counted() {
    let conf = "log_format f '$content_length $request_length'; access_log logs/f.log f; \
                server { listen 127.0.0.1:{port}; location / { return 200 ok; } }";
    let head = "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n";
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    let sized = format!("{head}Content-Length: 3\r\n\r\nabc");
    let expected = format!("3 {}\n3 {}\n", chunked.len(), sized.len());
    assert_eq!(logs(conf, &[&chunked, &sized])["f.log"], expected);
}

#[test]
fn completion_and_validators_are_those_of_the_sent_response() {
    let addr = origin(|mut conn| {
        let Some(head) = conn.head() else { return };
        let status = if head.starts_with("GET /cut") { "200 OK" } else { "404 Not Found" };
        let since = "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT";
        conn.send(format!(
            "HTTP/1.1 {status}\r\n{since}\r\nContent-Length: 9\r\nConnection: close\r\n\r\nhello"
        ));
    });
    let conf = format!(
        "log_format f '$uri $status [$request_completion] $sent_http_last_modified'; access_log logs/f.log f; \
         server {{ listen 127.0.0.1:{{port}}; location /up {{ proxy_pass http://{addr}; }} \
         location /cut {{ proxy_pass http://{addr}; }} }}"
    );
    let get = |target: &str, field: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{field}\r\n")
    };
    let requests = [get("/a.txt", "If-Match: \"x\"\r\n"), get("/up", ""), get("/cut", "")];
    let log = &logs(&conf, &requests.each_ref().map(String::as_str))["f.log"];
    let lines: Vec<_> = log.lines().collect();
    let expected = [
        "/a.txt 412 [OK] -",
        "/up 404 [] Wed, 01 Jan 2025 00:00:00 GMT",
        "/cut 200 [] Wed, 01 Jan 2025 00:00:00 GMT",
    ];
    assert_eq!(lines, expected);
}
