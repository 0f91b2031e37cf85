//! `vhost_traffic_status`

use serde_json::Value;
use tw_testkit::{Server, wait};

use crate::support::http2::connect;
use crate::support::reload::reload;
use crate::support::{count_in_error_log, get, page, refusal_of, request, server, start};

const CONF: &str = "
    vhost_traffic_status_zone;
    vhost_traffic_status_filter_by_set_key $http_x_country country::*;
    vhost_traffic_status_histogram_buckets 0.5 30;
    proxy_cache_path cache keys_zone=c:1m;
    upstream app { server 127.0.0.1:{port}; server 127.0.0.1:9 backup; }
    server { listen 127.0.0.1:{port}; server_name first second; root html;
        location /status { vhost_traffic_status_display; vhost_traffic_status_bypass_stats on; }
        location /page { vhost_traffic_status_display; vhost_traffic_status_display_format html;
            vhost_traffic_status_bypass_stats on; }
        location /sums { vhost_traffic_status_display; vhost_traffic_status_display_format jsonp;
            vhost_traffic_status_display_jsonp app.show; vhost_traffic_status_display_sum_key all;
            vhost_traffic_status_bypass_stats on; }
        location /ok { return 204; }
        location /own { vhost_traffic_status_filter_by_set_key $uri uris; vhost_traffic_status_filter_by_set_key $uri uris;
            return 200; }
        location /own/none { vhost_traffic_status_filter off; return 200; }
        location /off { vhost_traffic_status off; return 200; }
        location /app { proxy_pass http://app/behind; }
        location /cached { proxy_cache c; proxy_cache_valid 1h; proxy_pass http://127.0.0.1:{port}/behind; }
        location /behind { vhost_traffic_status off; return 200 body; } }
    server { listen 127.0.0.1:{port}; server_name *.hosts; vhost_traffic_status_filter_by_host on; return 404; }";

/// The counters as a tree.
fn status(server: &Server) -> Value {
    json(server, "/status/format/json")
}

fn json(server: &Server, target: &str) -> Value {
    let response = request(server, &format!("GET {target}"), &[]);
    assert_eq!(response.status, 200, "{target}");
    let text = response.text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{target}: {error}: {text}"))
}

/// Waits for a value: a request is counted when it is over, which its client may know before.
fn becomes(server: &Server, pointer: &str, expected: u64) {
    let now = || status(server).pointer(pointer).and_then(Value::as_u64);
    let is_found = wait::until(wait::TIMEOUT, || now() == Some(expected));
    assert!(is_found, "{pointer} is not {expected}: {}", status(server));
}

fn becomes_logged(server: &Server, text: &str) {
    assert!(wait::until(wait::TIMEOUT, || count_in_error_log(server, text) > 0), "{}", server.error_log());
}

/// Status of a request to a server by its name, on a connection of its own.
fn ask(server: &Server, host: &str, target: &str, fields: &str) -> u16 {
    let mut client = server.connect().unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")).unwrap();
    client.read_response().unwrap().status
}

#[test]
fn requests_are_counted_by_server_host_and_filter() {
    let server = start(server(), CONF);
    for (host, target, fields, expected) in [
        ("first", "/ok", "X-Country: KR\r\n", 204),
        ("second", "/ok", "X-Country: KR\r\n", 204),
        ("first", "/none", "X-Country: \"<U S\r\n", 404),
        ("a.hosts", "/", "", 404),
        ("b.hosts", "/", "", 404),
        ("first", "/own/a", "", 200),
        ("first", "/own/none", "", 200),
        ("first", "/off", "", 200),
    ] {
        assert_eq!(ask(&server, host, target, fields), expected, "{host} {target}");
    }
    becomes(&server, "/serverZones/*/requestCounter", 7);
    let value = status(&server);
    for (pointer, expected) in [
        ("/serverZones/first/requestCounter", 5),
        ("/serverZones/first/responses/2xx", 4),
        ("/serverZones/first/responses/4xx", 1),
        ("/serverZones/first/responses/hit", 0),
        ("/serverZones/first/requestBuckets/msecs/1", 30_000),
        ("/serverZones/first/requestBuckets/counters/1", 5),
        ("/serverZones/a.hosts/requestCounter", 1),
        ("/serverZones/b.hosts/responses/4xx", 1),
        ("/serverZones/*/responses/4xx", 3),
        ("/filterZones/country::*/KR/requestCounter", 2),
        ("/filterZones/country::*/\"<U S/responses/4xx", 1),
        ("/filterZones/uris/~1own~1a/requestCounter", 1),
        ("/sharedZones/maxSize", 1 << 20),
        ("/sharedZones/usedNode", 6),
        ("/connections/active", 1),
    ] {
        assert_eq!(value.pointer(pointer).and_then(Value::as_u64), Some(expected), "{pointer}: {value}");
    }
    assert!(value.pointer("/filterZones/uris/~1own~1none").is_none(), "{value}");
    let bytes = value.pointer("/serverZones/a.hosts/inBytes").and_then(Value::as_u64);
    assert_eq!(bytes, Some("GET / HTTP/1.1\r\nHost: a.hosts\r\n\r\n".len() as u64));
    let [loaded, now] = ["loadMsec", "nowMsec"].map(|name| value[name].as_u64().unwrap());
    assert!(loaded <= now && now > 1_600_000_000_000, "{value}");
    assert_eq!(value["sharedZones"]["name"], "vhost_traffic_status");
}

#[test]
fn upstream_servers_and_caches_are_shown() {
    let server = start(server(), CONF);
    for target in ["/app", "/app", "/cached", "/cached", "/cached"] {
        assert_eq!(ask(&server, "first", target, ""), 200, "{target}");
    }
    becomes(&server, "/cacheZones/c/responses/hit", 2);
    becomes(&server, "/serverZones/first/responses/hit", 2);
    becomes(&server, "/upstreamZones/app/0/responses/2xx", 2);
    let found_value = status(&server);
    for (pointer, expected) in [
        ("/cacheZones/c/responses/miss", 1),
        ("/cacheZones/c/outBytes", 12),
        ("/upstreamZones/app/0/requestCounter", 2),
        ("/upstreamZones/app/0/weight", 1),
        ("/upstreamZones/app/0/maxFails", 1),
        ("/upstreamZones/app/0/failTimeout", 10),
        ("/upstreamZones/app/0/responseBuckets/counters/1", 2),
        ("/upstreamZones/app/1/requestCounter", 0),
        ("/upstreamZones/::nogroups/0/responses/2xx", 1),
    ] {
        assert_eq!(
            found_value.pointer(pointer).and_then(Value::as_u64),
            Some(expected),
            "{pointer}: {found_value}"
        );
    }
    assert_eq!(found_value["upstreamZones"]["app"][1]["backup"], true);
    let bytes = found_value["upstreamZones"]["app"][0]["inBytes"].as_u64().unwrap();
    assert!(bytes > 8, "{found_value}");

    let text = get(&server, "/status/format/prometheus").text();
    for line in [
        "nginx_vts_server_requests_total{host=\"first\",code=\"2xx\"} 5",
        "nginx_vts_server_requests_total{host=\"*\",code=\"2xx\"} 5",
        "nginx_vts_server_cache_total{host=\"first\",status=\"hit\"} 2",
        "nginx_vts_server_request_duration_seconds_bucket{host=\"first\",le=\"30.000\"} 5",
        "nginx_vts_server_request_duration_seconds_count{host=\"first\"} 5",
        "nginx_vts_upstream_response_duration_seconds_bucket{upstream=\"app\",backend=\"127.0.0.1:9\",le=\"+Inf\"} 0",
        "nginx_vts_cache_requests_total{cache_zone=\"c\",status=\"hit\"} 2",
        "nginx_vts_main_shm_usage_bytes{shared=\"max_size\"} 1048576",
        "# TYPE nginx_vts_server_request_duration_seconds histogram",
    ] {
        assert!(text.lines().any(|candidate| candidate == line), "{line}: {text}");
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("nginx_vts_") && value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn display_has_formats() {
    let server = start(server(), CONF);
    let field = |target: &str, name: &str| get(&server, target).field(name).map(str::to_owned);
    for (target, content_type, begin) in [
        ("/status", "application/json", "{\"hostName\":"),
        ("/status/format/json", "application/json", "{\"hostName\":"),
        ("/status/format/jsonp", "application/javascript", "ngx_http_vhost_traffic_status_jsonp_callback({"),
        ("/status/format/prometheus", "text/plain; version=0.0.4; charset=utf-8", "# HELP nginx_vts_info "),
        ("/status/format/html", "text/html; charset=utf-8", "<!doctype html>"),
        ("/page", "text/html; charset=utf-8", "<!doctype html>"),
        ("/page/format/json", "application/json", "{"),
        ("/sums", "application/javascript", "app.show({"),
    ] {
        assert_eq!(field(target, "Content-Type").as_deref(), Some(content_type), "{target}");
        let (status, text) = page(&server, target);
        assert!(status == 200 && text.starts_with(begin), "{target}: {text}");
    }
    assert_eq!(field("/status", "Cache-Control").as_deref(), Some("no-store"));
    let policy = field("/page", "Content-Security-Policy").unwrap();
    assert!(policy.contains("script-src 'nonce-"), "{policy}");
    assert!(get(&server, "/sums").text().contains("\"all\":{\"requestCounter\":0"));
    assert_eq!(request(&server, "HEAD /status", &[]).status, 200);
    assert_eq!(request(&server, "POST /status", &[]).status, 405);
}

#[test]
fn control_shows_resets_and_deletes() {
    let server = start(server(), CONF);
    for (target, fields) in [("/ok", "X-Country: KR\r\n"), ("/ok", "X-Country: US\r\n"), ("/own/a", "")] {
        ask(&server, "first", target, fields);
    }
    becomes(&server, "/serverZones/first/requestCounter", 3);
    let run = |args: &str| json(&server, &format!("/status/control?{args}"));
    for (args, pointer) in [
        ("cmd=status&group=*", "/serverZones/first/requestCounter"),
        ("cmd=status&group=server&zone=::main", "/connections/active"),
        ("cmd=status&group=server&zone=*", "/serverZones/first/requestCounter"),
        ("cmd=status&group=server&zone=first", "/first/requestCounter"),
        ("cmd=status&group=filter&zone=*", "/filterZones/uris/~1own~1a/requestCounter"),
        ("cmd=status&group=filter&zone=country%3A%3A*@KR", "/KR/requestCounter"),
        ("cmd=status&group=upstream@group&zone=*", "/upstreamZones/app/0/requestCounter"),
        ("cmd=status&group=upstream@alone&zone=*", "/upstreamZones/::nogroups/0/requestCounter"),
        ("cmd=status&group=upstream@group&zone=app@127.0.0.1:9", "/weight"),
        ("cmd=status&group=cache&zone=*", "/cacheZones/c/usedSize"),
        ("cmd=status&group=cache&zone=c", "/c/usedSize"),
    ] {
        let value = run(args);
        assert!(value.pointer(pointer).and_then(Value::as_u64).is_some(), "{args}: {value}");
    }
    for (args, count) in [
        ("cmd=reset&group=server&zone=none", 0),
        ("cmd=reset&group=upstream@group&zone=*", 0),
        ("cmd=other&group=*", 0),
        ("", 0),
        ("cmd=reset&group=server&zone=first", 1),
        ("cmd=delete&group=filter&zone=country::*@KR", 1),
        ("cmd=delete&group=filter&zone=*", 2),
    ] {
        let done = run(args);
        assert_eq!(done["processingCounts"], count, "{args}: {done}");
        assert_eq!(done["processingReturn"], count > 0, "{args}: {done}");
    }
    let value = status(&server);
    assert_eq!(value["serverZones"]["first"]["requestCounter"], 0);
    assert!(value.get("filterZones").is_none(), "{value}");
    assert_eq!(run("cmd=delete&group=*")["processingCounts"], 1);
    let foreign = ["Origin: http://other", "Sec-Fetch-Site: cross-site"];
    assert_eq!(request(&server, "GET /status/control?cmd=delete&group=*", &foreign).status, 403);
    assert_eq!(request(&server, "GET /status/control?cmd=status&group=*", &foreign).status, 200);
}

#[test]
fn traffic_is_limited_by_counters() {
    let server = start(
        server(),
        "vhost_traffic_status_zone shared:z:64k;
         server { listen 127.0.0.1:{port}; server_name s; vhost_traffic_status_limit_traffic request:1;
            vhost_traffic_status_set_by_filter $count server/s/requestCounter;
            vhost_traffic_status_set_by_filter $of filter/g@$arg_a/2xx;
            location / { echo -n \"$count $vts_2xx_counter $vts_request_counter\"; }
            location /key { vhost_traffic_status_filter_by_set_key $arg_a g;
                vhost_traffic_status_limit_traffic_by_set_key FG@g@$arg_a request:0 429;
                vhost_traffic_status_set_by_filter $count server/none/requestCounter; echo -n \"$count $of\"; }
            location /free { vhost_traffic_status_limit off; echo -n \"$count $of\"; }
            location /status { vhost_traffic_status_bypass_limit on; vhost_traffic_status_bypass_stats on;
                vhost_traffic_status_display; } }",
    );
    assert_eq!(page(&server, "/"), (200, "0 0 0".to_owned()));
    becomes(&server, "/serverZones/s/requestCounter", 1);
    // Requests are refused only once the counter has exceeded the limit.
    assert_eq!(page(&server, "/"), (200, "1 1 1".to_owned()));
    becomes(&server, "/serverZones/s/requestCounter", 2);
    assert_eq!(get(&server, "/").status, 503);
    becomes(&server, "/serverZones/s/responses/5xx", 1);
    becomes_logged(&server, "limiting traffic of \"s\": 2 is more than 1");
    // Limits of a location are in the place of its server's.
    assert_eq!(page(&server, "/key?a=x"), (200, "0 0".to_owned()));
    becomes(&server, "/filterZones/g/x/requestCounter", 1);
    assert_eq!(get(&server, "/key?a=x").status, 429);
    assert_eq!(get(&server, "/key?a=y").status, 200);
    assert_eq!(page(&server, "/free?a=x").1.split_once(' ').unwrap().1, "1");
}

#[test]
fn full_zone_and_limited_filters() {
    let server = start(
        server(),
        "vhost_traffic_status_zone shared:z:64k; vhost_traffic_status_filter_max_node 2 lim;
         server { listen 127.0.0.1:{port}; server_name s;
            location / { vhost_traffic_status_filter_by_set_key $uri limited; return 204; }
            location /many { vhost_traffic_status_filter_by_set_key $uri free; return 204; }
            location /status { vhost_traffic_status_bypass_stats on; vhost_traffic_status_display; } }",
    );
    for target in ["/a", "/b", "/c"] {
        get(&server, target);
    }
    becomes(&server, "/serverZones/s/requestCounter", 3);
    let limited = status(&server)["filterZones"]["limited"].clone();
    assert!(limited.get("/a").is_none() && limited.get("/c").is_some(), "{limited}");
    for number in 0..40 {
        get(&server, &format!("/many/{number}"));
    }
    becomes(&server, "/serverZones/s/requestCounter", 43);
    becomes_logged(&server, "no memory in vhost_traffic_status_zone \"z\"");
}

#[test]
fn requests_over_http2_are_counted() {
    let server = start(
        server(),
        "vhost_traffic_status_zone; server { listen 127.0.0.1:{port}; http2 on; location /a { return 204; }
         location /status { vhost_traffic_status_display; } }",
    );
    let mut client = connect(&server);
    assert_eq!(client.get("/a").unwrap().status, 204);
    let text = String::from_utf8(client.get("/status/format/json").unwrap().body).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["serverZones"]["_"]["responses"]["2xx"], 1, "{value}");
}

#[test]
fn counters_survive_reload() {
    let http = |rest: &str| {
        format!(
            "events {{}} http {{ vhost_traffic_status_zone; server {{ listen 127.0.0.1:{{port}}; server_name s;
             location /status {{ vhost_traffic_status_bypass_stats on; vhost_traffic_status_display; }}
             location / {{ return 204; }} {rest} }} }}"
        )
    };
    let mut server = server().in_one_process().start(&http("")).unwrap();
    get(&server, "/");
    becomes(&server, "/serverZones/s/requestCounter", 1);
    reload(&mut server, &http("location /new { return 201; }"));
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/new").status == 201));
    assert!(status(&server)["serverZones"]["s"]["requestCounter"].as_u64() >= Some(2));
}

#[test]
fn bad_directives_are_refused() {
    let missing = "traffic is not counted: \"vhost_traffic_status_zone\" is missing in \"http\"";
    for (http, location, expected) in [
        ("", "vhost_traffic_status_display;", missing),
        ("", "vhost_traffic_status_filter_by_set_key $uri a;", missing),
        ("", "vhost_traffic_status_limit_traffic in:1k;", missing),
        ("vhost_traffic_status_display;", "", "directive is not allowed here"),
        ("vhost_traffic_status_zone z:1m;", "", "invalid parameter \"z:1m\""),
        ("vhost_traffic_status_zone shared:z;", "", "invalid zone size"),
        ("vhost_traffic_status_zone shared:z:1k;", "", "is too small"),
        ("vhost_traffic_status_zone; vhost_traffic_status_zone;", "", "directive is duplicate"),
        (
            "limit_req_zone $uri zone=vhost_traffic_status:1m rate=1r/s; vhost_traffic_status_zone;",
            "",
            "already declared",
        ),
        ("", "vhost_traffic_status_zone;", "directive is not allowed here"),
        ("", "vhost_traffic_status yes;", "invalid value \"yes\""),
        ("", "vhost_traffic_status_display_format xml;", "invalid value \"xml\""),
        ("", "vhost_traffic_status_display_jsonp 'a(b)';", "invalid value \"a(b)\""),
        ("", "vhost_traffic_status_average_method MEAN;", "invalid value \"MEAN\""),
        ("", "vhost_traffic_status_average_method AMM x;", "invalid value \"x\""),
        ("", "vhost_traffic_status_histogram_buckets 1 0.5;", "invalid value \"0.5\""),
        ("", "vhost_traffic_status_histogram_buckets 0.0001;", "invalid value \"0.0001\""),
        ("", "vhost_traffic_status_limit_traffic in;", "invalid value \"in\""),
        ("", "vhost_traffic_status_limit_traffic speed:1k;", "invalid value \"speed:1k\""),
        ("", "vhost_traffic_status_limit_traffic in:1k 200;", "invalid code \"200\""),
        ("", "vhost_traffic_status_limit_traffic_by_set_key UG@a@b in:1k;", "cannot be limited"),
        ("", "vhost_traffic_status_limit_traffic_by_set_key a in:1k;", "invalid value \"a\""),
        ("", "vhost_traffic_status_set_by_filter a server/a/inBytes;", "invalid variable name \"a\""),
        ("", "vhost_traffic_status_set_by_filter $a server/a/weight;", "invalid value \"server/a/weight\""),
        ("", "vhost_traffic_status_set_by_filter $a cache/a/cacheHit;", "are no variables"),
        ("vhost_traffic_status_filter_max_node x;", "", "invalid value \"x\""),
        ("vhost_traffic_status_dump /tmp/a;", "", "unknown directive \"vhost_traffic_status_dump\""),
    ] {
        let conf =
            format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; location / {{ {location} }} }} }}");
        let said = refusal_of(&conf);
        assert!(said.contains(expected), "{http} {location}: {said}");
    }
}
