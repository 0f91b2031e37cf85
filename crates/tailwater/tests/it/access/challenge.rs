//! `challenge`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use tw_http::base64;
use tw_testkit::dns::{Data, DnsServer, code, kind};
use tw_testkit::http2::Http2;
use tw_testkit::origin::origin;
use tw_testkit::{Response, Server, Signal, wait};

use crate::support::http2::start_http2;
use crate::support::http3::start_http3;
use crate::support::metrics::metric;
use crate::support::program::browse;
use crate::support::upgrade::upgrade;
use crate::support::{get, refusal, request, server, start, start_server};

/// Fields of a browser that opens a page.
const BROWSER: [&str; 2] = ["Accept: text/html,*/*;q=0.8", "User-Agent: Browser/1"];
/// Addresses of clients in `X-Real-IP`, status in a field, and metrics.
const COMMON: &str = "set_real_ip_from 127.0.0.0/8; real_ip_header X-Real-IP; challenge_difficulty 8; \
    add_header X-Status $challenge_status always; location = /metrics { challenge off; metrics; }";

fn open(server: &Server, target: &str, fields: &[&str]) -> Response {
    request(server, &format!("GET {target}"), &[&BROWSER[..], fields].concat())
}

fn status(response: &Response) -> &str {
    response.field("X-Status").unwrap_or("")
}

/// Value of an attribute in a page.
fn attribute<'p>(page: &'p str, name: &str) -> &'p str {
    let value = page.split_once(&format!("{name}=\"")).unwrap_or_else(|| panic!("{page}")).1;
    value.split_once('"').unwrap().0
}

/// The answer to the puzzle of a page.
fn solve(page: &str) -> String {
    let puzzle = attribute(page, "data-puzzle");
    let bits = attribute(page, "data-bits").parse().unwrap();
    answer(puzzle, |zeros: u32| zeros >= bits)
}

/// An answer whose hash has a number of zero bits that `fits`.
fn answer(puzzle: &str, fits: impl Fn(u32) -> bool) -> String {
    let zeros = |number: &u64| {
        let hash = digest(&SHA256, &[puzzle.as_bytes(), &number.to_be_bytes()].concat());
        u64::from_be_bytes(*hash.as_ref().first_chunk().unwrap()).leading_zeros()
    };
    let number = (0..).find(|number| fits(zeros(number))).unwrap();
    format!("Challenge-Answer: {puzzle} {number:016x}")
}

/// `Cookie` of a response.
fn cookie(response: &Response) -> String {
    let set = response.field("Set-Cookie").unwrap_or_else(|| panic!("{}", response.text()));
    format!("Cookie: {}", set.split(';').next().unwrap())
}

/// `Cookie` of a client that has solved a puzzle.
fn pass(server: &Server, target: &str, fields: &[&str]) -> String {
    let answer = solve(&open(server, target, fields).text());
    cookie(&open(server, target, &[&[&*answer], fields].concat()))
}

#[test]
fn solved_challenge_lets_a_client_in() {
    let server = start_server(server().file("html/a.html", "content"), &format!("{COMMON} challenge on;"));
    let asked = open(&server, "/a.html?b=c", &[]);
    assert_eq!((asked.status, status(&asked)), (403, "asked"));
    assert_eq!(asked.field("Cache-Control"), Some("no-store"));
    assert_eq!(asked.field("Content-Type"), Some("text/html; charset=utf-8"));
    let policy = asked.field("Content-Security-Policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    let page = asked.text();
    assert!(page.contains("<strong>localhost</strong>") && !page.contains("content</"), "{page}");

    let solved = open(&server, "/a.html?b=c", &[&solve(&page)]);
    assert_eq!((solved.status, status(&solved), solved.text()), (204, "solved", String::new()));
    assert_eq!(solved.field("Cache-Control"), Some("no-store"));
    let set = solved.field("Set-Cookie").unwrap();
    assert!(
        set.starts_with("tailwater_challenge=")
            && set.ends_with("; Path=/; Max-Age=86400; HttpOnly; SameSite=Lax"),
        "{set}"
    );

    let cookie = cookie(&solved);
    let passed = open(&server, "/a.html", &["Cookie: a=b", &cookie]);
    assert_eq!((passed.status, status(&passed), passed.text()), (200, "passed", "content".to_owned()));
    let posted = request(&server, "POST /a.html", &["User-Agent: Browser/1", &cookie]);
    assert_eq!((posted.status, status(&posted)), (405, "passed"));
    for (result, expected) in [("asked", 1), ("solved", 1), ("passed", 2), ("refused", 0)] {
        assert_eq!(metric(&server, &format!("challenge_requests_total{{result=\"{result}\"}}")), expected);
    }
}

#[test]
fn other_requests_than_for_pages_are_refused() {
    let server = start_server(server().file("html/a.html", "content"), &format!("{COMMON} challenge on;"));
    for (line, fields) in [
        ("GET /a.html", &["Accept: */*"][..]),
        ("GET /a.html", &[]),
        ("POST /a.html", &["Accept: text/html"]),
        ("GET /a.html", &["Accept: text/html", "Sec-Fetch-Mode: cors"]),
    ] {
        let refused = request(&server, line, fields);
        assert_eq!((refused.status, status(&refused)), (403, "refused"), "{line} {fields:?}");
        assert_eq!(refused.field("Content-Type"), Some("text/plain"));
        assert!(refused.text().starts_with("This server asks for a proof of work."));
    }
    let head = request(&server, "HEAD /a.html", &["Sec-Fetch-Mode: navigate"]);
    assert_eq!((head.status, status(&head)), (403, "asked"));
}

#[test]
fn bad_answers_and_cookies_do_not_count() {
    let server = start_server(server().file("html/a.html", "content"), &format!("{COMMON} challenge on;"));
    let page = open(&server, "/a.html", &[]).text();
    let good = solve(&page);
    let puzzle = attribute(&page, "data-puzzle");
    let failures = |of: &str, cause: &str| {
        metric(&server, &format!("challenge_failures_total{{of=\"{of}\",cause=\"{cause}\"}}"))
    };
    let other = ["X-Real-IP: 192.0.2.1"];
    for (answer, fields, cause) in [
        (answer(puzzle, |zeros| zeros < 8), &[][..], "wrong"),
        (good.clone() + "0", &[], "malformed"),
        ("Challenge-Answer: ".to_owned(), &[], "malformed"),
        (good.replacen(puzzle, &"A".repeat(40), 1), &[], "signature"),
        (good.clone(), &other, "signature"),
        (good.clone(), &["Host: other.example"], "signature"),
    ] {
        let before = failures("answer", cause);
        let host = fields.iter().any(|field| field.starts_with("Host"));
        let failed = if host {
            let mut client = server.connect().unwrap();
            client
                .send(format!(
                    "GET /a.html HTTP/1.1\r\n{}\r\n{}\r\n{answer}\r\n\r\n",
                    fields[0],
                    BROWSER.join("\r\n")
                ))
                .unwrap();
            client.read_response().unwrap()
        } else {
            open(&server, "/a.html", &[&[&*answer], fields].concat())
        };
        assert_eq!((failed.status, status(&failed)), (403, "failed"), "{cause} {fields:?}");
        assert_eq!((failed.field("Set-Cookie"), failures("answer", cause)), (None, before + 1), "{cause}");
    }
    let cookie = pass(&server, "/a.html", &[]);
    let end = cookie.len() - 1;
    let changed = format!("{}{}", &cookie[..end], if cookie.ends_with('A') { 'B' } else { 'A' });
    for (cookie, fields, cause) in [
        (&*cookie, &other[..], "signature"),
        (&changed, &[], "signature"),
        (&cookie[..end], &[], "malformed"),
    ] {
        let before = failures("cookie", cause);
        let asked = open(&server, "/a.html", &[&[cookie], fields].concat());
        assert_eq!((asked.status, status(&asked)), (403, "asked"), "{cookie}");
        assert_eq!(failures("cookie", cause), before + 1, "{cause}");
    }
    let bad = "Cookie: tailwater_challenge=x";
    for (count, expected) in [(3, "passed"), (4, "asked")] {
        let cookies = [&vec![bad; count][..], &[&cookie]].concat();
        assert_eq!(status(&open(&server, "/a.html", &cookies)), expected, "{count}");
    }
    let other_browser = ["Accept: text/html", "User-Agent: Browser/2", &cookie];
    assert_eq!(status(&request(&server, "GET /a.html", &other_browser)), "asked");
    // Neighbours in a network of 24 bits share it.
    let near = pass(&server, "/a.html", &["X-Real-IP: 192.0.2.7"]);
    assert_eq!(open(&server, "/a.html", &[&near, "X-Real-IP: 192.0.2.200"]).status, 200);
}

#[test]
fn cookies_expire() {
    let server = start_server(
        server().file("html/a.html", "content"),
        &format!("{COMMON} challenge on; challenge_expires 1s; challenge_cookie pow;"),
    );
    let cookie = pass(&server, "/a.html", &[]);
    assert!(cookie.starts_with("Cookie: pow="), "{cookie}");
    let is_over = || status(&open(&server, "/a.html", &[&cookie])) == "asked";
    assert!(wait::until(wait::TIMEOUT, is_over));
    assert!(metric(&server, "challenge_failures_total{of=\"cookie\",cause=\"expired\"}") > 0);
}

#[test]
fn harder_challenge_needs_another_cookie() {
    let server = start_server(
        server().file("html/a.html", "content"),
        &format!(
            "{COMMON} challenge on; location /hard/ {{ challenge_difficulty $arg_bits; try_files /a.html =404; }}"
        ),
    );
    let easy = pass(&server, "/a.html", &[]);
    for (bits, expected, shown) in
        [("7", 200, ""), ("8", 200, ""), ("9", 403, "9"), ("x", 403, "18"), ("999", 403, "32")]
    {
        let response = open(&server, &format!("/hard/?bits={bits}"), &[&easy]);
        assert_eq!(response.status, expected, "{bits}");
        if expected == 403 {
            assert_eq!(attribute(&response.text(), "data-bits"), shown);
        }
    }
    let hard = pass(&server, "/hard/?bits=9", &[]);
    assert_eq!(open(&server, "/a.html", &[&hard]).status, 200);
    assert_eq!(metric(&server, "challenge_failures_total{of=\"cookie\",cause=\"difficulty\"}"), 3);
}

#[test]
fn clients_without_javascript_may_wait() {
    let server = start_server(
        server().file("html/a.html", "content"),
        &format!(
            "{COMMON} challenge on; challenge_no_script wait=1s; absolute_redirect off;
             location /strict/ {{ challenge_no_script refuse; try_files /a.html =404; }}"
        ),
    );
    let page = open(&server, "/a.html?x=1&y=%22", &[]).text();
    let target = attribute(&page, "<a href").replace("&amp;", "&");
    assert!(page.contains(&format!("content=\"2;url={}\"", target.replace('&', "&amp;"))), "{page}");
    assert!(target.starts_with("?x=1&y=%22&tailwater-challenge="), "{target}");
    let early = open(&server, &format!("/a.html{target}"), &[]);
    // The test may be slow.
    assert!(matches!((early.status, status(&early)), (403, "asked") | (303, "solved")), "{}", early.status);
    let mut waited = None;
    let has_waited = || {
        let response = open(&server, &format!("/a.html{target}"), &[]);
        let is_over = response.status == 303;
        waited = Some(response);
        is_over
    };
    assert!(wait::until(wait::TIMEOUT, has_waited));
    let waited = waited.unwrap();
    assert_eq!((waited.field("Location"), status(&waited)), (Some("/a.html?x=1&y=%22"), "solved"));
    let cookie = cookie(&waited);
    assert_eq!(open(&server, "/a.html", &[&cookie]).status, 200);
    let strict = open(&server, "/strict/", &[&cookie]);
    assert_eq!(strict.status, 403);
    assert!(strict.text().contains("This needs JavaScript"));
    // A token counts where waiting is allowed only, and for its client.
    assert_eq!(open(&server, &format!("/strict/{target}"), &[]).status, 403);
    assert_eq!(open(&server, &format!("/a.html{target}"), &["X-Real-IP: 192.0.2.1"]).status, 403);
    // The name of another server is no path of this one.
    let location = open(&server, &format!("//evil.example/a.html{target}"), &[]);
    assert_eq!(location.field("Location"), Some("/evil.example/a.html?x=1&y=%22"));
}

#[test]
fn exceptions_are_not_challenged() {
    let server = start_server(
        server().file("html/a.html", "content").file("html/robots.txt", "robots").file("html/feed", "feed"),
        &format!(
            "{COMMON} challenge on; challenge_except 192.0.2.0/24 =/feed; challenge_except /api/;
             location /api/ {{ try_files /none @inner; }} location @inner {{ try_files /a.html =404; }}
             location /for/ {{ challenge_for $arg_ask; try_files /a.html =404; }}
             location /.well-known/ {{ return 200 known; }} location /off/ {{ challenge off; return 200 off; }}"
        ),
    );
    for (target, fields, expected) in [
        ("/a.html", &[][..], (403, "asked")),
        ("/a.html", &["X-Real-IP: 192.0.2.9"], (200, "exempt")),
        ("/a.html", &["X-Real-IP: 192.0.3.9"], (403, "asked")),
        ("/robots.txt", &[], (200, "exempt")),
        ("/favicon.ico", &[], (404, "exempt")),
        ("/x/../a.html", &[], (403, "asked")),
        ("/.well-known/../a.html", &[], (403, "asked")),
        ("/feed", &[], (200, "exempt")),
        ("/feed/x", &[], (403, "asked")),
        // A decision still holds after an internal redirect.
        ("/api/x", &[], (200, "exempt")),
        ("/for/", &[], (200, "")),
        ("/for/?ask=0", &[], (200, "")),
        ("/for/?ask=1", &[], (403, "asked")),
    ] {
        let response = open(&server, target, fields);
        assert_eq!((response.status, status(&response)), expected, "{target} {fields:?}");
    }
    // `return` comes before the access phase.
    for target in ["/.well-known/x", "/off/"] {
        assert_eq!(open(&server, target, &[]).status, 200);
    }
    for (result, expected) in [("exempt_address", 1), ("exempt_path", 4)] {
        assert_eq!(metric(&server, &format!("challenge_requests_total{{result=\"{result}\"}}")), expected);
    }
}

#[test]
fn challenge_works_with_satisfy_and_error_pages() {
    let server = start_server(
        server().file("html/a.html", "content").file("html/e.html", "error"),
        &format!(
            "{COMMON} challenge on; error_page 403 404 /e.html;
             location /any/ {{ satisfy any; allow 192.0.2.0/24; deny all; try_files /a.html =404; }}
             location /open/ {{ satisfy any; try_files /a.html =404; }}
             location /all/ {{ allow 192.0.2.0/24; deny all; try_files /a.html =404; }}"
        ),
    );
    for (target, addr, expected) in [
        ("/any/", "192.0.2.1", (403, "asked")),
        ("/any/", "192.0.3.1", (403, "")),
        ("/open/", "192.0.3.1", (403, "asked")),
        ("/all/", "192.0.2.1", (403, "asked")),
        // The page of another error is not challenged.
        ("/all/", "192.0.3.1", (403, "")),
    ] {
        let field = format!("X-Real-IP: {addr}");
        let response = open(&server, target, &[&field]);
        assert_eq!((response.status, status(&response)), expected, "{target} {addr}");
        assert_eq!(response.text() == "error", expected == (403, ""));
    }
    for (addr, target, expected) in [
        // A solved puzzle is no login.
        ("192.0.3.1", "/any/", (403, "error")),
        ("192.0.2.1", "/any/", (200, "content")),
        ("192.0.3.1", "/open/", (200, "content")),
        ("192.0.3.1", "/all/", (403, "error")),
        ("192.0.3.1", "/none", (404, "error")),
    ] {
        let field = format!("X-Real-IP: {addr}");
        let cookie = pass(&server, "/open/", &[&field]);
        let response = open(&server, target, &[&cookie, &field]);
        assert_eq!((response.status, &*response.text()), expected, "{target}");
    }
}

#[test]
fn challenges_are_not_cached_and_subrequests_pass() {
    let server = start(
        server().file("html/a.html", "a<!--# include virtual=\"/part\" -->b"),
        &format!(
            "proxy_cache_path {{prefix}}/cache keys_zone=c:1m; server {{ listen 127.0.0.1:{{port}}; root html; {COMMON}
             challenge on; ssi on; location /part {{ return 200 part; }}
             location /cached/ {{ proxy_pass http://127.0.0.1:{{port1}}/; proxy_cache c; proxy_cache_valid any 1h; }} }}
             server {{ listen 127.0.0.1:{{port1}}; location / {{ return 200 origin; }} }}"
        ),
    );
    let asked = open(&server, "/cached/x", &[]);
    assert_eq!((asked.status, status(&asked)), (403, "asked"));
    let cookie = pass(&server, "/cached/x", &[]);
    for _ in 0..2 {
        let passed = open(&server, "/cached/x", &[&cookie]);
        assert_eq!((passed.status, &*passed.text()), (200, "origin"));
    }
    assert_eq!(open(&server, "/cached/x", &[]).status, 403);
    assert_eq!(open(&server, "/a.html", &[&cookie]).text(), "apartb");
}

#[test]
fn secret_is_kept_over_reloads_and_upgrades_and_shared_by_servers() {
    let conf = |content: &str| format!("{COMMON} challenge on; {content}");
    let html = || server().file("html/a.html", "content");
    let secret = "challenge_secret secret;";
    let with_secret = || html().file("conf/secret", "the same secret on both");
    let one = start_server(with_secret(), &conf(secret));
    let other = start_server(with_secret(), &conf(secret));
    let cookie = pass(&one, "/a.html", &[]);
    assert_eq!(open(&other, "/a.html", &[&cookie]).status, 200);
    let conf = |version: u8| {
        format!(
            "http {{ server {{ listen 127.0.0.1:{{port}}; root html; {} location /pid {{ return 200 $pid; }}
             location /version {{ return 200 {version}; }} }} }}",
            conf("")
        )
    };
    let mut random = html().with_master().start(&conf(1)).unwrap();
    assert_eq!(open(&random, "/a.html", &[&cookie]).status, 403);
    let cookie = pass(&random, "/a.html", &[]);
    random.write_conf(&conf(2)).unwrap();
    random.signal(Signal::HUP).unwrap();
    assert!(wait::until(wait::TIMEOUT, || get(&random, "/version").text() == "2"));
    assert_eq!(open(&random, "/a.html", &[&cookie]).status, 200);
    upgrade(&random, || get(&random, "/pid").text().parse().unwrap_or(0));
    assert_eq!(open(&random, "/a.html", &[&cookie]).status, 200);
}

/// Solves a challenge over another protocol: `get` returns status, text and cookie. Returns the cookie.
fn solve_over(mut get: impl FnMut(&[(&str, &str)]) -> (u16, String, Option<String>)) -> String {
    let browser = [("accept", "text/html"), ("user-agent", "Browser/1")];
    let (status, page, _) = get(&browser);
    assert_eq!(status, 403);
    let answer = solve(&page);
    let answer = answer.strip_prefix("Challenge-Answer: ").unwrap();
    let (status, _, set) = get(&[&browser[..], &[("challenge-answer", answer)]].concat());
    assert_eq!(status, 204);
    let set = set.unwrap();
    let cookie = set.split(';').next().unwrap();
    let (status, text, _) = get(&[&browser[..], &[("cookie", cookie)]].concat());
    assert_eq!((status, &*text), (200, "hello"));
    set
}

#[test]
fn challenge_works_over_http2_and_http3() {
    let content = "challenge on; challenge_difficulty 4;";
    let server = start_http3(content);
    let mut http3 = server.client();
    let set = solve_over(|fields| {
        let answer = http3.request("GET", "/a.txt", fields, b"");
        (answer.status, answer.text(), answer.field("set-cookie").map(str::to_owned))
    });
    assert!(set.ends_with("; Secure"), "{set}");
    let server = start_http2(content);
    let mut http2 = Http2::connect(server.addr()).unwrap();
    let set = solve_over(|fields| {
        let answer = http2.request("GET", "/a.txt", fields, b"").unwrap();
        (answer.status, answer.text(), answer.field("set-cookie").map(str::to_owned))
    });
    assert!(set.ends_with("; SameSite=Lax"), "{set}");
}

#[test]
fn agents_with_known_keys_are_not_challenged() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let url = |bytes: &[u8]| {
        let text = String::from_utf8(base64::encode(bytes)).unwrap();
        text.trim_end_matches('=').replace('+', "-").replace('/', "_")
    };
    let x = url(pair.public_key().as_ref());
    let members = format!("\"crv\":\"Ed25519\",\"kty\":\"OKP\",\"x\":\"{x}\"");
    let thumbprint = url(digest(&SHA256, format!("{{{members}}}").as_bytes()).as_ref());
    let server = start_server(
        server()
            .file("html/a.html", "content")
            .file("conf/keys.json", format!("{{\"keys\":[{{{members}}}]}}")),
        &format!("{COMMON} challenge on; challenge_agent_keys keys.json;"),
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let port = server.addr().port();
    let signed = |key: &str, query: &str| {
        let parameters = format!(
            "(\"@authority\" \"@method\" \"@path\" \"@query\" \"@target-uri\" \"accept\");created={now};expires={};keyid=\"{key}\";tag=\"web-bot-auth\"",
            now + 60
        );
        let authority = format!("localhost:{port}");
        let base = format!(
            "\"@authority\": {authority}\n\"@method\": GET\n\"@path\": /a%2ehtml\n\"@query\": {query}\n\
             \"@target-uri\": http://{authority}/a%2ehtml{query}\n\"accept\": */*\n\"@signature-params\": {parameters}"
        );
        let signature = String::from_utf8(base64::encode(pair.sign(base.as_bytes()).as_ref())).unwrap();
        let mut client = server.connect().unwrap();
        let head = format!(
            "GET /a%2ehtml?b HTTP/1.1\r\nHost: LocalHost:{port}\r\nAccept: */*\r\n\
             Signature-Input: sig={parameters}\r\nSignature: sig=:{signature}:\r\n\r\n"
        );
        client.send(head).unwrap();
        client.read_response().unwrap()
    };
    for (key, query, expected) in [
        (&*thumbprint, "?b", (200, "exempt")),
        (&thumbprint, "?c", (403, "refused")),
        ("unknown", "?b", (403, "refused")),
    ] {
        let response = signed(key, query);
        assert_eq!((response.status, status(&response)), expected, "{key} {query}");
    }
    for (cause, expected) in [("signature", 1), ("unknown_key", 1), ("expired", 0)] {
        let series = format!("challenge_failures_total{{of=\"agent\",cause=\"{cause}\"}}");
        assert_eq!(metric(&server, &series), expected, "{cause}");
    }
}

#[test]
fn crawlers_are_verified_by_their_names() {
    let dns = DnsServer::start(|query, out| {
        let name = &*query.name;
        let answer = query.answer();
        out.send(match (name, query.kind) {
            ("1.2.0.192.in-addr.arpa", kind::PTR) => {
                answer.record(name, 60, Data::Ptr("crawl-1.bot.example")).bytes()
            }
            // Claims the name of another address.
            ("2.2.0.192.in-addr.arpa", kind::PTR) => {
                answer.record(name, 60, Data::Ptr("crawl-1.bot.example")).bytes()
            }
            ("3.2.0.192.in-addr.arpa", kind::PTR) => {
                answer.record(name, 60, Data::Ptr("crawl-1.other.example")).bytes()
            }
            ("crawl-1.bot.example", kind::A) => query.address(60, [192, 0, 2, 1]),
            ("crawl-1.bot.example", kind::AAAA) => answer.bytes(),
            _ => answer.code(code::NXDOMAIN).bytes(),
        });
    });
    let server = start_server(
        server().file("html/a.html", "content"),
        &format!(
            "{COMMON} challenge on; resolver {}; challenge_except_bots .bot.example none.example;",
            dns.addr()
        ),
    );
    let accept = "Accept: text/html";
    for (addr, agent, expected) in [
        ("192.0.2.1", "Examplebot/1", (200, "exempt")),
        ("192.0.2.1", "Examplebot/1", (200, "exempt")),
        ("192.0.2.2", "Examplebot/1", (403, "asked")),
        ("192.0.2.3", "Examplebot/1", (403, "asked")),
        ("192.0.2.4", "Examplebot/1", (403, "asked")),
        ("192.0.2.4", "Examplebot/1", (403, "asked")),
        ("192.0.2.5", "Browser/1", (403, "asked")),
    ] {
        let addr = format!("X-Real-IP: {addr}");
        let agent = format!("User-Agent: {agent}");
        let response = request(&server, "GET /a.html", &[accept, &addr, &agent]);
        assert_eq!((response.status, status(&response)), expected, "{addr} {agent}");
    }
    for (name, expected) in [("1.2.0.192", 1), ("4.2.0.192", 1), ("5.2.0.192", 0)] {
        assert_eq!(dns.count(&format!("{name}.in-addr.arpa"), kind::PTR), expected, "{name}");
    }
    assert_eq!(metric(&server, "challenge_requests_total{result=\"exempt_bot\"}"), 2);
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        (
            "challenge maybe;",
            "invalid value \"maybe\" in \"challenge\" directive, it must be \"on\" or \"off\"",
        ),
        ("challenge_difficulty 33;", "invalid value \"33\""),
        ("challenge_difficulty x;", "invalid value \"x\""),
        ("challenge_except nowhere;", "invalid parameter \"nowhere\""),
        ("challenge_except_bots a..b;", "invalid parameter \"a..b\""),
        ("challenge_except_bots .;", "invalid parameter \".\""),
        (
            "challenge_agent_keys none;",
            "cannot load keys of agents \"none\": open() failed (2: No such file or directory)",
        ),
        ("challenge_agent_keys 'data:{}';", "invalid keys of agents \"data:...\": missing field `keys`"),
        ("challenge_secret data:short;", "challenge secret has fewer than 16 bytes"),
        ("challenge_secret none;", "cannot load challenge secret \"none\": open() failed"),
        ("challenge_cookie 'a b';", "invalid value \"a b\""),
        ("challenge_expires 0;", "\"challenge_expires\" directive invalid value"),
        ("challenge_address_prefix ipv4=33;", "invalid parameter \"ipv4=33\""),
        ("challenge_address_prefix 24;", "invalid parameter \"24\""),
        ("challenge_no_script wait=0;", "invalid parameter \"wait=0\""),
        ("challenge_no_script maybe;", "invalid parameter \"maybe\""),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
}

#[test]
fn browser_solves_the_challenge() {
    // The browser ends when a page has loaded: the outer one loads until the inner one has been shown.
    let is_shown = Arc::new(AtomicBool::new(false));
    let origin = origin({
        let is_shown = is_shown.clone();
        move |mut conn| {
            let head = conn.head().unwrap_or_default();
            if head.starts_with("GET /hold ") {
                if !wait::until(wait::TIMEOUT, || is_shown.load(Relaxed)) {
                    return;
                }
            } else {
                is_shown.store(true, Relaxed);
            }
            let image = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'></svg>";
            conn.answer("Content-Type: image/svg+xml\r\n", image);
        }
    });
    let outer = "<!doctype html><title></title><iframe src='/?a=b#c'></iframe>
        <img src=/hold onload=\"document.title = frames[0].document.querySelector('p')?.textContent\">";
    let inner = "<!doctype html><p></p><script>document.querySelector('p').textContent = location.search + location.hash</script><img src=/done>";
    let server = start(
        server().file("html/index.html", inner).file("html/outer.html", outer),
        &format!(
            "log_format all '$challenge_status $status $request_uri'; server {{ listen 127.0.0.1:{{port}}; root html;
             types {{ text/html html; }} challenge on; challenge_difficulty 12; location / {{ access_log logs/access.log all; }}
             location = /outer.html {{ challenge off; access_log off; }} location = /favicon.ico {{ access_log off; return 204; }}
             location = /hold {{ challenge off; access_log off; proxy_pass http://{origin}; }}
             location = /done {{ access_log off; proxy_pass http://{origin}; }} }}"
        ),
    );
    let Some(document) = browse(&format!("http://{}/outer.html", server.addr()), &[]) else { return };
    assert!(document.contains("<title>?a=b#c</title>"), "{document}");
    let expected = ["asked 403 /?a=b", "solved 204 /?a=b", "passed 200 /?a=b"];
    assert_eq!(server.access_log(3).unwrap(), expected);
}
