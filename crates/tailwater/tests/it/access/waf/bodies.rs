//! Rules for bodies of requests.

use super::{post, start_firewall};

const FORM: &str = "application/x-www-form-urlencoded";
const RULES: &str = "SecRule REQUEST_HEADERS:Content-Type \"@beginsWith application/json\" \"id:90,phase:1,pass,nolog,ctl:requestBodyProcessor=JSON\"
     SecRule REQUEST_HEADERS:Content-Type \"@endsWith xml\" \"id:91,phase:1,pass,nolog,ctl:requestBodyProcessor=XML\"
     SecRule REQBODY_ERROR \"!@eq 0\" \"id:92,phase:2,deny,status:400\"
     SecRule ARGS_POST|XML:/*|XML://@*|FILES \"@contains evil\" \"id:93,phase:2,deny\"";
const LOCATIONS: &str = "location / { trap echo; }";

#[test]
fn bodies_of_every_kind_are_parsed() {
    let server = start_firewall(RULES, LOCATIONS);
    let part = |name: &str, value: &str| {
        format!(
            "--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"{name}\"\r\n\r\n{value}\r\n--B--\r\n"
        )
    };
    let multipart = "multipart/form-data; boundary=B";
    for (media_type, body, status) in [
        (FORM, "a=1&b=%65vil".to_owned(), 403),
        (FORM, "a=1&b=good".to_owned(), 200),
        ("application/json", r#"{"a": [{"b": "\u0065vil"}]}"#.to_owned(), 403),
        ("application/json", r#"{"a": "good"}"#.to_owned(), 200),
        ("application/json", "{".to_owned(), 400),
        ("text/xml", "<a b='evil'/>".to_owned(), 403),
        ("text/xml", "<a>e<b/>vil</a>".to_owned(), 403),
        ("text/xml", "<a>good</a>".to_owned(), 200),
        (multipart, part("evil.php", "x"), 403),
        (multipart, part("good.txt", "evil"), 200),
        (multipart, "--B\r\nx".to_owned(), 400),
        ("text/plain", "evil".to_owned(), 200),
    ] {
        let response = post(&server, "/", media_type, &body);
        assert_eq!(response.status, status, "{media_type} {body}");
        if status == 200 {
            assert_eq!(response.text(), body);
        }
    }
}

#[test]
fn long_body_is_checked_whole_and_reaches_its_handler() {
    let server = start_firewall(
        RULES,
        "client_max_body_size 1m; client_body_buffer_size 16k; location / { trap echo; }",
    );
    for size in [5_000, 100_000] {
        let long = "a".repeat(size);
        assert_eq!(post(&server, "/", FORM, &format!("x={long}evil")).status, 403);
        let good = format!("x={long}");
        assert_eq!(post(&server, "/", FORM, &good).text(), good);
    }
}

#[test]
fn body_beyond_its_limit_is_refused_or_checked_in_part() {
    let limit = "SecRequestBodyLimit 100";
    let long = format!("x={}&y=evil", "a".repeat(200));
    let server = start_firewall(&format!("{limit}\n{RULES}"), LOCATIONS);
    assert_eq!(post(&server, "/", FORM, &long).status, 413);
    let server =
        start_firewall(&format!("{limit}\nSecRequestBodyLimitAction ProcessPartial\n{RULES}"), LOCATIONS);
    assert_eq!(post(&server, "/", FORM, &long).status, 200);
    assert_eq!(post(&server, "/", FORM, &format!("y=evil&{long}")).status, 403);
}

#[test]
fn rules_for_bodies_run_without_a_body() {
    let server =
        start_firewall("SecRule REQUEST_URI \"@contains bad\" \"id:1,phase:2,deny\"", "location / { }");
    assert_eq!(crate::support::page(&server, "/bad").0, 403);
    assert_eq!(crate::support::page(&server, "/").0, 200);
}
