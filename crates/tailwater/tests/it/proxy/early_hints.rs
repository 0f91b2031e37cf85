//! `early_hints`: interim responses of upstream servers.

use tw_testkit::origin::origin;

use crate::support::{server, start};

#[test]
fn early_hints_are_passed_without_hop_by_hop_fields_and_bounded() {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let times = head.split(['/', '?', ' ']).nth(2).unwrap().parse().unwrap();
            for nth in 0..times {
                conn.send(format!(
                    "HTTP/1.1 103 Early Hints\r\nLink: <{nth}>\r\nX-Accel-Redirect: /secret\r\nConnection: X-Hop\r\n\
                     Keep-Alive: a\r\nUpgrade: h2c\r\nDate: now\r\nX-Secret: {}\r\n\r\n",
                    "x".repeat(500)
                ));
            }
            conn.answer("Link: <last>\r\n", "ok");
        }
    });
    let server = start(
        server(),
        &format!(
            "early_hints $arg_hints; proxy_buffer_size 4k; proxy_hide_header X-Secret;
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    for (target, count) in
        [("/1", 0), ("/3?hints=0", 0), ("/1?hints=1", 1), ("/5?hints=1", 5), ("/50?hints=1", 6)]
    {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        for nth in 0..count {
            let hint = client.read_head().unwrap();
            let expected = [("Link".to_owned(), format!("<{nth}>"))];
            assert_eq!((hint.status, &hint.fields[..]), (103, &expected[..]), "{target}");
        }
        let response = client.read_response().unwrap();
        assert_eq!((response.status, &*response.text()), (200, "ok"), "{target}");
    }
    server.wait_error_log("upstream sent too big early hints").unwrap();
}
