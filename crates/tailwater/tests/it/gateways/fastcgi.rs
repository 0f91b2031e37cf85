//! `fastcgi_pass` and its kin, in front of scripted applications.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;

use tw_testkit::application::{ApplicationRequest, END_REQUEST, STDERR, STDOUT, record, response};
use tw_testkit::origin::{Conn, origin};
use tw_testkit::{Server, TempDir, wait};

use crate::support::cache::wait_stored;
use crate::support::{get, page, raw, refusal, request, server, start, start_server};

/// An application that answers every request by `answer`.
fn application(answer: impl Fn(&mut Conn, ApplicationRequest) + Send + Sync + Clone + 'static) -> SocketAddr {
    origin(move |mut conn| {
        while let Some(request) = conn.fastcgi() {
            let stays = request.keeps_open;
            answer(&mut conn, request);
            if !stays {
                return;
            }
        }
    })
}

/// An application that echoes its parameters and body.
fn echo_application() -> SocketAddr {
    application(|conn, request| {
        let text =
            format!("Content-Type: text/plain\r\n\r\n{}[{}]", request.lines(), request.body.escape_ascii());
        conn.answer_fastcgi(text);
    })
}

/// An application that answers every request with these bytes.
fn application_sending(bytes: impl Into<Vec<u8>>) -> SocketAddr {
    let bytes = bytes.into();
    application(move |conn, _| conn.send(&bytes))
}

#[test]
fn configured_parameters_are_sent() {
    let addr = echo_application();
    let server = start(
        server(),
        &format!(
            "fastcgi_param OUTER 1;
             server {{ listen 127.0.0.1:{{port}}; root /srv; fastcgi_index index.php;
                 location / {{ fastcgi_pass {addr}; fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;
                     fastcgi_param QUERY_STRING $query_string; fastcgi_param CONTENT_LENGTH $content_length;
                     fastcgi_param NOTHING \"\"; fastcgi_param LEFT_OUT \"\" if_not_empty;
                     fastcgi_param HTTP_X_GONE \"\"; fastcgi_param HTTP_X_SET here; }}
                 location /split/ {{ fastcgi_pass {addr}; fastcgi_split_path_info ^/split(/.+\\.php)(/.*)$;
                     fastcgi_param SCRIPT $fastcgi_script_name; fastcgi_param INFO $fastcgi_path_info; }}
                 location /outer {{ fastcgi_pass {addr}; }}
                 location /none {{ fastcgi_pass {addr}; fastcgi_param A b; fastcgi_pass_request_headers off;
                     fastcgi_pass_request_body off; }} }}"
        ),
    );
    let fields = ["X-Two: 1", "Cookie: a=1", "X-Gone: 1", "X-Set: client", "X-Two: 2", "Cookie: b=2"];
    let text = request(&server, "GET /dir/?q=1", &fields).text();
    assert_eq!(
        text,
        format!(
            "SCRIPT_FILENAME=/srv/dir/index.php\nQUERY_STRING=q=1\nCONTENT_LENGTH=\nNOTHING=\nHTTP_X_SET=here\n\
             HTTP_HOST=localhost\nHTTP_CONNECTION=close\nHTTP_X_TWO=1, 2\nHTTP_COOKIE=a=1; b=2\n[]"
        )
    );
    for (target, script, info) in [
        ("/split/a.php/more/of%20it", "/a.php", "/more/of it"),
        ("/split/a.php", "/split/a.php", ""),
        ("/split/dir/", "/split/dir/index.php", ""),
    ] {
        let text = page(&server, target).1;
        assert!(text.starts_with(&format!("SCRIPT={script}\nINFO={info}\n")), "{target}: {text}");
    }
    assert!(page(&server, "/outer").1.starts_with("OUTER=1\nHTTP_HOST="));
    let mut client = server.connect().unwrap();
    for (target, expected) in [("/", "[body]"), ("/none", "[]")] {
        client.send(format!("POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")).unwrap();
        let text = client.read_response().unwrap().text();
        assert!(text.ends_with(expected), "{text}");
    }
    assert_eq!(page(&server, "/none").1, "A=b\nHTTP_HOST=localhost\n[]");
    // The length of a chunked body is known once it is there.
    client
        .send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        .unwrap();
    let text = client.read_response().unwrap().text();
    assert!(text.contains("CONTENT_LENGTH=3\n") && text.ends_with("[abc]"), "{text}");
}

#[test]
fn many_or_long_fields_are_sent() {
    let server = start(
        server(),
        &format!(
            "large_client_header_buffers 8 64k; client_header_buffer_size 200k;
             server {{ listen 127.0.0.1:{{port}}; location / {{ fastcgi_pass {}; }} }}",
            echo_application()
        ),
    );
    let field = format!("X-Long: {}", "x".repeat(50_000));
    let other = format!("X-Other: {}", "y".repeat(60_000));
    let text = request(&server, "GET /", &[&field, &other]).text();
    assert!(text.contains(&"x".repeat(50_000)) && text.contains(&"y".repeat(60_000)), "{}", text.len());
}

#[test]
fn response_fields_set_status_and_head() {
    let addr = application(|conn, request| {
        let head = request.param("QUERY_STRING").unwrap_or_default().replace('|', "\r\n").replace('_', " ");
        conn.answer_fastcgi(format!("{head}\r\n\r\nbody"));
    });
    let server = start_server(
        server(),
        &format!("location / {{ fastcgi_pass {addr}; fastcgi_param QUERY_STRING $query_string; }}"),
    );
    for (head, status, reason) in [
        ("A:b", 200, "200 OK"),
        ("Status:404_Not_Found|A:b", 404, "404 Not Found"),
        ("Status:418_Short_and_stout", 418, "418 Short and stout"),
        ("Location:/else", 302, "302 Moved Temporarily"),
        ("Status:201_Made|Location:/else", 201, "201 Made"),
    ] {
        let response = get(&server, &format!("/?{head}"));
        assert_eq!(response.status, status, "{head}");
        assert!(response.head.starts_with(&format!("HTTP/1.1 {reason}\r\n")), "{}", response.head);
        assert!(response.field("Status").is_none());
        if head.contains("Location") {
            assert_eq!(response.field("Location"), Some("/else"));
        }
    }
    let response = request(&server, "HEAD /?Content-Length:4", &[]);
    assert_eq!((response.status, response.field("Content-Length")), (200, Some("4")));
}

#[test]
fn records_are_parsed_in_any_pieces() {
    let whole = [
        record(STDERR, "a warning\n"),
        record(STDOUT, "Content-Type: text/plain\r\nX-A"),
        record(STDOUT, ": b\r\n\r\nhello"),
        record(STDERR, "another one"),
        record(STDOUT, ", you"),
        record(STDOUT, ""),
        record(END_REQUEST, [0; 8]),
    ]
    .concat();
    for size in [1, 2, 7, 8, 9, 30, 1000] {
        let bytes = whole.clone();
        let addr = application(move |conn, _| bytes.chunks(size).for_each(|piece| conn.send(piece)));
        let server = start_server(server(), &format!("location / {{ fastcgi_pass {addr}; }}"));
        let response = get(&server, "/");
        assert_eq!((response.status, &*response.text()), (200, "hello, you"), "{size}");
        assert_eq!(response.field("X-A"), Some("b"));
        for line in [
            "[error] ",
            "FastCGI sent in stderr: \"a warning\" while reading response header from upstream",
            "FastCGI sent in stderr: \"another one\" while reading upstream",
        ] {
            server.wait_error_log(line).unwrap();
        }
    }
}

#[test]
fn malformed_response_is_502() {
    let head = record(STDOUT, "Content-Length: 9\r\n\r\n");
    for (bytes, line) in [
        (
            b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
            "upstream sent unsupported FastCGI protocol version: 72: the answer is HTTP/1; does the server speak only HTTP?",
        ),
        (record(9, ""), "upstream sent invalid FastCGI record type: 9"),
        (record(END_REQUEST, [0; 8]), "upstream sent unexpected FastCGI record: 3"),
        (record(STDOUT, ""), "upstream prematurely closed FastCGI stdout"),
        (record(STDOUT, "Status: what\r\n\r\n"), "upstream sent invalid status \"what\""),
        (record(STDOUT, "no field\r\n\r\n"), "upstream sent invalid header: "),
        (record(STDOUT, format!("A: {}\r\n", "x".repeat(9000))), "upstream sent too big header"),
        (record(STDOUT, "A: b\r\n"), "upstream prematurely closed connection while reading response header"),
        (vec![], "upstream prematurely closed connection while reading response header"),
    ] {
        let addr = application_sending(bytes);
        let server = start_server(server(), &format!("location / {{ fastcgi_pass {addr}; }}"));
        assert_eq!(get(&server, "/").status, 502, "{line}");
        let log = server.wait_error_log(line).unwrap();
        assert!(log.contains(&format!("upstream: \"fastcgi://{addr}\"")), "{log}");
    }
    // If a response fails after its head was sent, the client gets a truncated one.
    for bytes in [
        [head.clone(), record(STDOUT, "half"), record(END_REQUEST, [0; 8])].concat(),
        [head, record(STDOUT, "half")].concat(),
        [record(STDOUT, "A: b\r\n\r\n"), record(STDOUT, "half")].concat(),
    ] {
        let addr = application_sending(bytes);
        let server = start_server(server(), &format!("location / {{ fastcgi_pass {addr}; }}"));
        let text = raw(&server, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.contains("half") && !text.contains("\r\n0\r\n"), "{text}");
        server.wait_error_log("upstream prematurely closed").unwrap();
    }
}

#[test]
fn stderr_flood_neither_fills_the_log_nor_blocks_the_loop() {
    let addr = application(|conn, _| {
        let flood = record(STDERR, vec![b'x'; 60_000]);
        (0..200).for_each(|_| conn.send(&flood));
        conn.answer_fastcgi("A: b\r\n\r\nafter all");
    });
    let conf = format!("location / {{ fastcgi_pass {addr}; }} location /ok {{ return 200 ok; }}");
    let server = start_server(server(), &conf);
    assert_eq!(page(&server, "/"), (200, "after all".to_owned()));
    assert_eq!(page(&server, "/ok").1, "ok");
    let log = server.wait_error_log("the rest is not logged").unwrap();
    assert!(log.len() < 200_000, "{}", log.len());
}

#[test]
fn failed_server_is_retried_on_the_next() {
    let complains = application_sending(
        [record(STDERR, "PHP Fatal error: no"), response("Status: 200 OK\r\n\r\nno")].concat(),
    );
    let missing = application_sending(response("Status: 404 Not Found\r\n\r\nnone"));
    let good = application_sending(response("\r\ngood"));
    let server = start(
        server(),
        &format!(
            "upstream caught {{ server {complains}; server {good} backup; }}
             upstream missing {{ server {missing}; server {good} backup; }}
             server {{ listen 127.0.0.1:{{port}};
                 location /caught {{ fastcgi_pass caught; fastcgi_catch_stderr \"PHP Fatal\";
                     fastcgi_next_upstream invalid_header; }}
                 location /missing {{ fastcgi_pass missing; fastcgi_next_upstream http_404; }}
                 location /off {{ fastcgi_pass missing; }} }}"
        ),
    );
    for (target, expected) in [("/caught", "good"), ("/missing", "good"), ("/off", "none")] {
        assert_eq!(page(&server, target).1, expected, "{target}");
    }
}

#[test]
fn keepalive_connections_are_reused_if_both_sides_agree() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    let addr = origin(move |mut conn| {
        counted.fetch_add(1, SeqCst);
        while let Some(request) = conn.fastcgi() {
            let length = match request.param("QUERY_STRING") {
                Some("length") => "Content-Length: 2\r\n",
                _ => "",
            };
            conn.answer_fastcgi(format!("{length}\r\nok"));
            if !request.keeps_open {
                return;
            }
        }
    });
    let server = start(
        server(),
        &format!(
            "upstream app {{ server {addr}; keepalive 4; }} fastcgi_param QUERY_STRING $query_string;
             server {{ listen 127.0.0.1:{{port}};
                 location /kept {{ fastcgi_pass app; fastcgi_keep_conn on; }}
                 location /closed {{ fastcgi_pass {addr}; }} }}"
        ),
    );
    for _ in 0..3 {
        for target in ["/kept", "/kept?length"] {
            assert_eq!(page(&server, target).1, "ok");
        }
        assert_eq!(request(&server, "HEAD /kept?length", &[]).status, 200);
    }
    assert_eq!(connections.load(SeqCst), 1);
    (0..3).for_each(|_| assert_eq!(page(&server, "/closed").1, "ok"));
    assert_eq!(connections.load(SeqCst), 4);
}

#[test]
fn unbuffered_body_is_sent_as_it_arrives() {
    let (sender, receiver) = channel();
    let addr = origin(move |mut conn| {
        let Some(request) = conn.fastcgi_head() else { return };
        let mut body = request.lines().into_bytes();
        while let Some(piece) = conn.fastcgi_piece() {
            let _ = sender.send(piece.len());
            body.extend(piece);
        }
        conn.answer_fastcgi(["\r\n".as_bytes(), &body].concat());
    });
    let server = start_server(
        server(),
        &format!(
            "client_max_body_size 0; location / {{ fastcgi_pass {addr}; fastcgi_request_buffering off; }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").unwrap();
    // The application gets the first part before the client has sent the rest.
    assert_eq!(receiver.recv_timeout(wait::TIMEOUT), Ok(5));
    client.send("6\r\nsecond\r\n0\r\n\r\n").unwrap();
    let text = client.read_response().unwrap().text();
    assert!(text.ends_with("firstsecond"), "{text}");
}

#[test]
fn upload_of_100_mib_arrives() {
    const SIZE: usize = 100 << 20;
    // Pieces are compared as a whole: a look at each byte takes seconds of a busy machine, while the client waits.
    let piece: Arc<Vec<u8>> = Arc::new((0..1 << 20).map(|n: u32| n as u8).collect());
    let sent = piece.clone();
    let addr = origin(move |mut conn| {
        let Some(request) = conn.fastcgi_head() else { return };
        let mut count = 0_usize;
        let mut is_right = true;
        while let Some(piece) = conn.fastcgi_piece() {
            // The content repeats itself every 256 bytes.
            is_right &= sent[count % 256..].starts_with(&piece);
            count += piece.len();
        }
        let length = request.param("CONTENT_LENGTH").unwrap_or_default();
        conn.answer_fastcgi(format!("\r\n{length} {count} {is_right}"));
    });
    let server = start(
        server(),
        &format!(
            "client_max_body_size 0; fastcgi_param CONTENT_LENGTH $content_length;
             server {{ listen 127.0.0.1:{{port}};
                 location /kept {{ fastcgi_pass {addr}; }}
                 location /passed {{ fastcgi_pass {addr}; fastcgi_request_buffering off; }} }}"
        ),
    );
    for target in ["/kept", "/passed"] {
        let mut client = server.connect().unwrap();
        client.send(format!("POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {SIZE}\r\n\r\n")).unwrap();
        (0..SIZE / piece.len()).for_each(|_| client.send(&*piece).unwrap());
        assert_eq!(client.read_response().unwrap().text(), format!("{SIZE} {SIZE} true"), "{target}");
    }
}

#[test]
fn fastcgi_send_timeout_ends_a_stalled_application() {
    let (go, end_signal) = channel::<()>();
    let end_signal = Arc::new(std::sync::Mutex::new(end_signal));
    let addr = origin(move |conn| {
        // The connection stays open until the test is over.
        let _ = end_signal.lock().map(|gone| gone.recv());
        drop(conn);
    });
    let server = start_server(
        server(),
        &format!("client_max_body_size 0; location / {{ fastcgi_pass {addr}; fastcgi_send_timeout 200ms; }}"),
    );
    let body = vec![b'x'; 32 << 20];
    let mut client = server.connect().unwrap();
    client.send(format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len())).unwrap();
    client.send(&body).unwrap();
    assert_eq!(client.read_response().unwrap().status, 504);
    drop(go);
}

#[test]
fn large_responses_pass_buffered_and_unbuffered() {
    const SIZE: usize = 3 << 20;
    let addr = application(|conn, request| {
        let length = match request.param("QUERY_STRING") {
            Some("length") => format!("Content-Length: {SIZE}\r\n"),
            _ => String::new(),
        };
        conn.answer_fastcgi([format!("{length}\r\n").as_bytes(), &vec![b'x'; SIZE]].concat());
    });
    let server = start(
        server(),
        &format!(
            "fastcgi_param QUERY_STRING $query_string;
             server {{ listen 127.0.0.1:{{port}};
                 location /on {{ fastcgi_pass {addr}; }}
                 location /file {{ fastcgi_pass {addr}; fastcgi_buffers 2 8k; fastcgi_buffer_size 8k; }}
                 location /off {{ fastcgi_pass {addr}; fastcgi_buffering off; }} }}"
        ),
    );
    for target in ["/on", "/on?length", "/file", "/file?length", "/off", "/off?length"] {
        let response = get(&server, target);
        assert_eq!((response.status, response.body.len()), (200, SIZE), "{target}");
        assert!(response.body.iter().all(|byte| *byte == b'x'));
    }
}

/// A server with a cache in front of an application that counts.
fn cached(valid: &str, more: &str) -> (Server, Arc<AtomicUsize>) {
    let request_count = Arc::new(AtomicUsize::new(0));
    let count = request_count.clone();
    let addr = application(move |conn, request| {
        let nth = count.fetch_add(1, SeqCst);
        let none_match = request.param("HTTP_IF_NONE_MATCH").unwrap_or("none").to_owned();
        match request.param("REQUEST_METHOD") {
            Some("HEAD") => conn.answer_fastcgi("X-App: head\r\n\r\n"),
            _ => conn
                .answer_fastcgi(format!("ETag: \"v\"\r\nContent-Type: text/html\r\n\r\n{nth} {none_match}")),
        }
    });
    let server = start(
        server().with_master(),
        &format!(
            "fastcgi_cache_path cache keys_zone=one:1m;
             server {{ listen 127.0.0.1:{{port}};
                 location = /metrics {{ metrics; }}
                 location / {{ fastcgi_pass {addr}; fastcgi_cache one; fastcgi_cache_valid {valid};
                     fastcgi_param REQUEST_METHOD $request_method;
                     add_header X-Cache $upstream_cache_status; {more} }} }}"
        ),
    );
    (server, request_count)
}

#[test]
fn responses_are_cached_and_purged() {
    let (server, request_count) = cached("1h", "fastcgi_cache_key $uri; fastcgi_cache_purge $arg_purge;");
    let status = |target: &str| get(&server, target).field("X-Cache").map(str::to_owned);
    // The response to a HEAD request is not stored for GET.
    assert_eq!(request(&server, "HEAD /a", &[]).status, 200);
    assert_eq!(page(&server, "/a").1, "1 none");
    wait_stored(&server, 1);
    assert_eq!(status("/a").as_deref(), Some("HIT"));
    let before = request_count.load(SeqCst);
    assert_eq!(page(&server, "/a").1, "1 none");
    // These requests are answered from the cache.
    assert_eq!(request(&server, "HEAD /a", &[]).field("X-Cache"), Some("HIT"));
    assert_eq!(request(&server, "GET /a", &["Range: bytes=2-5"]).text(), "none");
    assert_eq!(request(&server, "GET /a", &["If-None-Match: \"v\""]).status, 304);
    assert_eq!(request_count.load(SeqCst), before);
    assert!(get(&server, "/a?purge=1").status < 300);
    assert_eq!(status("/a").as_deref(), Some("MISS"));
}

#[test]
fn default_cache_key_distinguishes_pages() {
    let (server, _) = cached("1h", "");
    assert!(
        server.stderr().contains("no \"fastcgi_cache_key\" for \"fastcgi_cache\""),
        "{}",
        server.stderr()
    );
    let pages: Vec<_> = ["/a", "/b", "/a?x"].iter().map(|target| page(&server, target).1).collect();
    assert_eq!(pages, ["0 none", "1 none", "2 none"]);
}

#[test]
fn expired_entry_is_revalidated() {
    let (server, _) = cached("1s", "fastcgi_cache_key $uri; fastcgi_cache_revalidate on;");
    assert_eq!(page(&server, "/a").1, "0 none");
    let fresh = || page(&server, "/a").1 != "0 none";
    assert!(wait::until(wait::TIMEOUT, fresh));
    // The client's own is not passed on.
    let text = request(&server, "GET /b", &["If-None-Match: \"w\""]).text();
    assert!(text.ends_with(" none"), "{text}");
}

#[test]
fn x_accel_redirect_serves_an_internal_file() {
    let addr = application_sending(response(
        "X-Accel-Redirect: /protected/file\r\nContent-Type: a/b\r\nX-Not: passed\r\n\r\nnothing",
    ));
    let server = start_server(
        server().file("html/protected/file", "what is protected"),
        &format!("location / {{ fastcgi_pass {addr}; }} location /protected/ {{ internal; }}"),
    );
    let response = get(&server, "/download");
    assert_eq!((response.status, &*response.text()), (200, "what is protected"));
    assert_eq!((response.field("Content-Type"), response.field("X-Not")), (Some("a/b"), None));
    assert_eq!(get(&server, "/protected/file").status, 404);
}

#[test]
fn fastcgi_store_writes_copies() {
    let addr = application_sending(response("Content-Type: a/b\r\n\r\nto be kept"));
    let dir = TempDir::new("store").unwrap();
    let server = crate::support::start_as_we_are(
        server(),
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; location / {{ fastcgi_pass {addr}; fastcgi_store {}$uri; }} }}",
            dir.path().display()
        ),
    );
    assert_eq!(page(&server, "/a").1, "to be kept");
    let stored = || std::fs::read_to_string(dir.join("a")).unwrap_or_default();
    assert!(wait::until(wait::TIMEOUT, || stored() == "to be kept"));
}

#[test]
fn fastcgi_pass_takes_paths_and_variables() {
    let dir = TempDir::new("fcgi").unwrap();
    let path = dir.join("app.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for (nth, stream) in listener.incoming().enumerate() {
            let Ok(stream) = stream else { return };
            let mut conn = Conn { reader: std::io::BufReader::new(stream), nth };
            let _ = conn.fastcgi();
            conn.answer_fastcgi("\r\nby path");
        }
    });
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&path, mode).unwrap();
    let addr = application_sending(response("\r\nby address"));
    let path = path.display();
    let server = crate::support::start_as_we_are(
        server(),
        &format!(
            "upstream app {{ server {addr}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location /path {{ fastcgi_pass unix:{path}; }}
                 location / {{ set $to $arg_to; fastcgi_pass $to; }} }}"
        ),
    );
    for (target, expected) in [
        ("/path".to_owned(), "by path"),
        (format!("/?to={addr}"), "by address"),
        ("/?to=app".to_owned(), "by address"),
        (format!("/?to=unix:{path}"), "by path"),
    ] {
        assert_eq!(page(&server, &target), (200, expected.to_owned()), "{target}");
    }
    assert_eq!(get(&server, "/?to=localhost").status, 500);
    server.wait_error_log("no port in upstream \"localhost\"").unwrap();
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        ("location / { fastcgi_pass 127.0.0.1; }", "no port in upstream \"127.0.0.1\""),
        ("location / { fastcgi_split_path_info ^(.+)$; }", "pattern \"^(.+)$\" must have 2 captures"),
        ("fastcgi_param A b whenever;", "invalid parameter \"whenever\""),
        ("fastcgi_buffers 1 4k;", "there must be at least 2 \"fastcgi_buffers\""),
        ("fastcgi_cache none;", "\"fastcgi_cache\" zone \"none\" is unknown"),
        ("fastcgi_next_upstream http_502;", "invalid value \"http_502\""),
        ("fastcgi_pass 127.0.0.1:1;", "\"fastcgi_pass\" directive is not allowed here"),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
}

#[test]
fn path_info_trap_is_warned_of() {
    const SCRIPT: &str = "fastcgi_param SCRIPT_FILENAME $document_root$fastcgi_script_name;";
    for (location, is_told) in [
        (format!("location ~ \\.php$ {{ fastcgi_pass 127.0.0.1:1; {SCRIPT} }}"), true),
        (format!("location ~ \\.php(/|$) {{ fastcgi_pass 127.0.0.1:1; {SCRIPT} }}"), true),
        (format!("location ~ \\.php$ {{ try_files $uri =404; fastcgi_pass 127.0.0.1:1; {SCRIPT} }}"), false),
        (
            format!(
                "location ~ \\.php$ {{ if (!-f $document_root$fastcgi_script_name) {{ return 404; }} \
                 fastcgi_pass 127.0.0.1:1; {SCRIPT} }}"
            ),
            false,
        ),
        (format!("location ~ ^/index\\.php(/|$) {{ fastcgi_pass 127.0.0.1:1; {SCRIPT} }}"), false),
        (format!("location / {{ fastcgi_pass 127.0.0.1:1; {SCRIPT} }}"), false),
        (
            "location ~ \\.php$ { fastcgi_pass 127.0.0.1:1; fastcgi_param SCRIPT_FILENAME /a.php; }"
                .to_owned(),
            false,
        ),
    ] {
        let output =
            server().arg("-t").run(&format!("http {{ server {{ listen 127.0.0.1:{{port}}; {location} }} }}"));
        let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
        assert_eq!(said.contains("passes on scripts that may not exist"), is_told, "{location}: {said}");
    }
}

#[test]
fn closed_client_connection_ends_the_request() {
    let (sender, receiver) = channel();
    let addr = origin(move |mut conn| {
        let _ = conn.fastcgi();
        conn.send(record(STDOUT, "A: b\r\n\r\nsome"));
        let mut rest = Vec::new();
        let ended = conn.reader.read_to_end(&mut rest);
        let _ = sender.send(ended.map_or(0, |_| rest.len()));
    });
    let server = start_server(server(), &format!("location / {{ fastcgi_pass {addr}; }}"));
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    drop(client);
    assert_eq!(receiver.recv_timeout(wait::TIMEOUT), Ok(0));
}

#[test]
fn date_and_server_are_added_if_missing() {
    let addr = echo_application();
    let server = start(
        server(),
        &format!(
            "fastcgi_cache_path cache keys_zone=z:1m; server {{ listen 127.0.0.1:{{port}}; \
               location / {{ fastcgi_pass {addr}; }} \
               location /cached {{ fastcgi_pass {addr}; fastcgi_cache z; fastcgi_cache_key k; fastcgi_cache_valid 1m; }} }}"
        ),
    );
    for target in ["/", "/cached", "/cached"] {
        let response = get(&server, target);
        assert_eq!(response.values("Date").count(), 1, "{target}");
        assert!(response.field("Server").is_some_and(|server| server.starts_with("tailwater")), "{target}");
    }
}
