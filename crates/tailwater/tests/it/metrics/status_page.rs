//! `status_page`, also in a real browser.

use std::net::{Ipv4Addr, SocketAddr};

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::ports::Port;
use tw_testkit::{Server, wait};

use crate::support::program::browse;
use crate::support::reload::reload;
use crate::support::{get, request, server, start, start_server};

/// The document after a browser has run its script for some seconds of virtual time; `None` without a browser.
fn rendered(server: &Server, target: &str) -> Option<String> {
    browse(&format!("http://{}{target}", server.addr()), &["--virtual-time-budget=6000".to_owned()])
}

/// The words of a document: no tags, no script, blanks as one.
fn words(document: &str) -> String {
    let body = document.split_once("<body").unwrap().1.split("<script").next().unwrap();
    let mut words = String::new();
    let mut is_tag = true;
    for c in body.chars() {
        match c {
            '<' => is_tag = true,
            '>' => {
                is_tag = false;
                words.push(' ');
            }
            c if !is_tag => words.push(c),
            _ => {}
        }
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn status_page_shows_counters() {
    let server = start_server(
        server().file("html/file", "x".repeat(100_000)),
        "status_zone site; location /deep/er/status { status_page; }
         location = /gone { status_zone gone; return 503; }",
    );
    for _ in 0..20 {
        assert_eq!(get(&server, "/file").status, 200);
    }
    assert_eq!(get(&server, "/gone").status, 503);
    let Some(document) = rendered(&server, "/deep/er/status?x=y") else { return };
    assert!(document.contains("data-state=\"live\""), "{document}");
    let words = words(&document);
    for expected in [
        concat!("version ", env!("CARGO_PKG_VERSION")),
        "configuration 1 · 1 loop",
        "Event loops",
        "Loop 0",
        "% busy",
        "longest turn",
        "Requests",
        "Bytes",
        "Pool default",
        " of 32 busy",
        "open (default)",
        "Device ",
        "site (server)",
        "gone (location)",
        "logs/access.log",
    ] {
        assert!(words.contains(expected), "{expected} is not in: {words}");
    }
    // Tables count what happened before the page was opened, too.
    let of_zone: Vec<_> =
        words.split_once("gone (location) ").unwrap().1.split(' ').skip(1).take(4).collect();
    assert_eq!(of_zone, ["0", "0", "0", "1"], "{words}");
    // Rates are known once the second answer is there, and every plot has a line then.
    assert!(words.contains("Requests") && !words.contains("all – "), "{words}");
    assert!(document.matches("class=\"line\"").count() >= 5, "{document}");
    assert!(document.contains("aria-label=\"Requests: "), "{document}");
}

#[test]
fn upstream_servers_are_listed() {
    let up = crate::support::origin::mirror();
    let nobody = Port::reserve().unwrap();
    let down = SocketAddr::from((Ipv4Addr::LOCALHOST, nobody.number()));
    let server = start(
        server(),
        &format!(
            "upstream app {{ server {up}; server {down} weight=2 fail_timeout=1h; server {up} backup; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://app; }}
             location /alone {{ proxy_pass http://{up}; }}
             location = /metrics {{ metrics; }} location = /status {{ status_page; }} }}"
        ),
    );
    for _ in 0..5 {
        assert_eq!(get(&server, "/").status, 200);
    }
    assert_eq!(get(&server, "/alone").status, 200);
    let metrics = || get(&server, "/metrics").text();
    // The client may have its response before the end of the request is counted.
    let becomes = |line: String| {
        assert!(wait::until(wait::TIMEOUT, || metrics().contains(&line)), "{line}: {}", metrics());
    };
    let of = |addr, id| {
        format!("{{protocol=\"http\",upstream=\"app\",peer=\"{addr}\",server=\"{addr}\",id=\"{id}\"")
    };
    for expected in [
        format!("info{},state=\"up\",role=\"primary\"}} 1", of(up, 0)),
        format!("info{},state=\"unavailable\",role=\"primary\"}} 1", of(down, 1)),
        format!("info{},state=\"up\",role=\"backup\"}} 1", of(up, 2)),
        format!("weight{}}} 2", of(down, 1)),
        format!("requests_total{}}} 5", of(up, 0)),
        format!("requests_total{}}} 1", of(down, 1)),
        format!("requests_total{}}} 0", of(up, 2)),
        format!("responses_total{},class=\"2xx\"}} 5", of(up, 0)),
        format!("failures_total{}}} 1", of(down, 1)),
        format!("unavailable_total{}}} 1", of(down, 1)),
        format!("connections{}}} 0", of(up, 0)),
        format!("connect_seconds_count{}}} 5", of(up, 0)),
        format!("header_seconds_count{}}} 5", of(up, 0)),
        format!("response_seconds_count{}}} 5", of(up, 0)),
        format!(
            "requests_total{{protocol=\"http\",upstream=\"{up}\",peer=\"{up}\",server=\"{up}\",id=\"0\"}} 1"
        ),
    ] {
        becomes(format!("\ntailwater_upstream_peer_{expected}\n"));
    }
    becomes("\ntailwater_upstream_waiting{protocol=\"http\",upstream=\"app\"} 0\n".to_owned());
    let Some(document) = rendered(&server, "/status") else { return };
    let words = words(&document);
    for expected in [
        format!("app {up} up "),
        format!("app {down} unavailable "),
        format!("app {up}, backup up "),
        format!("{up} {up} up "),
    ] {
        assert!(words.contains(&expected), "{expected} is not in: {words}");
    }
}

#[test]
fn caches_are_listed() {
    let origin = tw_testkit::origin::origin(|mut conn| {
        while conn.head().is_some() {
            conn.answer("Cache-Control: max-age=3600\r\n", "x".repeat(3000));
        }
    });
    let server = start(
        server(),
        &format!(
            "proxy_cache_path kept keys_zone=small:1m max_size=10m; proxy_cache_path other keys_zone=idle:1m;
             server {{ listen 127.0.0.1:{{port}};
             location / {{ proxy_pass http://{origin}; proxy_cache small; proxy_cache_bypass $arg_bypass; }}
             location = /metrics {{ metrics; }} location = /status {{ status_page; }} }}"
        ),
    );
    let metrics = || get(&server, "/metrics").text();
    let is_stored = |count: usize| {
        let line = format!("\ntailwater_cache_stored_total{{cache=\"small\"}} {count}\n");
        wait::until(wait::TIMEOUT, || metrics().contains(&line))
    };
    assert_eq!(get(&server, "/a").status, 200);
    assert!(is_stored(1), "{}", metrics());
    for path in ["/a", "/a", "/b?bypass=1"] {
        assert_eq!(get(&server, path).status, 200);
    }
    assert!(is_stored(2), "{}", metrics());
    let text = metrics();
    assert!(text.contains("\ntailwater_cache_limit_bytes{cache=\"small\"} 10485760\n"), "{text}");
    assert!(!text.contains("cache_limit_bytes{cache=\"idle\"}"), "{text}");
    let Some(document) = rendered(&server, "/status") else { return };
    let words = words(&document);
    for expected in ["small 2 8 KiB of 10 MiB ", "idle 0 0 B ", " by status memory, p99 disk, p99 collapsed "]
    {
        assert!(words.contains(expected), "{expected} is not in: {words}");
    }
}

#[test]
fn stall_is_shown_with_its_cause() {
    let server = server()
        .start(
            "stall_threshold 1ms; http { server { listen 127.0.0.1:{port}; location = /status { status_page; }
             location ~ ^/((a|aa)+)+(?!x)\\1c$ { return 204; } location / { return 200; } } }",
        )
        .unwrap();
    // Matching takes half as long again with every letter; beyond a limit it fails, and the connection is closed. Whether a turn
    // was long because of that, or because there was no processor for most of it, the machine decides.
    let mut letters = (14..40).cycle();
    let json = wait::some(wait::TIMEOUT, || {
        let mut client = server.connect().unwrap();
        let path = "a".repeat(letters.next()?);
        client.send(format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        client.read_response().unwrap();
        let json = get(&server, "/status?format=json").text();
        let is_named =
            |stall: &str| stall.contains("\"operation\":\"regular expression\",\"client\":\"127.0.0.1\"");
        json.split("{\"at\"").any(is_named).then_some(json)
    });
    assert!(json.is_some(), "{}", get(&server, "/status?format=json").text());
    let Some(document) = rendered(&server, "/status") else { return };
    let words = words(&document);
    let says = |text: &str| words.contains(text);
    let is_headline = says("A loop was blocked ") || says("A loop computed too long ");
    // Other clients waited during a long turn, no matter what made it long.
    assert!(is_headline || says("The machine was busy: "), "{words}");
    assert_ne!(is_headline, says("No loop was ever blocked"), "{words}");
    // Which stalls are the newest depends on the load of the machine: with so low a threshold, the page's own requests
    // are stalls, too.
    assert!(
        words.contains("turn cause by operation share loop time ") && !words.contains("No turn of a loop"),
        "{words}"
    );
}

/// The page of a server whose loop has had these stalls: blocked in the kernel, computing, waiting for a processor.
fn page_of_stalls(json: &str, stalls: [u64; 3]) -> SocketAddr {
    const FAMILY: &str =
        "\"event_loop_stalls_total\":{\"kind\":\"counter\",\"labels\":[\"worker\",\"cause\"],\"samples\":[";
    let (before, rest) = json.split_once(FAMILY).unwrap();
    let after = rest.split_once("]}").unwrap().1;
    let samples = ["kernel", "running", "processor"].iter().zip(stalls);
    let samples: Vec<_> = samples.map(|(cause, n)| format!("[[\"0\",\"{cause}\"],{n}]")).collect();
    let json = format!("{before}{FAMILY}{}]}}{after}", samples.join(","));
    let page = include_str!("../../../../tw-status/src/status_page/page.html");
    tw_testkit::origin::origin(move |mut conn| {
        while let Some(head) = conn.head() {
            match head.split(' ').nth(1) {
                Some("/?format=json") => conn.answer("Content-Type: application/json\r\n", &json),
                Some("/") => conn.answer("Content-Type: text/html; charset=utf-8\r\n", page),
                _ => conn.answer("", "null"),
            }
        }
    })
}

#[test]
fn headline_tells_a_busy_machine_from_a_blocked_loop() {
    let server = start_server(server(), "location = /status { status_page; }");
    let json = get(&server, "/status?format=json").text();
    for (stalls, class, headline, busy) in [
        ([0, 0, 0], "verdict", "No loop was ever blocked In ", false),
        ([0, 0, 6], "verdict", "No loop was ever blocked In ", true),
        ([0, 1, 6], "verdict busy", "A loop computed too long once In ", true),
        ([2, 1, 0], "verdict bad", "A loop was blocked 2 times In ", false),
    ] {
        let url = format!("http://{}/", page_of_stalls(&json, stalls));
        let Some(document) = browse(&url, &["--virtual-time-budget=3000".to_owned()]) else { return };
        let words = words(&document);
        assert!(document.contains(&format!("<section class=\"{class}\"")), "{stalls:?}: {document}");
        assert!(words.contains(headline), "{stalls:?}: {words}");
        assert_eq!(
            words.contains("for a processor for more than 10 ms 6 times."),
            busy,
            "{stalls:?}: {words}"
        );
        // Stalls that did not happen or are unknown are not listed.
        assert!(!words.contains("stalls: blocked in the kernel 0") && !words.contains("unknown"), "{words}");
    }
}

#[test]
fn counters_of_a_minute_ago_are_sent() {
    let server = start_server(server(), "status_zone site; location = /status { status_page; }");
    let counters = || get(&server, "/status?format=minute").text();
    assert!(wait::until(wait::TIMEOUT, || counters() != "null"));
    let json = counters();
    assert!(json.starts_with("{\"metrics\":{\"uptime_seconds\":"), "{json}");
    assert!(json.contains("\"zone_requests_total\":{\"kind\":\"counter\""), "{json}");
    // Zeros are left out, and gauges are not counted.
    assert!(!json.contains("],0]") && !json.contains("\"cache_entries\""), "{json}");
}

/// Moments of the history that `server` keeps of its first loop.
fn moments(server: &Server) -> usize {
    let json = get(server, "/status?format=history").text();
    let Some((_, series)) = json.split_once("\"loops/0\":[[") else { return 0 };
    series.split(']').next().unwrap().split(',').count()
}

#[test]
fn history_is_shown_when_the_page_is_opened() {
    let mut server = start_server(server(), "location = /status { status_page; }");
    assert!(wait::until(wait::TIMEOUT, || moments(&server) >= 3), "{}", moments(&server));
    let json = get(&server, "/status?format=history").text();
    for series in
        ["traffic/requests", "traffic/bytes", "traffic/connections", "traffic/memory", "pools/default"]
    {
        assert!(json.contains(&format!("\"{series}\":[[")), "{series}: {json}");
    }
    // A reload forgets nothing.
    let before = moments(&server);
    let renewed = "http { server { listen 127.0.0.1:{port};
        location = /status { status_page; } location = /new { return 204; } } }";
    reload(&mut server, renewed);
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/new").status == 204));
    assert!(wait::until(wait::TIMEOUT, || moments(&server) > before));
    let Some(document) = rendered(&server, "/status") else { return };
    let kept = document.split_once("data-history=\"").unwrap().1.split('"').next().unwrap();
    assert!(kept.parse::<usize>().unwrap() > before, "{kept}");
}

#[test]
fn hung_disk_is_in_the_headline() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("a", "content");
    let root = disk.path().display();
    let server = server()
        .start(&format!(
            "stall_threshold 10s; thread_pool default threads=4 device_timeout=1s;
             http {{ server {{ listen 127.0.0.1:{{port}}; location = /status {{ status_page; }}
             location = /metrics {{ metrics; }} location /slow/ {{ alias {root}/; }} }} }}"
        ))
        .unwrap();
    let stall = disk.on(Op::Open).inject(Fault::Stall);
    let mut waiting = server.connect().unwrap();
    waiting.send("GET /slow/a HTTP/1.0\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    let hangs = || get(&server, "/metrics").text().contains("\ntailwater_pool_hung_since_timestamp_seconds{");
    assert!(wait::until(wait::TIMEOUT, hangs), "{}", get(&server, "/metrics").text());
    let Some(document) = rendered(&server, "/status") else { return };
    let words = words(&document);
    assert!(words.contains(" has not answered for ") && words.contains("; no loop is blocked"), "{words}");
    assert!(words.contains("Thread pool default is affected."), "{words}");
    stall.lift();
    assert!(wait::until(wait::TIMEOUT, || !hangs()));
}

#[test]
fn content_security_policy_allows_only_the_page_itself() {
    let server = start_server(server(), "location = /status { status_page; }");
    let response = get(&server, "/status");
    assert_eq!(response.status, 200);
    assert_eq!(response.field("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(response.field("Cache-Control"), Some("no-store"));
    let policy = response.field("Content-Security-Policy").unwrap();
    let nonce = policy.split_once("script-src 'nonce-").unwrap().1.split_once('\'').unwrap().0;
    assert!(nonce.len() == 32 && policy.starts_with("default-src 'none';"), "{policy}");
    assert!(!policy.contains("-inline") && !policy.contains("-eval") && !policy.contains('*'), "{policy}");
    let page = response.text();
    assert_eq!(page.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert!(!get(&server, "/status").text().contains(nonce), "a nonce is used once");

    let numbers = get(&server, "/status?a&format=json");
    assert_eq!(numbers.field("Content-Type"), Some("application/json"));
    let json = numbers.text();
    assert!(json.starts_with("{\"now\":") && json.ends_with("}}"), "{json}");
    assert!(
        json.contains("\"stalls\":[") && json.contains("\"requests_total\":{\"kind\":\"counter\""),
        "{json}"
    );
    assert_eq!(request(&server, "HEAD /status", &[]).status, 200);
    assert_eq!(request(&server, "DELETE /status", &[]).status, 405);
}

#[test]
fn slowest_requests_are_listed() {
    let server = start_server(
        server().file("html/file", "x".repeat(1000)),
        "location = /slow { alias html/file; limit_rate 500; } location = /status { status_page; }",
    );
    assert_eq!(get(&server, "/slow?secret").status, 200);
    assert_eq!(get(&server, "/gone").status, 404);
    let json = || get(&server, "/status?format=json").text();
    let has = |request: &str, status: &str| {
        let json = json();
        let mut all = json.split("{\"at\":").filter(|entry| entry.contains(",\"disk_wait\":0"));
        all.any(|entry| entry.contains(&format!("\"request\":\"{request}\"")) && entry.contains(status))
    };
    // Requests are counted after their clients have the whole response.
    assert!(
        wait::until(wait::TIMEOUT, || has("GET /gone", "\"status\":404,\"protocol\":\"HTTP/1.")),
        "{}",
        json()
    );
    assert!(has("GET /slow", "\"worker\":0,\"time\":"), "{}", json());
    let first = json().split_once("\"slow_requests\":[").unwrap().1.split('}').next().unwrap().to_owned();
    assert!(first.contains("\"request\":\"GET /slow\""), "{first}");
}

#[test]
fn stream_servers_and_upstreams_are_listed() {
    let nobody = Port::reserve().unwrap();
    let down = SocketAddr::from((Ipv4Addr::LOCALHOST, nobody.number()));
    let conf = format!(
        "http {{ server {{ listen 127.0.0.1:{{port}}; location = /status {{ status_page; }} }} }}
         stream {{ upstream db {{ server {down} fail_timeout=1h; server {down} backup; }}
         server {{ listen 127.0.0.1:{{port1}}; status_zone sessions; proxy_pass db; }} }}"
    );
    let server = server().start(&conf).unwrap();
    let mut client = tw_testkit::Client::connect(server.addr_of(1)).unwrap();
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    let Some(document) = rendered(&server, "/status") else { return };
    let words = words(&document);
    for expected in [
        "Stream sessions of servers with status_zone ".to_owned(),
        format!("db {down} unavailable "),
        format!("db {down}, backup "),
    ] {
        assert!(words.contains(&expected), "{expected} is not in: {words}");
    }
    let of_zone = words.split_once("sent total sessions 0 ").unwrap().1;
    assert_eq!(of_zone.split(' ').skip(1).take(4).collect::<Vec<_>>(), ["0", "0", "1", "0"], "{words}");
    assert!(document.contains("id=\"stream\">"), "the section is hidden");
}
