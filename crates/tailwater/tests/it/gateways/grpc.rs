//! `grpc_pass`: shared HTTP/2 connections, streaming, trailers, retries and GOAWAY.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use h2::Reason;
use h2::server::Builder as Settings;
use http::HeaderMap;
use rustls::ALL_VERSIONS;
use tokio::sync::mpsc::unbounded_channel;
use tw_testkit::http2::{
    END_HEADERS, END_STREAM, Frames, Http2, Http2Response, exchange, frame, head, hpack, kind, take,
};
use tw_testkit::http2_origin::{
    ConnectionCommand, OriginRequest, frames_origin, http2_origin, secured_http2_origin, trailers,
};
use tw_testkit::ports::Port;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server, wait};

use crate::support::http2::connect;
use crate::support::{refusal_of, server, start};

pub(super) const PATH: &str = "/echo.Echo/Say";
pub(super) const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
pub(super) const CANCEL: u32 = 8;

/// A server with `http` and `content` in its blocks; it has one loop, so that connections are reused.
pub(super) fn start_grpc(http: &str, content: &str) -> Server {
    start(
        server(),
        &format!(
            "log_format up '$request_uri $status $upstream_addr $upstream_status $upstream_trailer_grpc_status';
             access_log logs/access.log up; {http}
             server {{ listen 127.0.0.1:{{port}}; http2 on; {content} }}"
        ),
    )
}

pub(super) fn start_grpc_to(addr: SocketAddr, more: &str) -> Server {
    start_grpc("", &format!("location / {{ grpc_pass {addr}; {more} }}"))
}

/// [`start_grpc_to`] through an `upstream` whose connections are kept.
fn start_grpc_upstream(addr: SocketAddr, more: &str) -> Server {
    start_grpc(
        &format!("upstream u {{ server {addr}; keepalive 4; {more} }}"),
        "location / { grpc_pass grpc://u; }",
    )
}

/// A call with this message.
pub(super) fn call(client: &mut Http2, message: &[u8]) -> Result<Http2Response, h2::Error> {
    client.request("POST", PATH, &[("content-type", "application/grpc"), ("te", "trailers")], message)
}

/// An origin that echoes messages, and ends with `grpc-status`.
async fn echo(mut request: OriginRequest) {
    let Ok((message, _)) = take(request.body).await else { return };
    let mut body = request.respond.send_response(http::Response::new(()), false).unwrap();
    body.send_data(message.into(), false).unwrap();
    body.send_trailers(trailers(&[("grpc-status", "0"), ("grpc-message", "fine")])).unwrap();
}

fn grpc_status(answer: &Http2Response) -> &str {
    answer.trailers.as_ref().and_then(|trailers| trailers.get("grpc-status")).unwrap().to_str().unwrap()
}

#[test]
fn call_is_passed_and_its_status_returned() {
    let addr = http2_origin(Settings::new(), |mut request| async move {
        let head = &request.head;
        let mut said = format!("{} {}\n", head.method(), head.uri());
        for (name, value) in head.headers() {
            said.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
        }
        let (message, _) = take(request.body).await.unwrap();
        said.push_str(&format!("{} bytes", message.len()));
        let mut body = request.respond.send_response(http::Response::new(()), false).unwrap();
        body.send_data(said.into(), false).unwrap();
        body.send_trailers(trailers(&[("grpc-status", "0"), ("date", "x"), ("content-length", "7")]))
            .unwrap();
    });
    let server = start_grpc_to(addr, "grpc_set_header X-Set $request_method; grpc_set_header X-None '';");
    let mut client = connect(&server);
    let fields = [("te", "trailers"), ("x-none", "1"), ("x-one", "1"), ("grpc-timeout", "1S")];
    let answer = client.request("POST", "/echo.Echo/Say?x=%20", &fields, &[7; 9]).unwrap();
    let expected = format!(
        "POST http://{addr}/echo.Echo/Say?x=%20\nx-set: POST\nx-one: 1\ngrpc-timeout: 1S\nte: trailers\n9 bytes"
    );
    assert_eq!((answer.status, answer.text()), (200, expected));
    let expected: HeaderMap = trailers(&[("grpc-status", "0")]);
    assert_eq!(answer.trailers, Some(expected), "what is hidden, or may be no trailer, is not passed on");
    let expected = format!("/echo.Echo/Say?x=%20 200 {addr} 200 0");
    assert_eq!(server.access_log(1).unwrap(), [expected]);
}

#[test]
fn trailers_only_response_is_a_head() {
    let addr = http2_origin(Settings::new(), |mut request| async move {
        request.empty(200, &[("content-type", "application/grpc"), ("grpc-status", "12"), ("date", "x")]);
    });
    let server = start_grpc_to(addr, "");
    let answer = call(&mut connect(&server), b"").unwrap();
    assert_eq!((answer.status, answer.field("grpc-status")), (200, Some("12")));
    assert_eq!((answer.body.len(), answer.trailers.clone()), (0, None));
    assert_ne!(answer.field("date"), Some("x"));
}

#[test]
fn http1_client_gets_trailers_after_chunks() {
    let server = start_grpc_to(http2_origin(Settings::new(), echo), "");
    let mut client = Client::connect(server.addr()).unwrap();
    client
        .send(format!(
            "POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
        ))
        .unwrap();
    let text = String::from_utf8(client.read_until_close().unwrap()).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.ends_with("\r\n5\r\nhello\r\n0\r\ngrpc-status: 0\r\ngrpc-message: fine\r\n\r\n"), "{text}");
}

#[test]
fn streaming_is_bidirectional() {
    let addr = http2_origin(Settings::new(), |mut request| async move {
        let mut body = request.begin(200, &[("x-early", "1")]);
        while let Some(Ok(message)) = request.body.data().await {
            let _ = request.body.flow_control().release_capacity(message.len());
            body.send_data(message, false).unwrap();
        }
        body.send_trailers(trailers(&[("grpc-status", "0")])).unwrap();
    });
    let server = start_grpc_to(addr, "");
    let mut client = connect(&server);
    let status = client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut body) = requests.send_request(head("POST", PATH, &[]), false).unwrap();
        // The head of the response comes before anything of the request but its head.
        let mut answer = response.await.unwrap().into_body();
        for nth in 0..3_u8 {
            body.send_data(vec![nth; 100].into(), false).unwrap();
            let mut got = Vec::new();
            while got.len() < 100 {
                got.extend_from_slice(&answer.data().await.unwrap().unwrap());
            }
            assert_eq!(got, [nth; 100]);
        }
        body.send_data(Bytes::new(), true).unwrap();
        let (rest, trailers) = take(answer).await.unwrap();
        assert_eq!(rest, b"");
        trailers.unwrap()["grpc-status"].clone()
    });
    assert_eq!(status, "0");
}

#[test]
fn large_message_passes_both_ways() {
    let server = start_grpc_to(http2_origin(Settings::new(), echo), "client_max_body_size 0;");
    let message: Vec<u8> = (0..3 << 20).map(|n: u32| (n >> 3) as u8).collect();
    let mut client = connect(&server);
    let answer = client.run(|requests| async {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut body) = requests.send_request(head("POST", PATH, &[]), false).unwrap();
        body.send_data(message.clone().into(), true).unwrap();
        take(response.await.unwrap().into_body()).await.unwrap()
    });
    assert!(answer.0 == message);
    assert_eq!(answer.1.unwrap()["grpc-status"], "0");
}

/// An origin that answers with the number of its connection once as many requests as the next of `counts` have arrived.
fn gathering_origin(settings: Settings, counts: &'static [usize]) -> SocketAddr {
    let came = tokio::sync::watch::Sender::new(0);
    http2_origin(settings, move |mut request| {
        came.send_modify(|came| *came += 1);
        let nth = *came.borrow();
        let wanted_number = counts.iter().copied().find(|count| *count >= nth).unwrap_or(0);
        let mut arrived = came.subscribe();
        async move {
            arrived.wait_for(|came| *came >= wanted_number).await.unwrap();
            let conn = request.conn.to_string();
            request.answer(&[], conn);
        }
    })
}

/// Bodies of the responses to `count` concurrent requests.
fn concurrent_calls(server: &Server, count: usize) -> Vec<String> {
    let mut client = connect(server);
    client.run(|requests| async move {
        let requests_sent = (0..count).map(|_| {
            tokio::spawn(exchange(requests.clone(), head("POST", PATH, &[]), Bytes::from_static(b"a")))
        });
        let requests_sent: Vec<_> = requests_sent.collect();
        let mut answers = Vec::new();
        for one in requests_sent {
            answers.push(match one.await.unwrap() {
                Ok(answer) if answer.status == 200 => answer.text(),
                Ok(answer) => answer.status.to_string(),
                Err(error) => error.to_string(),
            });
        }
        answers
    })
}

#[test]
fn requests_share_a_connection() {
    let server = start_grpc_upstream(gathering_origin(Settings::new(), &[20, 40]), "");
    assert_eq!(concurrent_calls(&server, 20), vec!["0"; 20]);
    assert_eq!(concurrent_calls(&server, 20), vec!["0"; 20], "it is kept");
}

#[test]
fn max_concurrent_streams_of_the_server_is_kept() {
    let mut settings = Settings::new();
    settings.max_concurrent_streams(4);
    let addr = gathering_origin(settings, &[1, 6]);
    let server = start_grpc_upstream(addr, "");
    // The limit applies once the settings of the server are known. Before that, the `h2` crate queues excess streams.
    assert_eq!(concurrent_calls(&server, 1), ["0"]);
    let mut answers = concurrent_calls(&server, 5);
    answers.sort();
    assert_eq!(answers, ["0", "0", "0", "0", "1"]);
}

#[test]
fn requests_before_settings_are_moved_to_another_connection() {
    let mut settings = Settings::new();
    settings.max_concurrent_streams(1);
    let addr = http2_origin(settings, |mut request| async move { request.answer(&[], "fine") });
    let server = start_grpc_upstream(addr, "");
    assert_eq!(concurrent_calls(&server, 4), ["fine"; 4], "{}", server.error_log());
}

#[test]
fn lowered_max_concurrent_streams_is_kept() {
    let came = Arc::new(AtomicUsize::new(0));
    let addr = frames_origin(move |mut frames, nth| {
        while let Ok(Some(request)) = frames.wait(kind::HEADERS) {
            let before = came.fetch_add(1, SeqCst);
            if before == 0 {
                // SETTINGS_MAX_CONCURRENT_STREAMS
                frames.send(frame(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1])).unwrap();
            } else if !wait::until(wait::TIMEOUT, || came.load(SeqCst) == 3) {
                return;
            }
            let head = hpack(&[(":status", "200")]);
            frames.send(frame(kind::HEADERS, END_HEADERS, request.stream, &head)).unwrap();
            frames.send(frame(kind::DATA, END_STREAM, request.stream, nth.to_string().as_bytes())).unwrap();
        }
    });
    let server = start_grpc_upstream(addr, "");
    assert_eq!(concurrent_calls(&server, 1), ["0"]);
    let mut answers = concurrent_calls(&server, 2);
    answers.sort();
    assert_eq!(answers, ["0", "1"]);
}

#[test]
fn connection_without_keepalive_closes_after_its_last_request() {
    let addr = gathering_origin(Settings::new(), &[]);
    let without = format!("upstream u {{ server {addr}; keepalive 0; }}");
    let mut nth = 0..;
    for (http, address) in [("", addr.to_string()), (&without, "u".to_owned())] {
        let server = start_grpc(http, &format!("location / {{ grpc_pass {address}; }}"));
        for nth in nth.by_ref().take(3) {
            assert_eq!(concurrent_calls(&server, 1), [nth.to_string()]);
        }
    }
}

#[test]
fn refused_stream_is_retried() {
    let addr = frames_origin(|mut frames, _| {
        let mut refused = false;
        while let Ok(Some(request)) = frames.wait(kind::HEADERS) {
            if !std::mem::replace(&mut refused, true) {
                frames
                    .send(frame(kind::RST_STREAM, 0, request.stream, &REFUSED_STREAM.to_be_bytes()))
                    .unwrap();
                continue;
            }
            send_head(&mut frames, request.stream, "200");
        }
    });
    let server = start_grpc_upstream(addr, "");
    assert_eq!(call(&mut connect(&server), b"message").unwrap().status, 200);
    server.wait_error_log("upstream rejected request with error 7").unwrap();
}

/// HEADERS of a response without content.
fn send_head(frames: &mut Frames, stream: u32, status: &str) {
    let block = hpack(&[(":status", status), ("grpc-status", "0")]);
    frames.send(frame(kind::HEADERS, END_STREAM | END_HEADERS, stream, &block)).unwrap();
}

#[test]
fn retries_of_refused_streams_are_bounded() {
    let addr = frames_origin(|mut frames, _| {
        while let Ok(Some(request)) = frames.wait(kind::HEADERS) {
            frames.send(frame(kind::RST_STREAM, 0, request.stream, &REFUSED_STREAM.to_be_bytes())).unwrap();
        }
    });
    let server = start_grpc_to(addr, "");
    assert_eq!(call(&mut connect(&server), b"message").unwrap().status, 502);
    let refusals = || server.error_log().matches("with error 7").count();
    assert!(wait::until(wait::TIMEOUT, || refusals() == 4), "{}", server.error_log());
}

#[test]
fn stream_beyond_goaway_is_retried() {
    let addr = frames_origin(|mut frames, nth| {
        while let Ok(Some(request)) = frames.wait(kind::HEADERS) {
            match nth {
                // The last stream that it has seen is none.
                0 => frames.send(frame(kind::GOAWAY, 0, 0, &[0; 8])).unwrap(),
                _ => send_head(&mut frames, request.stream, "200"),
            }
        }
    });
    let server = start_grpc_to(addr, "");
    assert_eq!(call(&mut connect(&server), b"message").unwrap().status, 200);
    server.wait_error_log("upstream sent goaway with error 0").unwrap();
}

#[test]
fn streams_before_goaway_are_finished() {
    let addr = http2_origin(Settings::new(), |mut request| async move {
        let conn = request.conn.to_string();
        request.commands.send(ConnectionCommand::Leave).unwrap();
        let mut body = request.begin(200, &[]);
        body.send_data(conn.into(), true).unwrap();
    });
    let server = start_grpc_upstream(addr, "");
    let mut client = connect(&server);
    assert_eq!(call(&mut client, b"a").unwrap().text(), "0");
    assert_eq!(call(&mut client, b"a").unwrap().text(), "1");
}

#[test]
fn reset_stream_leaves_the_others() {
    let (go, going) = unbounded_channel::<()>();
    let going = Arc::new(tokio::sync::Mutex::new(going));
    let addr = http2_origin(Settings::new(), move |mut request| {
        let going = going.clone();
        async move {
            match request.head.uri().path() {
                "/reset" => request.respond.send_reset(Reason::INTERNAL_ERROR),
                "/late" => {
                    let mut body = request.begin(200, &[]);
                    body.send_data(Bytes::from_static(b"begun"), false).unwrap();
                    going.lock().await.recv().await;
                    body.send_reset(Reason::INTERNAL_ERROR);
                }
                _ => {
                    going.lock().await.recv().await;
                    request.answer(&[], "fine");
                }
            }
        }
    });
    let server = start_grpc_to(addr, "");
    let mut client = connect(&server);
    let (slow, reset, late) = client.run(|requests| async move {
        let request = |path: &str| {
            tokio::spawn(exchange(requests.clone(), head("POST", path, &[]), Bytes::from_static(b"a")))
        };
        let reset = request("/reset").await.unwrap();
        let mut requests = requests.clone().ready().await.unwrap();
        let (late, _) = requests.send_request(head("POST", "/late", &[]), true).unwrap();
        let mut late = late.await.unwrap().into_body();
        assert_eq!(late.data().await.unwrap().unwrap(), "begun");
        // The origin answers first the request that waits longest.
        let slow = request("/slow");
        go.send(()).unwrap();
        let late = take(late).await;
        go.send(()).unwrap();
        (slow.await.unwrap(), reset, late)
    });
    assert_eq!(slow.unwrap().text(), "fine");
    assert_eq!(reset.unwrap().status, 502);
    let late = late.unwrap_err();
    assert_eq!(late.reason().map(u32::from), Some(INTERNAL_ERROR));
    let line = "upstream rejected request with error 2 while reading";
    server.wait_error_log(&format!("{line} response header from upstream")).unwrap();
    server.wait_error_log(&format!("{line} upstream")).unwrap();
}

#[test]
fn closed_connection_ends_its_streams() {
    let came = Arc::new(AtomicUsize::new(0));
    let addr = http2_origin(Settings::new(), move |mut request| {
        let came = came.clone();
        async move {
            match (request.conn, came.fetch_add(1, SeqCst)) {
                (0, 2) => request.commands.send(ConnectionCommand::Abort).unwrap(),
                (0, _) => std::future::pending().await,
                _ => request.answer(&[], "fine"),
            }
        }
    });
    let server = start_grpc_to(addr, "");
    assert_eq!(concurrent_calls(&server, 3), ["502"; 3]);
    assert_eq!(concurrent_calls(&server, 1), ["fine"]);
    // The client sees an EOF or a reset, depending on whether the origin had unread data.
    let lines = ["upstream prematurely closed connection", "recv() failed (104: Connection reset by peer)"]
        .map(|what| format!("{what} while reading response header from upstream"));
    let goaways = || lines.iter().map(|line| server.error_log().matches(line).count()).sum::<usize>();
    assert!(wait::until(wait::TIMEOUT, || goaways() == 3), "{}", server.error_log());
}

#[test]
fn closed_client_connection_resets_the_stream() {
    let (sender, mut receiver) = unbounded_channel();
    let addr = http2_origin(Settings::new(), move |mut request| {
        let sender = sender.clone();
        async move {
            sender.send(0).unwrap();
            let reason = std::future::poll_fn(|cx| request.respond.poll_reset(cx)).await.unwrap();
            sender.send(u32::from(reason)).unwrap();
        }
    });
    let server = start_grpc_to(addr, "");
    let mut client = connect(&server);
    client.run(|requests| async move {
        let mut requests = requests.ready().await.unwrap();
        let (response, mut body) = requests.send_request(head("POST", PATH, &[]), false).unwrap();
        body.send_data(Bytes::from_static(b"a"), true).unwrap();
        assert_eq!(receiver.recv().await, Some(0));
        body.send_reset(Reason::CANCEL);
        drop(response);
        assert_eq!(receiver.recv().await, Some(CANCEL));
    });
    assert_eq!(server.access_log(1).unwrap(), [format!("{PATH} 499 {addr} - -")]);
}

#[test]
fn request_is_built_once_or_for_each_server() {
    let failing = http2_origin(Settings::new(), |mut request| async move { request.empty(503, &[]) });
    let telling = http2_origin(Settings::new(), |mut request| async move {
        let to = request.head.headers().get("x-to").map_or("nobody", |to| to.to_str().unwrap()).to_owned();
        request.answer(&[], to);
    });
    let server = start_grpc(
        &format!("upstream both {{ server {failing}; server {telling} backup; }}"),
        "grpc_next_upstream http_503 non_idempotent; grpc_set_header X-To $upstream_last_addr;
         location /once { grpc_pass both; }
         location /each { grpc_request_dynamic on; grpc_pass both; }
         location /line { grpc_request_dynamic on; grpc_set_header X-To \"a\\nb\"; grpc_pass both; }",
    );
    let mut client = connect(&server);
    let mut request = |path: &str| client.request("POST", path, &[], b"").unwrap();
    assert_eq!(request("/once").text(), "nobody");
    assert_eq!(request("/each").text(), telling.to_string());
    // A request that cannot be built is an error for the client, whichever server it would be sent to.
    assert_eq!(request("/line").status, 400);
}

#[test]
fn failed_server_is_retried_on_the_next() {
    let failing = http2_origin(Settings::new(), |mut request| async move { request.empty(503, &[]) });
    let fine = http2_origin(Settings::new(), |mut request| async move { request.answer(&[], "fine") });
    let server = start_grpc(
        &format!("upstream u {{ server {failing}; server {fine} backup; }}"),
        "grpc_next_upstream http_503 non_idempotent;
         location / { grpc_pass u; }
         location /here { grpc_pass grpc://u; grpc_next_upstream off; grpc_intercept_errors on; error_page 503 =200 @page; }
         location @page { return 200 instead; }",
    );
    let mut client = connect(&server);
    assert_eq!(client.request("POST", "/here", &[], b"").unwrap().text(), "instead");
    assert_eq!(client.request("POST", "/", &[], b"").unwrap().text(), "fine");
    let lines = server.access_log(2).unwrap();
    assert_eq!(lines[1], format!("/ 200 {failing}, {fine} 503, 200 -"));
}

#[test]
fn buffered_message_is_sent_to_the_next_server() {
    let port = Port::reserve().unwrap();
    let dead = format!("127.0.0.1:{}", port.number());
    let server = start_grpc(
        &format!("upstream u {{ server {dead}; server {} backup; }}", http2_origin(Settings::new(), echo)),
        "location / { grpc_pass u; }",
    );
    let answer = call(&mut connect(&server), b"message").unwrap();
    assert_eq!((answer.status, answer.text().as_str(), grpc_status(&answer)), (200, "message", "0"));
}

#[test]
fn tls_negotiates_h2_by_alpn() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let mut config = rustls::ServerConfig::clone(&Authority::server(ALL_VERSIONS, &made));
    let plain =
        secured_http2_origin(
            Arc::new(config.clone()),
            |mut request| async move { request.answer(&[], "none") },
        );
    config.alpn_protocols = vec![b"h2".to_vec()];
    let addr = secured_http2_origin(Arc::new(config), |mut request| async move {
        let said = format!("{} {}", request.conn, request.head.uri());
        request.answer(&[], said);
    });
    let trusted = server().file("conf/ca.pem", authority.pem());
    let server = start(
        trusted,
        &format!(
            "server {{ listen 127.0.0.1:{{port}}; http2 on;
                 grpc_ssl_trusted_certificate ca.pem; grpc_ssl_verify on; grpc_ssl_name localhost;
                 location / {{ grpc_pass grpcs://{addr}; }} location /none {{ grpc_pass grpcs://{plain}; }} }}"
        ),
    );
    let mut client = connect(&server);
    assert_eq!(client.request("POST", "/a", &[], b"a").unwrap().text(), format!("0 https://{addr}/a"));
    assert_eq!(client.request("POST", "/b", &[], b"a").unwrap().text(), format!("1 https://{addr}/b"));
    assert_eq!(client.request("POST", "/none", &[], b"a").unwrap().status, 502);
    server
        .wait_error_log("upstream did not select \"h2\" by ALPN while SSL handshaking to upstream")
        .unwrap();
}

#[test]
fn grpc_pass_takes_variables_and_unix_sockets() {
    let addr = http2_origin(Settings::new(), |mut request| async move {
        let said = request.head.uri().to_string();
        request.answer(&[], said);
    });
    let server = start_grpc(
        &format!("upstream u {{ server {addr}; }}"),
        &format!(
            "location / {{ grpc_pass $arg_to; }} location /host {{ grpc_pass u; grpc_set_header Host a.example; }}
             location /changed {{ rewrite ^ /other? break; grpc_pass {addr}; }}"
        ),
    );
    let mut client = connect(&server);
    let mut text = |path: &str| client.request("POST", path, &[], b"").unwrap().text();
    assert_eq!(text(&format!("/a?to={addr}")), format!("http://{addr}/a?to={addr}"));
    assert_eq!(text("/a?to=grpc://u"), "http://u/a?to=grpc://u");
    assert_eq!(text("/host"), "http://a.example/host");
    assert_eq!(text("/changed?x"), format!("http://{addr}/other"));
}

#[test]
fn malformed_directives_are_refused() {
    for (content, expected) in [
        ("location / { grpc_pass 127.0.0.1; }", "no port in upstream \"127.0.0.1\""),
        ("location / { grpc_pass a:1; grpc_pass b:1; }", "\"grpc_pass\" directive is duplicate"),
        ("location / { grpc_buffering on; }", "unknown directive \"grpc_buffering\""),
        (
            "location / { grpc_pass grpcs://127.0.0.1:1; grpc_ssl_verify on; }",
            "no grpc_ssl_trusted_certificate for grpc_ssl_verify",
        ),
    ] {
        let refusal = refusal_of(&format!("http {{ server {{ listen 127.0.0.1:{{port}}; {content} }} }}"));
        assert!(refusal.contains(expected), "{content}: {refusal}");
    }
}
