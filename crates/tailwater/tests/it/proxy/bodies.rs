//! Request and response bodies through the proxy: unbuffered ones, rates, and source addresses of connections.

use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
use rustls::ALL_VERSIONS;
use tw_testkit::http2::{END_HEADERS, END_STREAM, frame, hpack, kind};
use tw_testkit::http2_origin::frames_origin;
use tw_testkit::origin::{origin, secured};
use tw_testkit::tls::Authority;
use tw_testkit::{Client, wait};

use crate::support::origin::mirror;
use crate::support::{get, server, start};

#[test]
fn small_unbuffered_body_is_in_request_body() {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            conn.reader.read_exact(&mut body).unwrap();
            conn.send(format!(
                "HTTP/1.1 {} X\r\nContent-Length: 0\r\n\r\n",
                if head.starts_with("POST /bad") { 404 } else { 200 }
            ));
        }
    });
    let server = start(
        server(),
        &format!(
            "proxy_request_buffering off; client_body_buffer_size 1k;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; add_header X-Body \"[$request_body]\" always; }}
                 location /bad {{ proxy_pass http://{addr}; proxy_intercept_errors on; error_page 404 /other; }}
                 location /other {{ return 200 \"it was $request_body\"; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    for (size, is_known) in [(10, true), (1024, true), (1025, false), (100_000, false), (1, true)] {
        let body = "x".repeat(size);
        client.send(format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n{body}")).unwrap();
        let response = client.read_response().unwrap();
        let expected = if is_known { format!("[{body}]") } else { "[]".to_owned() };
        assert_eq!(response.field("X-Body"), Some(&*expected), "{size}");
    }
    client.send("POST /bad HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nthis").unwrap();
    assert_eq!(client.read_response().unwrap().text(), "it was this");
}

/// A body that is not passed itself is passed by variables: in another body, in a field, as a file.
#[test]
fn body_is_passed_by_variables_only() {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            conn.reader.read_exact(&mut body).unwrap();
            conn.answer("", [head.into_bytes(), body].concat());
        }
    });
    let server = start(
        server(),
        &format!(
            "client_max_body_size 1k;
             server {{ listen 127.0.0.1:{{port}}; proxy_pass_request_headers off;
                 location = /body {{ proxy_pass http://{addr}; proxy_set_body \"x=$request_body\"; }}
                 location = /unbuffered {{ proxy_pass http://{addr}; proxy_request_buffering off; proxy_set_body \"x=$request_body\"; }}
                 location = /field {{ proxy_pass http://{addr}; proxy_pass_request_body off; proxy_request_buffering off;
                     proxy_set_header X-Body \"x=$request_body\"; proxy_set_header Content-Length \"\"; }}
                 location = /file {{ proxy_pass http://{addr}; proxy_pass_request_body off; client_body_in_file_only clean;
                     proxy_set_header X-File $request_body_file; proxy_set_header Content-Length \"\"; }} }}"
        ),
    );
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
    for body in ["Content-Length: 5\r\n\r\nhello", chunked] {
        let send = |path: &str| {
            let mut client = server.connect().unwrap();
            client.send(format!("POST {path} HTTP/1.1\r\nHost: x\r\n{body}")).unwrap();
            client.read_response().unwrap().text()
        };
        for path in ["/body", "/unbuffered"] {
            let received = send(path);
            assert!(received.ends_with("\r\n\r\nx=hello"), "{path}: {received}");
        }
        let received = send("/field");
        assert!(received.contains("X-Body: x=hello\r\n") && received.ends_with("\r\n\r\n"), "{received}");
        let received = send("/file");
        assert!(received.contains("client_body_temp/"), "{received}");
    }
    // The limits of bodies apply.
    let mut client = server.connect().unwrap();
    client.send("POST /field HTTP/1.1\r\nHost: x\r\nContent-Length: 1025\r\n\r\n").unwrap();
    assert_eq!(client.read_response().unwrap().status, 413);
}

#[test]
fn retry_sends_the_whole_body_or_nothing() {
    // The first server resets every connection, often before anything was written to it.
    let resetting = origin(|conn| {
        let _ = sockopt::set_socket_linger(conn.reader.get_ref(), Some(Duration::ZERO));
    });
    let whole = mirror();
    let server = start(
        server(),
        &format!(
            "upstream both {{ server {resetting} max_fails=0; server {whole} backup; }}
             client_body_buffer_size 1k; proxy_request_buffering off;
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://both; }} }}"
        ),
    );
    let chunk = format!("2000\r\n{}\r\n", "x".repeat(0x2000));
    for nth in 0..300 {
        let mut client = server.connect().unwrap();
        let head = "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(format!("{head}{chunk}0\r\n\r\n")).unwrap();
        let response = client.read_response().unwrap();
        match response.status {
            200 => assert!(response.text().ends_with("\r\n8192 bytes"), "{nth}: {}", response.text()),
            status => assert_eq!(status, 502, "{nth}"),
        }
    }
}

#[test]
fn fast_upload_does_not_block_the_loop() {
    const PIECE: usize = 1 << 20;
    let addr = origin(|mut conn| {
        // The origin reads as fast as it can, so that most of the time there is data to forward and room for it.
        let mut piece = vec![0; PIECE];
        while conn.reader.get_mut().read(&mut piece).is_ok_and(|read| read > 0) {}
    });
    let conf = format!(
        "worker_processes 1; events {{ }}
         http {{ client_max_body_size 0; proxy_request_buffering off;
                 server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://{addr}; }}
                           location = /ok {{ return 200 ok; }} }} }}"
    );
    let server = server().start(&conf).unwrap();
    let sent = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.connect().unwrap();
            let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n";
            client.send(head).unwrap();
            let piece = vec![b'x'; PIECE];
            while !over.load(Relaxed) {
                client.send(&piece).unwrap();
                sent.fetch_add(PIECE, Relaxed);
            }
        });
        let goes_on = || {
            let before = sent.load(Relaxed);
            wait::until(wait::TIMEOUT, || sent.load(Relaxed) >= before + 16 * PIECE)
        };
        // Neither keeps the other waiting.
        let answers = || Client::get(server.addr(), "/ok").is_ok_and(|response| response.text() == "ok");
        let went_well = (0..10).all(|_| goes_on() && answers());
        over.store(true, Relaxed);
        assert!(went_well, "{} bytes were sent", sent.load(Relaxed));
    });
}

#[test]
fn buffered_part_of_a_body_is_sent_as_one_chunk() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        let mut body = [0; 22];
        conn.reader.read_exact(&mut body).unwrap();
        conn.answer("", body);
    });
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; proxy_request_buffering off; location / {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client
        .send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n7\r\n56789ab\r\n0\r\n\r\n")
        .unwrap();
    assert_eq!(client.read_response().unwrap().text(), "c\r\n0123456789ab\r\n0\r\n\r\n");
}

#[test]
fn proxy_limit_rate_is_kept() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        // The response is sent at once, so that only its head can be late.
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 30000\r\n\r\n{}", "x".repeat(30_000)));
    });
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; proxy_buffer_size 4k;
                 location / {{ proxy_pass http://{addr}; proxy_limit_rate $arg_rate; proxy_read_timeout 500ms; }} }}"
        ),
    );
    for (path, at_least, size) in [("/", 0, 30_000), ("/?rate=10000", 2, 30_000), ("/?rate=0", 0, 30_000)] {
        // An origin that a busy machine lets begin too late is asked again: that is no matter of the rate.
        let taken = wait::some(wait::TIMEOUT, || {
            let begun = Instant::now();
            let response = get(&server, path);
            (response.status != 504).then(|| (begun.elapsed(), response.body.len()))
        });
        let (elapsed, len) = taken.unwrap();
        assert_eq!(len, size, "{path}");
        // The rate applies to whole seconds of the server's clock, so up to one second is saved.
        assert!(elapsed >= Duration::from_millis(at_least * 1000), "{path}: {elapsed:?}");
    }
}

#[test]
fn proxy_bind_sets_the_source_address() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        let peer = conn.reader.get_ref().peer_addr().unwrap().ip().to_string();
        conn.answer("", peer);
    });
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; proxy_bind 127.0.0.7;
                 location / {{ proxy_pass http://{addr}; }}
                 location /var {{ proxy_pass http://{addr}; proxy_bind $arg_from; }}
                 location /off {{ proxy_pass http://{addr}; proxy_bind off; }} }}"
        ),
    );
    for (path, from) in [("/", "127.0.0.7"), ("/var?from=127.0.0.8", "127.0.0.8"), ("/off", "127.0.0.1")] {
        assert_eq!(get(&server, path).text(), from, "{path}");
    }
}

/// With `transparent`, a kept connection of one client would make another one look like it.
#[test]
fn kept_connections_are_reused_only_from_the_same_address() {
    let addr = origin(|mut conn| {
        while conn.head().is_some() {
            let peer = conn.reader.get_ref().peer_addr().unwrap().to_string();
            conn.answer("", peer);
        }
    });
    for dynamic in ["off", "on"] {
        let server = start(
            server(),
            &format!(
                "upstream kept {{ server {addr}; keepalive 8; }}
                 server {{ listen 127.0.0.1:{{port}}; proxy_http_version 1.1; proxy_set_header Connection '';
                     proxy_bind_dynamic {dynamic}; location / {{ proxy_pass http://kept; proxy_bind $arg_from; }} }}"
            ),
        );
        let [first, second, again] = ["127.0.0.7", "127.0.0.8", "127.0.0.7"]
            .map(|from| get(&server, &format!("/?from={from}")).text());
        assert!(first.starts_with("127.0.0.7:") && second.starts_with("127.0.0.8:"), "{first} {second}");
        assert_eq!(again, first, "{dynamic}");
    }
}

#[test]
fn request_body_file_is_set_if_used() {
    let addr = mirror();
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; client_body_buffer_size 1k; client_body_temp_path temp;
                 location /named {{ proxy_pass http://{addr}; add_header X-File $request_body_file; }}
                 location /nameless {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    let post = |target: &str, size: usize| {
        let mut client = server.connect().unwrap();
        let body = "x".repeat(size);
        client
            .send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n{body}"))
            .unwrap();
        let response = client.read_response().unwrap();
        assert!(response.text().ends_with(&format!("\r\n{size} bytes")), "{}", response.text());
        response.field("X-File").map(str::to_owned)
    };
    let name = post("/named", 5000).unwrap();
    assert!(name.starts_with(&format!("{}/temp/", server.prefix().display())), "{name}");
    server.wait_error_log(&format!("a client request body is buffered to a temporary file {name},")).unwrap();
    assert!(server.error_log().lines().any(|line| line.contains("[warn]") && line.contains(&name)));
    // The file is removed with its request.
    assert!(wait::until(wait::TIMEOUT, || !std::fs::exists(&name).unwrap()), "{name}");
    assert_eq!(post("/named", 500), None);
    assert_eq!(post("/nameless", 5000), None);
    server.wait_error_log("a client request body is buffered to a temporary file,").unwrap();
}

#[test]
fn too_large_body_is_not_passed_with_its_error_page() {
    let addr = mirror();
    let server = start(
        server(),
        &format!(
            "client_max_body_size 10; error_page 413 @over;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; }}
                 location /unbuffered {{ proxy_pass http://{addr}; proxy_request_buffering off; }}
                 location @over {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    for target in ["/", "/unbuffered"] {
        for (field, body) in [
            ("Content-Length: 11", "hello world"),
            ("Transfer-Encoding: chunked", "b\r\nhello world\r\n0\r\n\r\n"),
        ] {
            let mut client = server.connect().unwrap();
            client.send(format!("POST {target} HTTP/1.1\r\nHost: x\r\n{field}\r\n\r\n{body}")).unwrap();
            let response = client.read_response().unwrap();
            let text = response.text();
            assert_eq!(response.status, 413, "{target} {field}");
            assert!(
                text.contains("Content-Length: 0\r\n") && text.ends_with("\r\n0 bytes"),
                "{target} {field}: {text}"
            );
        }
    }
}

#[test]
fn request_body_file_holds_the_whole_body() {
    let addr = origin(|mut conn| {
        let head = conn.head().unwrap();
        let name = head.lines().find_map(|line| line.strip_prefix("X-File: ")).unwrap_or_default();
        let size = std::fs::read(name).map_or(0, |file| file.len());
        conn.answer("Connection: close\r\n", size.to_string());
        let _ = conn.reader.read_to_end(&mut Vec::new());
    });
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; client_body_buffer_size 1k; client_body_temp_path temp;
                 location / {{ proxy_pass http://{addr}; proxy_set_header X-File $request_body_file; }} }}"
        ),
    );
    for (size, more) in [(1024, 0), (1025, 0), (40_000, 10), (400_000, 10)] {
        let mut client = server.connect().unwrap();
        let length = size + more;
        let head =
            format!("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        // The end of it comes when the rest was read, and fits into memory.
        client.send_split([head.into_bytes(), vec![b'x'; size], vec![b'y'; more]]).unwrap();
        let in_file = if length > 1024 { length } else { 0 };
        assert_eq!(client.read_response().unwrap().text(), in_file.to_string(), "{length}");
    }
}

/// A connection with a small receive buffer, so that the server has to wait for it.
fn connect_narrow(addr: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4 << 10).unwrap();
    connect(&socket, &addr).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    stream
}

#[test]
fn received_part_of_a_truncated_response_is_passed() {
    const CAME: usize = 150_001;
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{}", "x".repeat(CAME)));
    });
    let server = start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=one:1m;
             server {{ listen 127.0.0.1:{{port}} sndbuf=32k;
                 location / {{ proxy_pass http://{addr}; }}
                 location /unbuffered {{ proxy_pass http://{addr}; proxy_buffering off; }}
                 location /kept {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h; }} }}"
        ),
    );
    for nth in 0..60 {
        let target = ["/", "/unbuffered", "/kept"][nth % 3];
        let mut client = connect_narrow(server.addr());
        // The second request is never read: that must not cost anything of the first response.
        let one = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        client.write_all(if nth < 30 { one.clone() } else { one.repeat(2) }.as_bytes()).unwrap();
        let mut all = Vec::new();
        let read = client.read_to_end(&mut all);
        let head = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        assert_eq!(all.len() - head, CAME, "{nth} {target} {read:?}");
    }
}

/// Size of a response that arrives before the reset of its request.
const EARLY: usize = 10_000;

/// Locations of every gateway whose origins answer at once, read nothing of the body, and so reset the connection.
fn resetting_locations() -> String {
    let text = || "x".repeat(EARLY);
    let http = origin(move |mut conn| {
        let _ = conn.head();
        conn.answer("", text());
    });
    let config = Authority::server(ALL_VERSIONS, &Authority::new().certify(&["localhost"]));
    let https = secured(config, move |mut conn| {
        let _ = conn.head();
        conn.answer("", text());
        conn.close_notify();
    });
    let fastcgi = origin(move |mut conn| {
        let _ = conn.fastcgi_head();
        conn.answer_fastcgi(format!("\r\n{}", text()));
    });
    let cgi = origin(move |mut conn| {
        // Any bytes of the parameters show that the request arrived.
        let _ = conn.reader.fill_buf();
        conn.send(format!("Status: 200 OK\r\nContent-Length: {EARLY}\r\n\r\n{}", text()));
    });
    let http2 = frames_origin(move |mut frames, nth| {
        let _ = frames.wait(kind::HEADERS);
        let data = frame(kind::DATA, END_STREAM, 1, text().as_bytes());
        let head = frame(kind::HEADERS, END_HEADERS, 1, &hpack(&[(":status", "200")]));
        let _ = frames.send([head, data].concat());
        if nth.is_multiple_of(2) {
            // A server may say that it does not want the rest of the request (RFC 9113 section 8.1).
            let _ = frames.send(frame(kind::RST_STREAM, 0, 1, &[0; 4]));
            while let Ok(Some(_)) = frames.next_frame() {}
        }
    });
    [
        format!("/http {{ proxy_pass http://{http}; }}"),
        format!("/old {{ proxy_pass http://{http}; proxy_http_version 1.0; }}"),
        format!("/unbuffered {{ proxy_pass http://{http}; proxy_buffering off; }}"),
        format!("/https {{ proxy_pass https://{https}; }}"),
        format!("/http2 {{ proxy_pass http://{http2}; proxy_http_version 2; }}"),
        format!("/grpc {{ grpc_pass {http2}; }}"),
        format!("/fastcgi {{ fastcgi_pass {fastcgi}; fastcgi_request_buffering off; }}"),
        format!("/uwsgi {{ uwsgi_pass {cgi}; uwsgi_request_buffering off; }}"),
        format!("/scgi {{ scgi_pass {cgi}; scgi_request_buffering off; }}"),
    ]
    .map(|location| format!("location {location}\n"))
    .concat()
}

#[test]
fn response_before_a_reset_is_passed() {
    let locations = resetting_locations();
    let server = start(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; client_max_body_size 0; proxy_request_buffering off; {locations} }}"
        ),
    );
    let body = vec![b'y'; 4 << 20];
    let targets: Vec<_> = locations.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(targets.len(), 9);
    for nth in 0..12 * targets.len() {
        let target = targets[nth % targets.len()];
        let mut client = TcpStream::connect(server.addr()).unwrap();
        client.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.write_all(head.as_bytes()).unwrap();
        let mut sending = client.try_clone().unwrap();
        let body = body.clone();
        let sender = thread::spawn(move || {
            // The server may have had enough.
            let _ = sending.write_all(&body);
        });
        let mut all = Vec::new();
        let read = client.read_to_end(&mut all);
        let text = String::from_utf8_lossy(&all);
        let came = text.matches('x').count();
        assert!(
            text.starts_with("HTTP/1.1 200") && came >= EARLY,
            "{nth} {target} {read:?} {came} {:.300}\n{}",
            text,
            server.error_log()
        );
        sender.join().unwrap();
    }
}
