//! Features of the server over HTTP/2: early hints, rates, error pages, filters, subrequests, mirrors, caches.

use std::future::poll_fn;
use std::sync::mpsc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use http::HeaderMap;
use tokio::sync::mpsc::unbounded_channel;
use tw_testkit::http2::{Http2, head, take};
use tw_testkit::http2_origin::http2_origin;
use tw_testkit::origin::{counting, origin};
use tw_testkit::wait;

use crate::support::http2::connect;
use crate::support::{server, start, start_server};

/// Status and fields of interim responses and of the final one, and its content.
fn with_interim(client: &mut Http2, path: &str) -> (Vec<(u16, HeaderMap)>, Vec<u8>) {
    client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (mut response, _) = requests.send_request(head("GET", path, &[]), true).unwrap();
        let mut heads = Vec::new();
        let last = poll_fn(|cx| {
            while let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
                heads.push((interim.status().as_u16(), interim.headers().clone()));
            }
            std::pin::Pin::new(&mut response).poll(cx)
        });
        let (parts, body) = last.await.unwrap().into_parts();
        heads.push((parts.status.as_u16(), parts.headers));
        (heads, take(body).await.unwrap().0)
    })
}

#[test]
fn early_hints_precede_the_response() {
    let origin = origin(|mut conn| {
        while conn.head().is_some() {
            conn.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: close\r\n\r\n");
            conn.answer("Link: </b.css>\r\n", "page");
        }
    });
    let server = start(
        server(),
        &format!(
            "early_hints $arg_hints;
             server {{ listen 127.0.0.1:{{port}}; http2 on; location / {{ proxy_pass http://{origin}; }} }}"
        ),
    );
    let mut client = connect(&server);
    let (heads, body) = with_interim(&mut client, "/?hints=1");
    let statuses: Vec<_> = heads.iter().map(|(status, _)| *status).collect();
    assert_eq!((&statuses[..], &body[..]), (&[103, 200][..], &b"page"[..]));
    assert_eq!(heads[0].1["link"], "</a.css>");
    assert!(!heads[0].1.contains_key("connection"));
    assert_eq!(heads[1].1["link"], "</b.css>");
    assert_eq!(with_interim(&mut client, "/").0.len(), 1, "who did not ask for them gets none");
}

#[test]
fn expect_100_continue_is_answered() {
    let (origin, _) = counting(|conn, head, _| {
        assert!(head.contains("Content-Length: 4\r\n"), "{head}");
        let mut body = [0; 4];
        std::io::Read::read_exact(&mut conn.reader, &mut body).unwrap();
        conn.answer("", body);
    });
    let server = start_server(
        server(),
        &format!("http2 on; location /to {{ proxy_pass http://{origin}; }} location /no {{ return 403; }}"),
    );
    let mut client = connect(&server);
    let expecting = [("expect", "100-continue"), ("content-length", "4")];
    let body = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (mut response, mut body) = requests.send_request(head("POST", "/to", &expecting), false).unwrap();
        let interim = poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!(interim.status(), 100);
        body.send_data(Bytes::from_static(b"body"), true).unwrap();
        take(response.await.unwrap().into_body()).await.unwrap().0
    });
    assert_eq!(body, b"body");
    let status = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (mut response, _body) = requests.send_request(head("POST", "/no", &expecting), false).unwrap();
        let mut hundreds = 0;
        let last = poll_fn(|cx| {
            while let Poll::Ready(Some(Ok(_))) = response.poll_informational(cx) {
                hundreds += 1;
            }
            std::pin::Pin::new(&mut response).poll(cx)
        });
        (last.await.unwrap().status().as_u16(), hundreds)
    });
    assert_eq!(status, (403, 0), "nobody wants it");
}

#[test]
fn limit_rate_applies_to_each_stream() {
    let server = start_server(
        server().file("html/a", vec![b'x'; 3000]).file("html/b", "fast"),
        "http2 on; location /a { limit_rate 1500; }",
    );
    let mut client = connect(&server);
    let start = Instant::now();
    let (slow, fast_at) = client.run(|requests| async move {
        let slow =
            tokio::spawn(tw_testkit::http2::exchange(requests.clone(), head("GET", "/a", &[]), Bytes::new()));
        let fast = tw_testkit::http2::exchange(requests, head("GET", "/b", &[]), Bytes::new()).await.unwrap();
        assert_eq!(fast.text(), "fast");
        let fast_at = start.elapsed();
        (slow.await.unwrap().unwrap(), fast_at)
    });
    let slow_at = start.elapsed();
    assert_eq!(slow.body.len(), 3000);
    // The bytes of one second are sent at once, the rest at the limited rate.
    assert!(slow_at >= Duration::from_millis(900) && fast_at < slow_at, "{slow_at:?} {fast_at:?}");
}

#[test]
fn trailers_pass_from_upstream() {
    let origin = origin(|mut conn| {
        while conn.head().is_some() {
            conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n");
            conn.send("4\r\nbody\r\n0\r\nX-Sum: 42\r\n\r\n");
        }
    });
    let server = start_server(
        server(),
        &format!(
            "http2 on; location / {{ proxy_pass http://{origin}; proxy_pass_trailers on; add_trailer X-Sum $upstream_trailer_x_sum; }}"
        ),
    );
    let answer = connect(&server).get("/").unwrap();
    assert_eq!(answer.text(), "body");
    assert_eq!(answer.trailers.unwrap()["x-sum"], "42");
}

#[test]
fn error_page_is_used() {
    let server = start_server(
        server().file("html/lost.html", "lost: <!--#echo var=\"request_uri\" -->"),
        "http2 on; error_page 404 =410 /lost.html; location = /lost.html { internal; ssi on; }
         location /teapot { return 418; } location /named { error_page 404 @other; } location @other { return 200 other; }",
    );
    let mut client = connect(&server);
    let lost = client.get("/nothing").unwrap();
    assert_eq!((lost.status, lost.text().as_str()), (410, "lost: /nothing"));
    assert_eq!(client.get("/teapot").unwrap().status, 418);
    assert_eq!(client.get("/named").unwrap().text(), "other");
    assert_eq!(client.get("/lost.html").unwrap().status, 410, "it is internal");
}

#[test]
fn filters_and_ranges_work_together() {
    let text = "all work and no play ".repeat(500);
    let server = start_server(
        server().file("html/t.txt", &text).file("html/sub.txt", "here is a cat"),
        "http2 on; gzip_types text/plain; location /t.txt { gzip on; }
         location /sub.txt { sub_filter_types *; sub_filter cat dog; }",
    );
    let mut client = connect(&server);
    let packed = client.request("GET", "/t.txt", &[("accept-encoding", "gzip")], b"").unwrap();
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert!(packed.field("etag").unwrap().starts_with("W/"));
    let part = client.request("GET", "/t.txt", &[("range", "bytes=4-7")], b"").unwrap();
    assert_eq!((part.status, part.text().as_str()), (206, "work"));
    let range = format!("bytes 4-7/{}", text.len());
    assert_eq!(part.field("content-range"), Some(&*range));
    let outside = client.request("GET", "/t.txt", &[("range", "bytes=99999-")], b"").unwrap();
    assert_eq!(outside.status, 416);
    assert_eq!(client.get("/sub.txt").unwrap().text(), "here is a dog");
}

#[test]
fn ssi_includes_are_in_place() {
    let (origin, _) = counting(|conn, head, _| {
        let path = head.split(' ').nth(1).unwrap().to_owned();
        conn.answer("", format!("[{path}]"));
    });
    let page = "a<!--#include virtual=\"/to/1\" -->b<!--#include virtual=\"/to/2\" -->c";
    let server = start_server(
        server().file("html/p.html", page),
        &format!("http2 on; ssi on; location /to {{ proxy_pass http://{origin}; }}"),
    );
    assert_eq!(connect(&server).get("/p.html").unwrap().text(), "a[/to/1]b[/to/2]c");
}

#[test]
fn mirror_copies_requests() {
    let (sender, receiver) = mpsc::channel();
    let (origin, _) = counting(move |conn, head, _| {
        sender.send(head.lines().next().unwrap().to_owned()).unwrap();
        conn.answer("", "nobody sees it");
    });
    let server = start_server(
        server().file("html/a.txt", "hello"),
        &format!(
            "http2 on; location / {{ mirror /copy; }} location /copy {{ internal; proxy_pass http://{origin}$request_uri; }}"
        ),
    );
    let mut client = connect(&server);
    assert_eq!(client.get("/a.txt?x").unwrap().text(), "hello");
    assert_eq!(receiver.recv_timeout(wait::TIMEOUT).unwrap(), "GET /a.txt?x HTTP/1.1");
}

#[test]
fn concurrent_misses_share_one_fill() {
    let (go, end_signal) = mpsc::channel::<()>();
    let end_signal = std::sync::Arc::new(std::sync::Mutex::new(end_signal));
    let (origin, request_count) = counting(move |conn, _, _| {
        end_signal.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        conn.answer("Cache-Control: max-age=100\r\n", vec![b'x'; 300_000]);
    });
    let server = start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=c:1m;
             proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1h;
             server {{ listen 127.0.0.1:{{port}}; http2 on;
                       location / {{ proxy_pass http://{origin}; proxy_cache c; add_header X-Cache $upstream_cache_status; }} }}"
        ),
    );
    let mut client = connect(&server);
    let sizes = client.run(|requests| async move {
        let all: Vec<_> = (0..8)
            .map(|_| {
                let request =
                    tw_testkit::http2::exchange(requests.clone(), head("GET", "/", &[]), Bytes::new());
                tokio::spawn(request)
            })
            .collect();
        go.send(()).unwrap();
        let mut sizes = Vec::new();
        for one in all {
            sizes.push(one.await.unwrap().unwrap().body.len());
        }
        sizes
    });
    assert_eq!(sizes, [300_000; 8]);
    assert_eq!(request_count.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn stream_reset_during_the_response_closes_the_upstream_connection() {
    let (sender, mut receiver) = unbounded_channel();
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\nbegun");
        sender.send("begun").unwrap();
        let _ = conn.head();
        sender.send("left").unwrap();
    });
    let server = start_server(
        server().file("html/a.txt", "hello"),
        &format!("http2 on; location /to {{ proxy_pass http://{origin}; proxy_buffering off; }}"),
    );
    let mut client = connect(&server);
    client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut stream) = requests.send_request(head("GET", "/to", &[]), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), "begun");
        assert_eq!(receiver.recv().await, Some("begun"));
        stream.send_reset(Reason::CANCEL);
        drop(body);
        assert_eq!(receiver.recv().await, Some("left"));
    });
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn truncated_upstream_response_resets_the_stream() {
    let (go, end_signal) = mpsc::channel::<()>();
    let end_signal = std::sync::Arc::new(std::sync::Mutex::new(end_signal));
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        end_signal.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
    });
    let server = start_server(
        server().file("html/a.txt", "hello"),
        &format!("http2 on; location /to {{ proxy_pass http://{origin}; proxy_buffering off; }}"),
    );
    let mut client = connect(&server);
    let error = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, _) = requests.send_request(head("GET", "/to", &[]), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), "half");
        go.send(()).unwrap();
        take(body).await.unwrap_err()
    });
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn client_body_in_file_only_writes_an_empty_body() {
    let (origin, _) = counting(|conn, head, _| {
        let file = head.lines().find_map(|line| line.strip_prefix("X-File: ")).unwrap_or_default();
        let len = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let mut body = vec![0; len.map_or(0, |len| len.parse().unwrap())];
        std::io::Read::read_exact(&mut conn.reader, &mut body).unwrap();
        let size = std::fs::metadata(file).map_or("none".to_owned(), |file| file.len().to_string());
        conn.answer("", size);
    });
    let server = start_server(
        server(),
        &format!(
            "http2 on; client_body_temp_path temp; location / {{ client_body_in_file_only clean; proxy_pass http://{origin}; \
             proxy_set_header X-File $request_body_file; }}"
        ),
    );
    let mut client = connect(&server);
    for (length, body, expected) in [(Some("0"), "", "0"), (Some("2"), "ab", "2"), (None, "", "none")] {
        let fields: Vec<_> = length.iter().map(|length| ("content-length", *length)).collect();
        assert_eq!(
            client.request("POST", "/", &fields, body.as_bytes()).unwrap().text(),
            expected,
            "{length:?}"
        );
    }
}

#[test]
fn http2_settings_is_not_forwarded() {
    use tw_testkit::application::ApplicationRequest;
    let (sender, receiver) = mpsc::channel::<String>();
    let application = |read: fn(&mut tw_testkit::origin::Conn) -> Option<ApplicationRequest>| {
        let sender = sender.clone();
        origin(move |mut conn| {
            if let Some(request) = read(&mut conn) {
                sender.send(request.lines()).unwrap();
            }
        })
    };
    let fastcgi = application(|conn| conn.fastcgi());
    let uwsgi = application(|conn| conn.uwsgi());
    let scgi = application(|conn| conn.scgi());
    let plain = origin({
        let sender = sender.clone();
        move |mut conn| {
            while let Some(head) = conn.head() {
                sender.send(head).unwrap();
                conn.answer("", "");
            }
        }
    });
    let carried = http2_origin(h2::server::Builder::new(), move |mut request| {
        sender.send(format!("{:?}", request.head)).unwrap();
        async move { request.answer(&[], "") }
    });
    let server = start_server(
        server(),
        &format!(
            "http2 on; location /plain {{ proxy_pass http://{plain}; proxy_set_header HTTP2-Settings $http_http2_settings; }}
             location /carried {{ proxy_pass http://{carried}; proxy_http_version 2; }}
             location /grpc {{ grpc_pass {carried}; }} location /fastcgi {{ fastcgi_pass {fastcgi}; }}
             location /uwsgi {{ uwsgi_pass {uwsgi}; }} location /scgi {{ scgi_pass {scgi}; }}"
        ),
    );
    let mut client = connect(&server);
    for path in ["/plain", "/carried", "/grpc", "/fastcgi", "/uwsgi", "/scgi"] {
        for version in [1, 2] {
            let fields = [("http2-settings", "AAMAAABkAAQAAP__"), ("x-stays", "here")];
            if version == 2 {
                let _ = client.request("GET", path, &fields, b"");
            } else {
                let lines = fields.map(|(name, value)| format!("{name}: {value}"));
                let _ = crate::support::request(&server, &format!("GET {path}"), &[&lines[0], &lines[1]]);
            }
            let request = receiver.recv_timeout(wait::TIMEOUT).unwrap().to_lowercase();
            assert!(request.contains("here"), "{path} {version}: {request}");
            assert!(!request.contains("aamaaabk"), "{path} {version}: {request}");
        }
    }
}
