//! `status_zone`

use tw_testkit::{Server, wait};

use crate::support::metrics::try_metric;
use crate::support::reload::reload;
use crate::support::{get, refusal_of, server, start};

/// The value of a sample of a zone; 0 if there is none.
fn sample(server: &Server, series: &str) -> u64 {
    try_metric(server, &format!("zone_{series}")).unwrap_or(0)
}

/// Waits for a number: a request is counted when it is over, which its client may know before.
fn becomes(server: &Server, series: &str, expected: u64) {
    let is_found = wait::until(wait::TIMEOUT, || sample(server, series) == expected);
    assert!(is_found, "{series} is not {expected}: {}", get(server, "/metrics").text());
}

fn requests(of: &str, zone: &str) -> String {
    format!("requests_total{{of=\"{of}\",zone=\"{zone}\"}}")
}

fn responses(of: &str, zone: &str, status: &str) -> String {
    format!("responses_total{{of=\"{of}\",zone=\"{zone}\",status=\"{status}\"}}")
}

const CONF: &str = "
    server { listen 127.0.0.1:{port}; location = /metrics { metrics; } location / { return 204; } }
    server { listen 127.0.0.1:{port}; server_name counted; root html; status_zone site;
        location /files/ { status_zone files;
            location /files/not/ { status_zone off; return 204; }
            location /files/in/ { return 403; }
            location /files/if/ { if ($arg_a) { status_zone asked; return 418; } } }
        location /again/ { status_zone files; try_files $uri @named; }
        location @named { return 410; }
        location /page/ { add_after_body /files/a; addition_types text/plain; default_type text/plain; status_zone pages; }
        location /odd { return 700; } }
    server { listen 127.0.0.1:{port}; server_name same; status_zone site; return 200; }";

/// Status of a request to a server by its name, on a connection of its own.
fn status(server: &Server, host: &str, target: &str) -> u16 {
    let mut client = server.connect().unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
    client.read_response().unwrap().status
}

#[test]
fn requests_are_counted_by_server_and_final_location() {
    let files = server().file("html/files/a", "0123456789").file("html/page/a", "page");
    let server = start(files, CONF);
    let targets = [
        ("/files/a", 200),
        ("/files/a", 200),
        ("/files/none", 404),
        ("/files/not/x", 204),
        ("/files/in/x", 403),
        ("/files/if/?a=1", 418),
        ("/again/x", 410),
        ("/page/a", 200),
        ("/odd", 700),
    ];
    for (target, expected) in targets {
        assert_eq!(status(&server, "counted", target), expected, "{target}");
    }
    assert_eq!((status(&server, "same", "/"), status(&server, "other", "/")), (200, 204));

    becomes(&server, &requests("server", "site"), targets.len() as u64 + 1);
    for (series, count) in [
        (responses("server", "site", "200"), 4),
        (responses("server", "site", "204"), 1),
        (responses("server", "site", "410"), 1),
        (responses("server", "site", "700"), 1),
        // Subrequests are not counted, nor are responses that another location sends in the end.
        (requests("location", "files"), 4),
        (responses("location", "files", "200"), 2),
        (responses("location", "files", "403"), 1),
        (responses("location", "files", "404"), 1),
        (requests("location", "asked"), 1),
        (responses("location", "asked", "418"), 1),
        (requests("location", "pages"), 1),
        ("request_seconds_count{of=\"server\",zone=\"site\"}".to_owned(), 10),
        ("request_seconds_bucket{of=\"location\",zone=\"files\",le=\"+Inf\"}".to_owned(), 4),
    ] {
        assert_eq!(sample(&server, &series), count, "{series}");
    }
}

#[test]
fn counted_bytes_are_those_on_the_wire() {
    let server = start(server(), CONF);
    let mut client = server.connect().unwrap();
    let request = "POST /files/in/x HTTP/1.1\r\nHost: counted\r\nContent-Length: 5\r\n\r\nhello";
    client.send(request).unwrap();
    let response = client.read_response().unwrap();
    assert_eq!(response.status, 403);
    becomes(&server, &requests("location", "files"), 1);
    let of = |name: &str| sample(&server, &format!("{name}_bytes_total{{of=\"location\",zone=\"files\"}}"));
    assert_eq!(of("received"), request.len() as u64);
    // A request that begins and ends in one turn takes some time, too.
    let text = get(&server, "/metrics").text();
    let (_, sum) =
        text.split_once("\ntailwater_zone_request_seconds_sum{of=\"location\",zone=\"files\"} ").unwrap();
    let sum: f64 = sum.lines().next().unwrap().parse().unwrap();
    assert!(sum > 0.0, "{text}");
    assert_eq!(of("sent"), (response.head.len() + response.body.len()) as u64, "{}", response.head);
}

#[test]
fn counters_survive_reload() {
    let http = |rest: &str| {
        format!(
            "events {{}} http {{ server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }}
             location / {{ status_zone kept; return 204; }} {rest} }} }}"
        )
    };
    let mut server = server().in_one_process().start(&http("")).unwrap();
    for count in 1..=3 {
        assert_eq!(get(&server, "/").status, 204);
        becomes(&server, &requests("location", "kept"), count);
    }
    reload(&mut server, &http("location /new { status_zone new; return 204; }"));
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/metrics").text().contains("zone=\"new\"")));
    becomes(&server, &requests("location", "kept"), 3);
    assert_eq!(get(&server, "/").status, 204);
    becomes(&server, &requests("location", "kept"), 4);
    // A zone that no configuration uses any more is gone.
    reload(&mut server, &http(""));
    assert!(wait::until(wait::TIMEOUT, || !get(&server, "/metrics").text().contains("zone=\"new\"")));
    becomes(&server, &requests("location", "kept"), 4);
}

#[test]
fn zones_are_bounded() {
    let many = |count: usize| -> String {
        let locations = (0..count).map(|n| format!("location /{n} {{ status_zone z{n}; }} "));
        // A zone that is named again is no other one.
        locations.chain(["location /again { status_zone z0; } ".to_owned()]).collect()
    };
    let conf = |locations: String| {
        format!(
            "http {{ server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} {locations} }} }}"
        )
    };
    let fits = server().start(&conf(many(256))).unwrap();
    assert_eq!(get(&fits, "/metrics").text().matches("tailwater_zone_requests_total{").count(), 256);
    let said = refusal_of(&conf(many(257)));
    assert!(said.contains("too many zones of status_zone: \"z256\" is one more than 256 in "), "{said}");
    for (arguments, expected) in [
        ("", "invalid number of arguments in \"status_zone\""),
        ("a b", "invalid number of arguments in \"status_zone\""),
    ] {
        let said = refusal_of(&conf(format!("status_zone {arguments};")));
        assert!(said.contains(expected), "{said}");
    }
}
