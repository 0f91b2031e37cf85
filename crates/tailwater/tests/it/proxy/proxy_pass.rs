//! `proxy_pass`: forwarding of requests and responses.

use std::io::Read;
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::{Receiver, channel};

use tw_testkit::origin::origin;
use tw_testkit::ports::Port;
use tw_testkit::{Server, wait};

use crate::support::cache::wait_stored;
use crate::support::origin::mirror;
use crate::support::{get, request, server, start};

/// A server that passes everything to `addr`.
fn start_proxy(addr: SocketAddr, more: &str) -> Server {
    start(
        server(),
        &format!(
            "log_format up '$request_uri $status $upstream_addr $upstream_status $upstream_response_length';
             access_log logs/access.log up;
             server {{ listen 127.0.0.1:{{port}}; {more}
                 location / {{ proxy_pass http://{addr}; }} }}"
        ),
    )
}

#[test]
fn request_is_rewritten_and_response_fields_are_kept() {
    let addr = mirror();
    let server = start_proxy(addr, "");
    let mut client = server.connect().unwrap();
    client
        .send("GET /a%20b?c=%d HTTP/1.1\r\nHost: x.org\r\nConnection: close, X-Hop\r\nTE: trailers\r\nX-cAsE: 1\r\nx-case: 2\r\nUpgrade: h2c\r\n\r\n")
        .unwrap();
    let response = client.read_response().unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(
        response.text(),
        format!("GET /a%20b?c=%d HTTP/1.1\r\nHost: {addr}\r\nX-cAsE: 1\r\nx-case: 2\r\n\r\n0 bytes")
    );
    assert!(response.text().len() > 10 && response.field("X-oDD") == Some("a"));
    assert_eq!(response.values("X-Odd").collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        server.access_log(1).unwrap(),
        [format!("/a%20b?c=%d 200 {addr} 200 {}", response.text().len())]
    );
}

#[test]
fn target_is_passed_as_the_client_sent_it() {
    let addr = mirror();
    let server = start(
        server().file("html/found.html", "here"),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; root html;
                 location / {{ try_files $uri @app; }}
                 location @app {{ proxy_pass http://{addr}; }}
                 location /page/ {{ error_page 404 = @app; return 404; }}
                 location /found/ {{ try_files /found.html $uri; proxy_pass http://{addr}; }}
                 location /args/ {{ set $args x=1; proxy_pass http://{addr}; }}
                 location /break/ {{ rewrite ^/break(.*) /b$1 break; proxy_pass http://{addr}; }}
                 location /last/ {{ rewrite ^/last(.*) /l$1 last; }}
                 location /instead/ {{ proxy_pass http://{addr}/; }} }}"
        ),
    );
    for (target, expected) in [
        ("/a%2Fb//c/../d?q=%7c", "/a%2Fb//c/../d?q=%7c"),
        ("/page/%2f?q", "/page/%2f?q"),
        ("/found/%2f?q", "/found/%2f?q"),
        ("/args/%7c?q", "/args/%7C?x=1"),
        ("/break/a%2fb?q", "/b/a/b?q"),
        ("/last/%7c?q", "/l/%7C?q"),
        // A path without escapes gets none.
        ("/instead/a|b\"?q=%41", "/a|b\"?q=%41"),
        ("/instead/a%7cb|", "/a%7Cb%7C"),
    ] {
        let mut client = server.connect().unwrap();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        let text = client.read_response().unwrap().text();
        assert_eq!(text.lines().next(), Some(&*format!("GET {expected} HTTP/1.1")), "{target}");
    }
}

/// A server that serves one connection at a time would wait for the next request on one that is kept.
#[test]
fn connections_to_an_address_without_an_upstream_block_are_closed() {
    let addr = origin(|mut conn| {
        let nth = conn.nth.to_string();
        while conn.head().is_some() {
            conn.answer("", &nth);
        }
    });
    let server = start(
        server(),
        &format!(
            "upstream block {{ server {addr}; }}
             server {{ listen 127.0.0.1:{{port}}; location /a {{ proxy_pass http://{addr}; }}
                 location /b {{ set $to {addr}; proxy_pass http://$to; }}
                 location /c {{ proxy_pass http://block; }} }}"
        ),
    );
    for (path, expected) in [("/a", "0"), ("/a", "1"), ("/b", "2"), ("/b", "3"), ("/c", "4"), ("/c", "4")] {
        assert_eq!(get(&server, path).text(), expected, "{path}");
    }
}

#[test]
fn bodies_are_passed_with_length_or_chunked() {
    let server = start_proxy(mirror(), "location /as-it-comes/ { proxy_pass http://127.0.0.1:1; }");
    let addr = mirror();
    let unbuffered = start_proxy(addr, "proxy_request_buffering off; client_max_body_size 0;");
    for (server, chunked) in
        [(&server, "Content-Length: 300000"), (&unbuffered, "Transfer-Encoding: chunked")]
    {
        let mut client = server.connect().unwrap();
        client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n").unwrap();
        client.send(vec![b'x'; 100_000]).unwrap();
        let text = client.read_response().unwrap().text();
        assert!(text.contains("Content-Length: 100000\r\n") && text.ends_with("100000 bytes"), "{text}");
        client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        for _ in 0..3 {
            client.send("186a0\r\n").unwrap();
            client.send(vec![b'x'; 100_000]).unwrap();
            client.send("\r\n").unwrap();
        }
        client.send("0\r\n\r\n").unwrap();
        let text = client.read_response().unwrap().text();
        assert!(text.contains(chunked) && text.ends_with("300000 bytes"), "{text}");
    }
}

#[test]
fn client_names_no_socket_of_this_machine() {
    let server = start(
        server(),
        "map $arg_to $mapped { one unix:{prefix}/hidden; default $arg_to; }
         server { listen unix:{prefix}/hidden; return 200 hidden; }
         server { listen 127.0.0.1:{port};
             location = /written { proxy_pass http://unix:{prefix}/$arg_to:/; }
             location = /mapped { proxy_pass http://$mapped:/; }
             location = /set { set $to unix:{prefix}/hidden; proxy_pass http://$to:/; }
             location = /argument { proxy_pass http://$arg_to:/; }
             location = /field { proxy_pass http://$http_x_to:/; }
             location = /url { proxy_pass $http_x_to; }
             location = /fastcgi { fastcgi_pass $http_x_to; }
             location ~ ^/capture/(.*) { proxy_pass http://$1:/; } }",
    );
    let unix = format!("unix:{}/hidden", server.prefix().display());
    for (target, expected) in [
        ("/written?to=hidden".to_owned(), (200, "hidden")),
        ("/mapped?to=one".to_owned(), (200, "hidden")),
        ("/set".to_owned(), (200, "hidden")),
        (format!("/argument?to={unix}"), (500, "")),
        (format!("/capture/{unix}"), (500, "")),
        ("/argument?to=a%20b".to_owned(), (500, "")),
        ("/argument?to=a$b".to_owned(), (500, "")),
    ] {
        let response = get(&server, &target);
        assert_eq!(response.status, expected.0, "{target}");
        assert!(expected.1.is_empty() || response.text() == expected.1, "{target}");
    }
    for (target, to) in
        [("/field", unix.clone()), ("/url", format!("http://{unix}:/")), ("/fastcgi", unix.clone())]
    {
        assert_eq!(
            request(&server, &format!("GET {target}"), &[&format!("X-To: {to}")]).status,
            500,
            "{target}"
        );
    }
    let line = format!("Unix socket that the configuration does not name in upstream \"{unix}\"");
    server.wait_error_log(&line).unwrap();
}

#[test]
fn dead_server_is_retried_on_the_next() {
    // The port stays reserved until the end, so that no other process listens there.
    let port = Port::reserve().unwrap();
    let up = mirror();
    let down = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let server = start(
        server(),
        &format!(
            "upstream both {{ server {down} max_fails=0; server {up}; }} upstream none {{ server {down}; }}
             log_format up '$upstream_addr $upstream_status'; access_log logs/access.log up;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://both; }} location /none {{ proxy_pass http://none; }} }}"
        ),
    );
    for _ in 0..4 {
        assert_eq!(get(&server, "/").status, 200);
    }
    assert_eq!(get(&server, "/none").status, 502);
    let lines = server.access_log(5).unwrap();
    assert!(lines.iter().any(|line| *line == format!("{down}, {up} 502, 200")), "{lines:#?}");
    assert_eq!(lines[4], format!("{down} 502"));
    server.wait_error_log("connect() failed (111: Connection refused) while connecting to upstream").unwrap();
}

#[test]
fn closed_keepalive_connection_is_retried_without_a_failure() {
    // The second request of the first connection is never answered.
    let addr = origin(|mut conn| {
        let most = if conn.nth == 0 { 1 } else { usize::MAX };
        for _ in 0..most {
            let Some(_) = conn.head() else { return };
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
        let _ = conn.head();
        let _ = conn.reader.get_mut().shutdown(Shutdown::Both);
    });
    let server = start_proxy(addr, "");
    for _ in 0..3 {
        assert_eq!(get(&server, "/").text(), "ok");
    }
}

#[test]
fn malformed_response_is_502() {
    for (said, line) in [
        ("", "upstream prematurely closed connection"),
        ("HTTP/1.1 200", "upstream prematurely closed connection"),
        ("garbage\r\n\r\n", "upstream sent"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "upstream sent",
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "upstream sent"),
    ] {
        let addr = origin(move |mut conn| {
            let _ = conn.head();
            conn.send(said);
        });
        let server = start_proxy(addr, "");
        assert_eq!(get(&server, "/").status, 502, "{said:?}");
        server.wait_error_log(line).unwrap();
    }
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(100_000)));
    });
    let server = start_proxy(addr, "");
    assert_eq!(get(&server, "/").status, 502);
    server.wait_error_log("upstream sent too big header").unwrap();
}

#[test]
fn duplicate_singleton_field_is_dropped_and_logged() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.answer("ETag: \"a\"\r\nETag: \"b\"\r\n", "ok");
    });
    let server = start_proxy(addr, "");
    let response = get(&server, "/");
    assert_eq!(response.values("ETag").collect::<Vec<_>>(), ["\"a\""]);
    let line = "upstream sent duplicate header line: \"ETag: \"b\"\", previous value: \"ETag: \"a\"\", ignored while reading response header from upstream";
    assert!(server.wait_error_log(line).unwrap().contains("[warn]"));
}

#[test]
fn truncated_response_truncates_the_client_response() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
    });
    let server = start_proxy(addr, "");
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().field("Content-Length"), Some("100"));
    assert_eq!(client.read_until_close().unwrap(), b"half");
    server.wait_error_log("upstream prematurely closed connection while reading upstream").unwrap();
}

#[test]
fn buffering_frees_the_server_from_a_slow_client() {
    // The size exceeds the buffers of both sockets.
    const SIZE: usize = 48 << 20;
    let (done, is_done) = channel();
    let (done, is_done): (_, Receiver<()>) = (std::sync::Mutex::new(done), is_done);
    let done = std::sync::Arc::new(done);
    // The body is made before any timeout runs: on a busy machine that alone takes seconds.
    let body = (0..SIZE / 4).flat_map(|n| (n as u32).to_be_bytes()).collect::<Vec<u8>>();
    let body = std::sync::Arc::new(body);
    let addr = origin(move |mut conn| {
        let _ = conn.head();
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
        conn.send(body.as_slice());
        done.lock().unwrap().send(()).unwrap();
    });
    let server = start_proxy(addr, "proxy_buffers 4 16k; proxy_buffer_size 16k;");
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    // The client has taken nothing of the body, and the server is done.
    let has_sent = wait::until(wait::TIMEOUT, || is_done.try_recv().is_ok());
    assert!(has_sent, "the server has sent all of it");
    let body = client.read_until_close().unwrap();
    assert_eq!(body.len(), SIZE);
    let wrong = body
        .chunks_exact(4)
        .enumerate()
        .find(|(n, four)| u32::from_be_bytes((*four).try_into().unwrap()) != *n as u32);
    assert_eq!(wrong, None);
    server.wait_error_log("an upstream response is buffered to a temporary file").unwrap();
}

#[test]
fn responses_without_a_body_end_at_their_head() {
    // The origin announces a Content-Length, and sends a body only for GET.
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let status = head.split(['/', ' ']).nth(2).unwrap().to_owned();
            let has_body = head.starts_with("GET ") && !matches!(&*status, "204" | "304");
            let body = if has_body { "hello" } else { "" };
            conn.send(format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\n{body}"));
        }
    });
    let server = start_proxy(
        addr,
        &format!(
            "location /head/ {{ proxy_method HEAD; proxy_pass http://{addr}/; }}
             location /get/ {{ proxy_method GET; proxy_pass http://{addr}/; }}"
        ),
    );
    let mut client = server.connect().unwrap();
    for (line, status, body) in [
        ("GET /200", 200, "hello"),
        ("GET /204", 204, ""),
        ("GET /304", 304, ""),
        ("HEAD /200", 200, ""),
        ("HEAD /304", 304, ""),
        ("GET /404", 404, "hello"),
        ("HEAD /get/200", 200, ""),
        ("GET /get/200", 200, "hello"),
        ("GET /head/200", 200, ""),
        ("GET /205", 205, "hello"),
    ] {
        client.send(format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        let is_head = line.starts_with("HEAD");
        let response = if is_head { client.read_head().unwrap() } else { client.read_response().unwrap() };
        assert_eq!((response.status, &*response.text()), (status, body), "{line}");
        assert!(status != 204 || response.field("Content-Length").is_none(), "{line}");
    }
}

#[test]
fn head_response_keeps_content_length() {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let line = head.split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
            let line = if line.is_empty() { line } else { format!("Content-Length: {line}\r\n") };
            conn.send(format!("HTTP/1.1 200 OK\r\n{line}X-A: b\r\n\r\n"));
        }
    });
    let server = start_proxy(addr, "");
    let mut client = server.connect().unwrap();
    for length in [None, Some("0"), Some("12345678901")] {
        client.send(format!("HEAD /{} HTTP/1.1\r\nHost: x\r\n\r\n", length.unwrap_or_default())).unwrap();
        let head = client.read_head().unwrap();
        assert_eq!((head.status, head.field("X-A")), (200, Some("b")));
        assert_eq!((head.field("Content-Length"), head.field("Transfer-Encoding")), (length, None));
    }
}

#[test]
fn upgrade_opens_a_tunnel() {
    let addr = origin(|mut conn| {
        let head = conn.head().unwrap();
        assert!(head.contains("Upgrade: echo\r\n") && head.contains("Connection: upgrade\r\n"), "{head}");
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nhello ");
        let mut all = Vec::new();
        conn.reader.read_to_end(&mut all).unwrap();
        // The client has closed its side, and still gets an answer.
        conn.send(all);
        conn.send(" bye");
    });
    let server = start_proxy(
        addr,
        &format!(
            "location /ws {{ proxy_pass http://{addr}; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET /ws HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nearly ").unwrap();
    let head = client.read_head().unwrap();
    assert_eq!(
        (head.status, head.field("Upgrade"), head.field("Connection")),
        (101, Some("echo"), Some("upgrade"))
    );
    assert_eq!(client.read_bytes(6).unwrap(), b"hello ");
    client.send("late").unwrap();
    client.finish_sending().unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"early late bye");
    assert_eq!(server.access_log(1).unwrap(), [format!("/ws 101 {addr} 101 20")]);
}

#[test]
fn tunnel_ends_with_its_server() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nbye");
    });
    let server = start_proxy(
        addr,
        &format!(
            "location /ws {{ proxy_pass http://{addr}; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET /ws HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 101);
    // The client keeps the connection open, and sends nothing.
    assert_eq!(client.read_until_close().unwrap(), b"bye");
    assert_eq!(server.access_log(1).unwrap(), [format!("/ws 101 {addr} 101 3")]);
}

#[test]
fn rewritten_uri_is_passed_unchanged() {
    let addr = mirror();
    let server = start_proxy(
        addr,
        &format!(
            "location /break/ {{ rewrite ^/break/(.*) /made/$1?x=1 break; proxy_pass http://{addr}/base/; }}
             location /after/ {{ rewrite ^ /made; break; proxy_pass http://{addr}/base/; }}
             location /nothing/ {{ break; proxy_pass http://{addr}/base/; }}
             location /if/ {{ if ($arg_y) {{ rewrite ^/if/(.*) /made/$1? break; }} proxy_pass http://{addr}/base/; }}
             location /last/ {{ rewrite ^/last/(.*) /nothing/$1; }}
             location /again {{ root none; rewrite ^ /nowhere break; error_page 404 = /nothing/b; }}"
        ),
    );
    for (target, expected) in [
        ("/break/a%20b?y=2", "/made/a%20b?x=1&y=2"),
        ("/after/a", "/made"),
        ("/nothing/a?y", "/base/a?y"),
        ("/if/a", "/base/a"),
        ("/if/a?y=1", "/made/a"),
        ("/last/a", "/base/a"),
        ("/again", "/base/b"),
    ] {
        let text = get(&server, target).text();
        let target_sent = text.strip_prefix("GET ").and_then(|text| text.split(' ').next());
        assert_eq!(target_sent, Some(expected), "{target}");
    }
}

#[test]
fn hop_by_hop_fields_of_a_response_are_not_forwarded() {
    let addr = origin(|mut conn| {
        while conn.head().is_some() {
            conn.answer(
                "Connection: keep-alive, x-hop\r\nConnection: X-Other,Set-Cookie\r\nX-Hop: 1\r\nx-other: 2\r\n\
                 Keep-Alive: timeout=5\r\nUpgrade: h2c\r\nProxy-Connection: close\r\nSet-Cookie: a=b\r\nX-Stays: 3\r\n",
                "body",
            );
        }
    });
    let server = start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=z:1m; server {{ listen 127.0.0.1:{{port}}; proxy_pass_header Upgrade; \
               location / {{ proxy_pass http://{addr}; }} \
               location /cached {{ proxy_pass http://{addr}; proxy_cache z; proxy_cache_valid 1m; \
                 proxy_ignore_headers Set-Cookie; add_header X-Cache $upstream_cache_status; }} }}"
        ),
    );
    for target in ["/", "/cached", "/cached"] {
        let response = get(&server, target);
        assert_eq!(response.text(), "body");
        for name in ["X-Hop", "X-Other", "Keep-Alive", "Upgrade", "Proxy-Connection"] {
            assert_eq!(response.field(name), None, "{target} {name}");
        }
        assert_eq!(response.field("X-Stays"), Some("3"), "{target}");
        // `Connection` cannot remove fields that the server uses itself.
        assert_eq!(response.field("Set-Cookie"), Some("a=b"), "{target}");
        assert_eq!(response.values("Connection").collect::<Vec<_>>(), ["close"], "{target}");
    }
}

#[test]
fn date_and_server_are_added_if_missing() {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let fields = if head.starts_with("GET /with") {
                "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: other\r\n"
            } else {
                ""
            };
            conn.answer(fields, "body");
        }
    });
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; proxy_pass_header Date; proxy_pass_header Server; \
               location / {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    let without = get(&server, "/");
    assert!(without.field("Date").is_some_and(|date| date.ends_with("GMT")));
    assert!(without.field("Server").is_some_and(|server| server.starts_with("tailwater")));
    let with = get(&server, "/with");
    assert_eq!(with.values("Date").collect::<Vec<_>>(), ["Thu, 01 Jan 1970 00:00:00 GMT"]);
    assert_eq!(with.values("Server").collect::<Vec<_>>(), ["other"]);
}

#[test]
fn variables_tell_passes_of_a_request_apart() {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let status = if head.starts_with("GET /missing") { "404 Not Found" } else { "200 OK" };
            let accel = if head.starts_with("GET /accel") { "X-Accel-Redirect: /named/a\r\n" } else { "" };
            conn.send(format!(
                "HTTP/1.1 {status}\r\n{accel}Cache-Control: max-age=60\r\nContent-Length: 4\r\n\r\nbody"
            ));
        }
    });
    let closed = Port::reserve().unwrap();
    let closed = format!("127.0.0.1:{}", closed.number());
    let server = start(
        server().with_master().file("html/page", "a page"),
        &format!(
            "log_format up '$request_uri [$upstream_addr] [$upstream_status] [$upstream_response_length] \
                 [$upstream_connect_time] [$upstream_header_time] [$upstream_response_time] [$upstream_queue_time] \
                 [$upstream_bytes_sent] [$upstream_bytes_received] $upstream_last_addr';
             access_log logs/access.log up; proxy_cache_path cache keys_zone=one:1m;
             upstream two {{ server {closed} max_fails=0; server {addr} backup; }}
             server {{ listen 127.0.0.1:{{port}}; root html; proxy_intercept_errors on; recursive_error_pages on;
                 location /missing {{ proxy_pass http://two; error_page 404 = @up; }}
                 location @up {{ rewrite ^ /other break; proxy_pass http://{addr}; }}
                 location /accel {{ proxy_pass http://{addr}; }}
                 location /named {{ try_files /none @up; }}
                 location /twice {{ proxy_pass http://{closed}; error_page 502 = @again; }}
                 location @again {{ proxy_pass http://{closed}; error_page 502 = @up; }}
                 location /page {{ proxy_pass http://{closed}; error_page 502 = /file/page; }}
                 location /file/ {{ alias html/; }}
                 location = /metrics {{ metrics; access_log off; }}
                 location /hit {{ proxy_pass http://{closed}; error_page 502 = /stored; }}
                 location /stored {{ proxy_pass http://{addr}; proxy_cache one; }} }}"
        ),
    );
    for (nth, (target, servers, statuses, lengths)) in [
        ("/missing", "C, A : A", "502, 404 : 200", "0, 0 : 4"),
        ("/accel", "A : A", "200 : 200", "0 : 4"),
        ("/named", "A", "200", "4"),
        ("/twice", "C : C : A", "502 : 502 : 200", "0 : 0 : 4"),
        ("/page", "C", "502", "0"),
        ("/hit", "C : A", "502 : 200", "0 : 4"),
        // A response from the cache needs no server.
        ("/hit", "C", "502", "0"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(get(&server, target).status, 200, "{target}");
        let line = server.access_log(nth + 1).unwrap().remove(nth);
        let addrs = servers.replace('C', &closed).replace('A', &addr.to_string());
        let start = format!("{target} [{addrs}] [{statuses}] [{lengths}] [");
        assert!(line.starts_with(&start), "{line} instead of {start}");
        let values: Vec<&str> = line[start.len()..].split("] [").collect();
        assert_eq!(values.len(), 6, "{line}");
        for value in values {
            let separators = |text: &str| text.matches([',', ':']).collect::<String>();
            let value = value.split(']').next().unwrap();
            assert_eq!(separators(value), separators(statuses), "{line}");
        }
        let last = addrs.rsplit([' ', ',']).next().unwrap();
        assert!(line.ends_with(&format!("] {last}")), "{line}");
        if nth == 5 {
            // The response is stored before it is asked for again.
            wait_stored(&server, 1);
        }
    }
}
