//! `proxy_allow_upstream`: conditions on the chosen server.

use tw_testkit::origin::origin;

use crate::support::{get, server, start};

#[test]
fn upstream_is_allowed_only_if_every_condition_holds() {
    let [first, second] = ["first", "second"].map(|name| {
        origin(move |mut conn| {
            while conn.head().is_some() {
                conn.answer("", name);
            }
        })
    });
    let server = start(
        server(),
        &format!(
            "map $upstream_last_addr $is_second {{ volatile; {second} 1; default 0; }}
             upstream both {{ server {first}; server {second} backup; }}
             log_format up '$status $upstream_addr $upstream_status'; access_log logs/access.log up;
             proxy_allow_upstream $arg_a $arg_b;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://both; }}
                 location /second {{ proxy_allow_upstream $is_second; proxy_next_upstream denied; proxy_pass http://both; }}
                 location /none {{ proxy_allow_upstream $is_second; proxy_next_upstream denied; proxy_pass http://{first}; }} }}"
        ),
    );
    let cases = [
        ("/?a=1&b=yes", 200, Some("first"), format!("{first} 200")),
        ("/?a=1&b=0", 403, None, format!("{first} 403")),
        ("/?a=1", 403, None, format!("{first} 403")),
        // A denied request does not count as a failure of the server.
        ("/?a=00&b=x", 200, Some("first"), format!("{first} 200")),
        ("/second", 200, Some("second"), format!("{first}, {second} 403, 200")),
        ("/none", 403, None, format!("{first} 403")),
    ];
    for (nth, (target, status, text, tried)) in cases.into_iter().enumerate() {
        let response = get(&server, target);
        assert_eq!(response.status, status, "{target}");
        assert!(text.is_none_or(|text| response.text() == text), "{target}: {}", response.text());
        let lines = server.access_log(nth + 1).unwrap();
        assert_eq!(lines[nth], format!("{status} {tried}"), "{target}");
    }
    server.wait_error_log("access to upstream denied while connecting to upstream").unwrap();
}
