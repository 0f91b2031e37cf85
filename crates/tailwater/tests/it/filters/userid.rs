//! `userid`

use tw_testkit::Server;

use crate::support::{get, refusal, request, server, start, start_server};

/// Sixteen bytes of 1 to 16, in base64 and as its variable on a little-endian machine.
const ID: &str = "AQIDBAUGBwgJCgsMDQ4PEA";
const DIGITS: &str = "0403020108070605 0C0B0A09100F0E0D";

fn cookie(server: &Server, target: &str, cookie: &str) -> Option<String> {
    request(server, &format!("GET {target}"), &[&format!("Cookie: {cookie}")])
        .field("Set-Cookie")
        .map(str::to_owned)
}

#[test]
fn cookies_are_set_once() {
    let server = start(
        server(),
        "log_format s '$uri got $uid_got set $uid_set'; access_log logs/access.log s;
         server { listen 127.0.0.1:{port}; userid on; root html;
             location /plain { } location /off { userid off; } location /log { userid log; }
             location /v1 { userid v1; userid_service 5; }
             location /all { userid_name me; userid_domain example.com; userid_path /p; userid_p3p 'policyref=\"/x\"';
                 userid_expires 1d; userid_flags secure httponly samesite=lax; userid_service 1; }
             location /max { userid_expires max; userid_domain none; userid_p3p none; userid_flags off; }
             location /mark { userid_mark t; } location /reset { set $uid_reset log; }
             location /noreset { set $uid_reset 0; } location /page { error_page 404 =200 /plain; } }",
    );
    let response = get(&server, "/plain");
    let set = response.field("Set-Cookie").unwrap();
    let id = set.strip_prefix("uid=").unwrap().strip_suffix("; path=/").unwrap();
    assert!(id.len() == 24 && id.ends_with("=="), "{set}");
    assert!(id.starts_with("fwAAA"), "begins with 127.0.0.1: {set}");
    assert_ne!(get(&server, "/plain").field("Set-Cookie"), Some(set));
    assert_eq!(get(&server, "/page").values("Set-Cookie").count(), 1);

    assert!(get(&server, "/v1").field("Set-Cookie").unwrap().starts_with("uid=BQAAA"));
    let response = get(&server, "/all");
    let set = response.field("Set-Cookie").unwrap();
    assert!(set.starts_with("me=AAAAA"), "{set}");
    let (before, after) = set.split_once(" GMT; ").unwrap();
    assert!(before.contains("==; expires="), "{set}");
    assert_eq!(after, "domain=example.com; path=/p; secure; httponly; samesite=lax");
    assert_eq!(response.field("P3P"), Some("policyref=\"/x\""));
    let max = get(&server, "/max");
    let set = max.field("Set-Cookie").unwrap();
    assert!(set.ends_with("==; expires=Thu, 31-Dec-37 23:55:55 GMT; path=/"), "{set}");
    assert_eq!(max.field("P3P"), None);
    assert!(get(&server, "/mark").field("Set-Cookie").unwrap().ends_with("t=; path=/"));
    for target in ["/off", "/log"] {
        assert_eq!(get(&server, target).field("Set-Cookie"), None, "{target}");
    }

    for (target, sent, expected) in [
        ("/plain", format!("uid={ID}=="), None),
        ("/plain", format!("a=b; UID = {ID}"), None),
        ("/plain", format!("uid={ID}t= and more"), None),
        ("/noreset", format!("uid={ID}=="), None),
        ("/mark", format!("uid={ID}t="), None),
        ("/mark", format!("uid={ID}=="), Some(format!("uid={ID}t=; path=/"))),
        ("/mark", format!("uid={ID}"), Some(format!("uid={ID}t=; path=/"))),
    ] {
        assert_eq!(cookie(&server, target, &sent), expected, "{target} {sent}");
    }
    for (target, sent) in [
        ("/plain", format!("uid={}", &ID[1..])),
        ("/plain", "uid=".to_owned()),
        ("/plain", "uid=!!!!!!!!!!!!!!!!!!!!!!!!".to_owned()),
        ("/plain", "uid=AAAAAAAAAAAAAAAAAAAAAA==".to_owned()),
        ("/plain", "other=x".to_owned()),
        ("/reset", format!("uid={ID}==")),
        ("/all", format!("uid={ID}==")),
    ] {
        let set = cookie(&server, target, &sent).unwrap();
        assert!(!set.contains(ID), "{target} {sent}: {set}");
    }
    let digits = DIGITS.replace(' ', "");
    for line in [
        "client sent too short userid cookie \"uid=QIDBAUGBwgJCgsMDQ4PEA\"".to_owned(),
        "client sent invalid userid cookie \"uid=!!!!!!!!!!!!!!!!!!!!!!!!\"".to_owned(),
    ] {
        server.wait_error_log(&line).unwrap();
        assert_eq!(server.error_log().matches(&line).count(), 1, "{line}\n{}", server.error_log());
    }
    let lines = server.access_log(23).unwrap();
    for line in [format!("/plain got uid={digits} set -"), format!("/mark got uid={digits} set uid={digits}")]
    {
        assert!(lines.contains(&line), "{line}\n{lines:#?}");
    }
    assert!(lines.iter().any(|l| l.starts_with("/plain got - set uid=0100007F")), "{lines:#?}");
    assert!(lines.iter().any(|l| l.starts_with("/off got - set -")), "{lines:#?}");
}

#[test]
fn ids_differ_and_variables_have_their_values() {
    let server = start_server(
        server(),
        "userid on; add_header X-Set $uid_set; add_header X-Got $uid_got; location / { return 200; }
         location /map { set $uid_reset 1; return 200; }",
    );
    let first = get(&server, "/");
    let second = get(&server, "/");
    let word = |text: &str, at: usize| text[4 + at * 8..12 + at * 8].to_owned();
    let a = first.field("X-Set").unwrap();
    let b = second.field("X-Set").unwrap();
    assert_eq!((word(a, 0), word(a, 2)), (word(b, 0), word(b, 2)));
    assert_ne!(word(a, 3), word(b, 3));
    let sent = first.field("Set-Cookie").unwrap().split(';').next().unwrap();
    let again = request(&server, "GET /", &[&format!("Cookie: {sent}")]);
    assert_eq!(
        (again.field("X-Got"), again.field("X-Set"), again.field("Set-Cookie")),
        (Some(a), None, None)
    );
    let reset = request(&server, "GET /map", &[&format!("Cookie: {sent}")]);
    assert!(reset.field("X-Set").is_some_and(|set| set != a) && reset.field("Set-Cookie").is_some());
}

#[test]
fn malformed_directives_are_refused() {
    for (text, said) in [
        ("userid yes;", "invalid value \"yes\""),
        ("userid on; userid off;", "\"userid\" directive is duplicate"),
        (
            "userid_mark ab;",
            "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"",
        ),
        (
            "userid_mark '-';",
            "\"userid_mark\" directive value must be \"off\" or a single letter, digit or \"=\"",
        ),
        ("userid_expires soon;", "\"userid_expires\" directive invalid value"),
        ("userid_flags secret;", "invalid value \"secret\""),
        ("userid_service x;", "\"userid_service\" directive invalid number"),
        ("userid_name a; userid_name b;", "\"userid_name\" directive is duplicate"),
        ("set $uid_got x;", "the duplicate \"uid_got\" variable"),
    ] {
        let found_text = refusal(text);
        assert!(found_text.contains(said), "{text}: {found_text}");
    }
}
