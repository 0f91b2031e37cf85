//! `limit_req`

use tw_testkit::wait;

use crate::support::reload::reload;
use crate::support::{get, page, refusal_of, server, start};

/// Error of a server with this content of its `http` block, and this `server` block.
fn refused(http: &str, server: &str) -> String {
    refusal_of(&format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; {server} }} }}"))
}

#[test]
fn excess_is_delayed_or_refused() {
    let server = start(
        server(),
        "limit_req_zone $arg_k zone=slow:1m rate=1r/m; limit_req_zone $arg_k zone=fast:1m rate=10r/s;
         limit_req_zone $arg_other zone=other:1m rate=1r/m;
         log_format s '$uri $limit_req_status'; access_log logs/access.log s;
         server { listen 127.0.0.1:{port}; error_log logs/error.log info;
             location /none { limit_req zone=slow; return 204; }
             location /here { limit_req zone=slow; try_files /x =204; }
             location /status { limit_req zone=slow; limit_req_status 429; limit_req_log_level warn; try_files /x =204; }
             location /dry { limit_req zone=slow; limit_req_dry_run on; try_files /x =204; }
             location /burst { limit_req zone=slow burst=2 nodelay; try_files /x =204; }
             location /delay { limit_req zone=fast burst=5; try_files /x =204; }
             location /some { limit_req zone=fast burst=5 delay=2; try_files /x =204; }
             location /drydelay { limit_req zone=slow burst=5; limit_req_dry_run on; try_files /x =204; }
             location /both { limit_req zone=slow burst=9 nodelay; limit_req zone=other; try_files /x =204; }
             location /again { limit_req zone=slow; error_page 404 /here; try_files /x =404; } }",
    );
    let statuses = |target: &str, count: usize| -> Vec<u16> {
        (0..count).map(|_| get(&server, target).status).collect()
    };
    for (target, expected) in [
        // `return` answers before limits are asked, and an empty key counts nowhere.
        ("/none?k=none", &[204, 204][..]),
        ("/here", &[204, 204]),
        ("/here?k=1", &[204, 503, 503]),
        ("/here?k=2", &[204, 503]),
        ("/status?k=1", &[429]),
        ("/dry?k=1", &[204, 204]),
        ("/burst?k=3", &[204, 204, 204, 503]),
        ("/both?k=4&other=x", &[204, 503, 503]),
        // A request that one zone refuses is not counted in the other one.
        ("/burst?k=4", &[204, 204, 503]),
        ("/again?k=5", &[204, 503]),
        ("/drydelay?k=1", &[204, 204]),
    ] {
        assert_eq!(statuses(target, expected.len()), expected, "{target}");
    }
    assert_eq!(statuses("/some?k=s", 3), [204, 204, 204]);
    // Of three requests that arrive together, the second and the third are delayed, as the logs say, unless the machine
    // pauses the server for the tenth of a second after which they need no delay.
    let mut attempt = 0;
    let are_delayed = || {
        attempt += 1;
        let target = format!("/delay/{attempt}");
        let mut client = server.connect().unwrap();
        client.send(format!("GET {target}?k={attempt} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(3)).unwrap();
        assert!((0..3).all(|_| client.read_response().unwrap().status == 204));
        let mut said = Vec::new();
        wait::until(wait::TIMEOUT, || {
            let lines = server.access_log(1).unwrap().into_iter();
            said = lines
                .filter_map(|line| line.strip_prefix(&target)?.strip_prefix(' ').map(str::to_owned))
                .collect();
            said.len() == 3
        }) && said == ["PASSED", "DELAYED", "DELAYED"]
    };
    assert!(wait::until(wait::TIMEOUT, are_delayed), "{:#?}", server.access_log(1));
    for (line, count) in [
        ("[error] limiting requests, excess: 1.000 by zone \"slow\", client: 127.0.0.1", 3),
        ("[warn] limiting requests, excess: 1.000 by zone \"slow\"", 1),
        ("[error] limiting requests, dry run, excess: 1.000 by zone \"slow\"", 2),
        ("[error] limiting requests, excess: 1.000 by zone \"other\"", 2),
        ("[warn] delaying request, excess: ", 2),
        ("[warn] delaying request, dry run, excess: ", 2),
    ] {
        let (level, text) = line.split_at(line.find(' ').unwrap());
        // The time between two requests counts.
        let (before, behind) = text.split_once("1.000").unwrap_or((text, ""));
        let is_said = |l: &&str| l.contains(level) && l.contains(before) && l.contains(behind);
        // Each log is written by a thread of its own, so this one may lag behind the other.
        let find = || server.error_log().lines().filter(is_said).count();
        let is_enough = || find() >= count;
        assert!(wait::until(wait::TIMEOUT, is_enough), "{line}: {}\n{}", find(), server.error_log());
    }
    let lines = server.access_log(30).unwrap();
    for line in [
        "/none -",
        "/here PASSED",
        "/here REJECTED",
        "/dry REJECTED_DRY_RUN",
        "/some PASSED",
        "/drydelay DELAYED_DRY_RUN",
    ] {
        assert!(lines.iter().any(|l| l == line), "{line}\n{lines:#?}");
    }
}

#[test]
fn zones_outlive_a_reload_and_are_measured() {
    let http = |rate: &str, size: &str| {
        format!(
            "http {{ limit_req_zone $arg_k zone=one:{size} rate={rate}; server {{ listen 127.0.0.1:{{port}};
                 location / {{ limit_req zone=one; try_files /x =204; }} location = /m {{ metrics; }} }} }}"
        )
    };
    let mut server = server().start(&http("1r/m", "1m")).unwrap();
    assert_eq!(get(&server, "/?k=1").status, 204);
    assert_eq!(get(&server, "/?k=1").status, 503);
    let (_, text) = page(&server, "/m");
    for line in ["limit_req_entries{zone=\"one\"} 1", "limit_req_rejected_total{zone=\"one\"} 1"] {
        assert!(text.contains(&format!("tailwater_{line}\n")), "{line}\n{text}");
    }
    let mut reload = |conf: &str, said: &str| {
        reload(&mut server, conf);
        server.wait_error_log(said).unwrap();
    };
    reload(&http("2r/m", "1m"), "reconfiguring");
    reload(
        &http("1r/m", "1m").replace("$arg_k", "$arg_other"),
        "limit_req \"one\" uses the \"$arg_other\" key while previously it used the \"$arg_k\" key",
    );
    assert_eq!(get(&server, "/?k=1").status, 503, "the count is still there");
}

#[test]
fn all_loops_count_together() {
    let server = server()
        .start(
            "worker_processes 4; http { limit_req_zone $arg_k zone=one:4m rate=1r/m; limit_conn_zone $arg_k zone=all:4m;
             server { listen 127.0.0.1:{port}; limit_conn all 1000;
                 location / { limit_req zone=one burst=9 nodelay; try_files /x =204; } } }",
        )
        .unwrap();
    let served: usize = std::thread::scope(|scope| {
        let clients =
            (0..8).map(|_| scope.spawn(|| (0..10).filter(|_| get(&server, "/?k=1").status == 204).count()));
        clients.collect::<Vec<_>>().into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(served, 10, "one and a burst of nine");
}

#[test]
fn closed_client_connection_ends_the_delay() {
    let server = start(
        server().file("html/large", vec![b'x'; 1 << 20]).file("conf/users", ""),
        "limit_req_zone $uri zone=slow:1m rate=1r/m;
         server { listen 127.0.0.1:{port}; root html; location /now { return 200 $connections_active; }
             location /delay { limit_req zone=slow burst=5; try_files /x =204; }
             location /large { limit_rate 10; } location /auth { auth_basic a; auth_basic_user_file users; auth_delay 1h; } }",
    );
    assert_eq!(get(&server, "/delay").status, 204);
    // Bytes behind the request, which are not read before it is answered, do not hide that the client has gone.
    let targets = ["/delay", "/large", "/auth"];
    for (target, behind) in targets.iter().flat_map(|target| [(target, ""), (target, "GET /next HTTP/1.1")]) {
        let mut client = server.connect().unwrap();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        assert!(wait::until(wait::TIMEOUT, || page(&server, "/now").1 == "2"), "{target}");
        client.send(behind).unwrap();
        drop(client);
        assert!(wait::until(wait::TIMEOUT, || page(&server, "/now").1 == "1"), "{target}");
    }
    server.wait_error_log("client prematurely closed connection, client: 127.0.0.1").unwrap();
}

#[test]
fn keys_of_more_than_65535_bytes_are_not_limited() {
    let server = start(
        server(),
        "limit_req_zone $http_k zone=one:1m rate=1r/m; large_client_header_buffers 4 100k; client_header_buffer_size 100k;
         server { listen 127.0.0.1:{port}; location / { limit_req zone=one; try_files /x =204; } }",
    );
    let status =
        |len: usize| crate::support::request(&server, "GET /", &[&format!("K: {}", "k".repeat(len))]).status;
    assert_eq!([status(65_535), status(65_535)], [204, 503]);
    assert_eq!([status(65_536), status(65_536)], [204, 204]);
    server.wait_error_log("the value of the \"$http_k\" key is more than 65535 bytes: \"kkk").unwrap();
}

#[test]
fn malformed_directives_are_refused() {
    let zone = "limit_req_zone $uri zone=a:1m rate=1r/s;";
    for (http, server, said) in [
        ("limit_req_zone $uri zone=a:31k rate=1r/s;", "", "zone \"zone=a:31k\" is too small"),
        ("limit_req_zone $uri zone=a rate=1r/s;", "", "invalid zone size \"zone=a\""),
        ("limit_req_zone $uri zone=a:1x rate=1r/s;", "", "invalid zone size \"zone=a:1x\""),
        ("limit_req_zone $uri zone=:1m rate=1r/s;", "", "\"limit_req_zone\" must have \"zone\" parameter"),
        ("limit_req_zone $uri zone=a:1m rate=0r/s;", "", "invalid rate \"rate=0r/s\""),
        ("limit_req_zone $uri zone=a:1m rate=1r/h;", "", "invalid rate \"rate=1r/h\""),
        ("limit_req_zone $uri zone=a:1m sync;", "", "invalid parameter \"sync\""),
        ("limit_req_zone $uri zone=a:1m;", "", "invalid number of arguments in \"limit_req_zone\" directive"),
        ("limit_req_zone $nothing zone=a:1m rate=1r/s;", "", "unknown \"nothing\" variable"),
        (
            &[zone, "limit_req_zone $args zone=a:1m rate=1r/s;"].concat(),
            "",
            "limit_req_zone \"a\" is already bound to key \"$uri\"",
        ),
        (
            &[zone, "limit_req_zone $uri zone=a:2m rate=1r/s;"].concat(),
            "",
            "the size 2097152 of shared memory zone \"a\" conflicts with already declared size 1048576",
        ),
        (
            &[zone, "limit_conn_zone $uri zone=a:1m;"].concat(),
            "",
            "the shared memory zone \"a\" is already declared for a different use",
        ),
        (zone, "limit_req zone=b;", "zero size shared memory zone \"b\""),
        (zone, "limit_req burst=1;", "\"limit_req\" must have \"zone\" parameter"),
        (zone, "limit_req zone=a burst=0;", "invalid burst value \"burst=0\""),
        (zone, "limit_req zone=a delay=x;", "invalid delay value \"delay=x\""),
        (zone, "limit_req zone=a fast;", "invalid parameter \"fast\""),
        (zone, "limit_req zone=a; limit_req zone=a burst=1;", "\"limit_req\" directive is duplicate"),
        (zone, "limit_req_status 399;", "value must be between 400 and 599"),
        (zone, "limit_req_status 600;", "value must be between 400 and 599"),
        (zone, "limit_req_log_level crit;", "invalid value \"crit\""),
    ] {
        let text = refused(http, server);
        assert!(text.contains(said), "{http} {server}: {text}");
    }
}

#[test]
fn refusal_says_when_to_try_again() {
    let server = start(
        server().file("html/sorry.html", "sorry"),
        "limit_req_zone $arg_k zone=slow:1m rate=2r/m;
         limit_req_status 429;
         server { listen 127.0.0.1:{port}; root html;
             location /slow { limit_req zone=slow; try_files /x =204; }
             location /unavailable { limit_req zone=slow; limit_req_status 503; try_files /x =204; }
             location /burst { limit_req zone=slow burst=3 nodelay; try_files /x =204; }
             location /teapot { limit_req zone=slow; limit_req_status 418; try_files /x =204; }
             location /off { limit_req zone=slow; limit_req_retry_after off; try_files /x =204; }
             location /own { limit_req zone=slow; add_header Retry-After 7 always; try_files /x =204; }
             location /dry { limit_req zone=slow; limit_req_dry_run on; try_files /x =503; }
             location /page { limit_req zone=slow; error_page 429 /sorry.html; try_files /x =204; }
             location /fine { limit_req zone=slow; error_page 429 =200 /sorry.html; try_files /x =204; }
             location /named { limit_req zone=slow; error_page 429 = @busy; try_files /x =204; }
             location @busy { return 503 busy; } }",
    );
    // A request each 30.3 seconds, of which some may have passed since the first one.
    let is_wait = |field: Option<&str>| {
        field.and_then(|field| field.parse().ok()).is_some_and(|seconds: u32| (10..=31).contains(&seconds))
    };
    for (at, (target, requests, status, expected)) in [
        ("/slow", 2, 429, true),
        ("/unavailable", 2, 503, true),
        ("/burst", 5, 429, true),
        ("/page", 2, 429, true),
        ("/named", 2, 503, true),
        ("/teapot", 2, 418, false),
        ("/off", 2, 429, false),
        ("/dry", 2, 503, false),
        ("/fine", 2, 200, false),
    ]
    .into_iter()
    .enumerate()
    {
        let target = format!("{target}?k={at}");
        for _ in 1..requests {
            assert_eq!(get(&server, &target).field("Retry-After"), None, "{target}");
        }
        let response = get(&server, &target);
        assert_eq!(response.status, status, "{target}");
        let field = response.field("Retry-After");
        assert_eq!(is_wait(field), expected, "{target} {field:?}");
        assert!(expected || field.is_none(), "{target} {field:?}");
    }
    assert_eq!(get(&server, "/own?k=own").status, 204);
    let own = get(&server, "/own?k=own");
    assert_eq!((own.status, own.field("Retry-After")), (429, Some("7")));
    let refused = refused("", "limit_req_retry_after maybe;");
    assert!(refused.contains("invalid value \"maybe\" in \"limit_req_retry_after\" directive"), "{refused}");
}

/// Origin whose responses cost what the path says, and a page of their own of nothing.
fn costly() -> std::net::SocketAddr {
    tw_testkit::origin::origin(|mut conn| {
        while let Some(head) = conn.head() {
            let cost = head.split(['/', ' ', '?']).nth(2).unwrap_or_default().to_owned();
            conn.answer(&format!("X-Tokens: {cost}\r\n"), "answer");
        }
    })
}

#[test]
fn cost_is_charged_when_the_request_is_over() {
    let origin = costly();
    // On one loop, the log phase of a request comes before the next request.
    let server = server()
        .start(&format!(
            "worker_processes 1; http {{ limit_req_zone $arg_k zone=tokens:1m rate=1r/m; limit_req_zone $arg_k zone=bytes:1m rate=1r/m;
             limit_req_zone $arg_k zone=fast:1m rate=1000r/s;
             limit_req_status 429; log_format s '$uri $status $limit_req_status'; access_log logs/access.log s;
             server {{ listen 127.0.0.1:{{port}}; error_log logs/error.log warn; http2 on;
                 location / {{ limit_req zone=tokens burst=100 nodelay cost=$upstream_http_x_tokens; proxy_pass http://{origin}; }}
                 location /dry/ {{ limit_req zone=tokens cost=$upstream_http_x_tokens; limit_req_dry_run on;
                     proxy_pass http://{origin}/; }}
                 location /bytes {{ limit_req zone=bytes cost=$body_bytes_sent; try_files /x =404; error_page 404 /sorry; }}
                 location /sorry {{ return 404 nothing; }}
                 location /fast/ {{ limit_req zone=fast cost=$upstream_http_x_tokens; proxy_pass http://{origin}/; }}
                 location /both/ {{ limit_req zone=tokens cost=$upstream_http_x_tokens; limit_req zone=bytes burst=1 nodelay;
                     proxy_pass http://{origin}/; }}
                 location = /metrics {{ metrics; }} }} }}"
        ))
        .unwrap();
    let status = |target: &str| get(&server, target).status;
    // A request is admitted until the earlier ones have cost more than 100.
    for (target, expected) in [
        ("/60?k=1", 200),
        ("/40?k=1", 200),
        ("/500?k=1", 200),
        ("/1?k=1", 429),
        // Other keys have not been charged, and an empty key is not counted.
        ("/101?k=2", 200),
        ("/1?k=2", 429),
        ("/1000?k=", 200),
        ("/1000?k=", 200),
        // A value that is no number costs nothing.
        ("/many?k=3", 200),
        ("/-5?k=3", 200),
        ("/?k=3", 200),
        ("/99999999999999999999?k=3", 200),
        ("/1?k=3", 429),
        ("/dry/7?k=4", 200),
        ("/dry/7?k=4", 200),
        // The other location has another burst for the same bucket, which owes 14.
        ("/both/1?k=4", 429),
        // A request that one limit refuses is not counted by the other: two of three pass.
        ("/both/0?k=5", 200),
        ("/both/0?k=5", 200),
        ("/both/0?k=5", 429),
        // The cost is computed from the error page that was sent in the end.
        ("/bytes?k=6", 404),
        ("/bytes?k=6", 429),
    ] {
        assert_eq!(status(target), expected, "{target}");
    }
    for line in [
        "[error] limiting requests, excess: ",
        "[warn] cost \"many\" for limit_req zone \"tokens\" is no number",
        "[warn] cost \"-5\" for limit_req zone \"tokens\" is no number",
    ] {
        let (level, text) = line.split_at(line.find(' ').unwrap());
        let is_said =
            || server.error_log().lines().any(|l| l.contains(level) && l.contains(text.trim_start()));
        assert!(wait::until(wait::TIMEOUT, is_said), "{line}\n{}", server.error_log());
    }
    let response = get(&server, "/1?k=1");
    let seconds: u64 = response.field("Retry-After").unwrap().parse().unwrap();
    assert!(
        (31_000..31_500).contains(&seconds),
        "500 beyond the burst at 16 thousandths a second: {seconds}"
    );
    // Debt runs off at the rate of the zone.
    assert_eq!(status("/fast/300?k=7"), 200);
    assert!(wait::until(wait::TIMEOUT, || status("/fast/0?k=7") == 200));
    // A client that goes away pays, too, as does one over HTTP/2.
    assert_eq!(crate::support::http2::connect(&server).get("/200?k=8").unwrap().status, 200);
    assert_eq!(status("/1?k=8"), 429);
    let lines = server.access_log(5).unwrap();
    assert_eq!(lines[3], "/1 429 REJECTED");
    let is_dry = || server.access_log(15).unwrap().contains(&"/dry/7 200 REJECTED_DRY_RUN".to_owned());
    assert!(is_dry(), "{:?}", server.access_log(15));
    let (_, text) = page(&server, "/metrics");
    assert!(text.contains("tailwater_limit_req_cost_total{zone=\"bytes\"} 7\n"), "{text}");
}

#[test]
fn cost_that_cannot_work_is_refused() {
    const ZONE: &str = "limit_req_zone $arg_k zone=z:1m rate=1r/s;";
    for (limit, expected) in [
        ("limit_req zone=z cost=5;", "invalid cost value \"5\""),
        ("limit_req zone=z cost=;", "invalid cost value \"\""),
        ("limit_req zone=z cost=$arg_c delay=5;", "\"delay\" cannot be combined with \"cost\""),
        ("limit_req zone=z cost=$nothing;", "unknown \"nothing\" variable"),
    ] {
        let error = refused(ZONE, limit);
        assert!(error.contains(expected), "{limit}: {error}");
    }
}
