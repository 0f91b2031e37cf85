//! Training run of profile-guided optimisation: an instrumented server under a load of everything that servers do most,
//! for about a minute. The load is made here, by threads with one connection each.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tw_testkit::http2::{self, Frames, Http2};
use tw_testkit::origin::origin;
use tw_testkit::server::Server;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, TempDir};

use crate::Failure;

/// Time of each scenario: all of them take about a minute.
pub(super) const SPAN: Duration = Duration::from_secs(3);
/// Connections of each scenario: several for each turn of the loop.
const CONNECTIONS: usize = 16;
/// Simultaneous streams of a connection of HTTP/2.
const STREAMS: u32 = 16;
/// Name of the server in its certificate.
const NAME: &str = "localhost";

/// Form of a request of the load.
#[derive(Debug, Clone, Copy)]
enum Load {
    /// Persistent connections of HTTP/1.1.
    Http1,
    /// A connection of HTTP/1.1 for each request.
    Close,
    /// Requests with content.
    Upload,
    /// Persistent connections of HTTP/1.1 over TLS.
    Tls,
    /// A TLS connection for each request.
    Handshakes,
    /// Streams of HTTP/2, several at a time.
    Http2,
    /// Streams of HTTP/2 over TLS.
    Http2Tls,
}

/// Scenarios: a load and a path. `{n}` becomes a number that no other request has.
const SCENARIOS: &[(Load, &str)] = &[
    (Load::Http1, "/1k.html"),
    (Load::Http1, "/32k.html"),
    (Load::Http1, "/1m.html"),
    (Load::Close, "/1k.html"),
    (Load::Http1, "/open-file-cache/1k.html"),
    (Load::Http1, "/sendfile/32k.html"),
    (Load::Http1, "/log/1k.html"),
    (Load::Http1, "/gzip/32k.html"),
    (Load::Http1, "/include/page.html"),
    (Load::Http1, "/rewrite/1k.html"),
    (Load::Http1, "/proxy/1k"),
    (Load::Http1, "/proxy/32k"),
    (Load::Upload, "/proxy/1k"),
    (Load::Http1, "/cache/1k"),
    (Load::Http1, "/cache/32k?{n}"),
    (Load::Http1, "/fastcgi/page"),
    (Load::Http1, "/fastcgi-close/page"),
    (Load::Tls, "/1k.html"),
    (Load::Tls, "/32k.html"),
    (Load::Handshakes, "/1k.html"),
    (Load::Http2, "/1k.html"),
    (Load::Http2, "/32k.html"),
    (Load::Http2, "/proxy/1k"),
    (Load::Http2Tls, "/32k.html"),
];

/// Locations of all servers of the configuration.
const LOCATIONS: &str = r#"
    root html;
    location /open-file-cache/ { alias html/; open_file_cache max=1000 inactive=60s; }
    location /sendfile/ { alias html/; sendfile on; tcp_nopush on; open_file_cache max=1000 inactive=60s; }
    location /log/ { alias html/; access_log logs/access.log combined; }
    location /gzip/ { alias html/; gzip on; gzip_comp_level 1; }
    location /include/ { alias html/; ssi on; }
    location /rewrite/ { rewrite ^/rewrite/(.*)$ /$1 last; }
    location /proxy/ { proxy_pass http://origin/; proxy_http_version 1.1; proxy_set_header Connection ""; }
    location /cache/ { proxy_pass http://origin/; proxy_cache pages; proxy_http_version 1.1; proxy_set_header Connection ""; }
    fastcgi_param REQUEST_METHOD $request_method; fastcgi_param QUERY_STRING $query_string;
    fastcgi_param CONTENT_TYPE $content_type; fastcgi_param CONTENT_LENGTH $content_length;
    fastcgi_param SCRIPT_NAME $fastcgi_script_name; fastcgi_param REQUEST_URI $request_uri;
    fastcgi_param DOCUMENT_ROOT $document_root; fastcgi_param REMOTE_ADDR $remote_addr;
    fastcgi_param SERVER_NAME $server_name; fastcgi_param SERVER_PROTOCOL $server_protocol;
    location /fastcgi/ { fastcgi_pass application; fastcgi_keep_conn on; }
    location /fastcgi-close/ { fastcgi_pass application_close; }
"#;

/// Addresses of the server and the trust in its certificate.
struct Addresses {
    plain: SocketAddr,
    tls: SocketAddr,
    config: Arc<rustls::ClientConfig>,
}

/// Runs all scenarios against an instrumented binary and returns the directory with its profiles.
pub(super) fn run(binary: &Path, span: Duration) -> Result<TempDir, Failure> {
    train(binary, span).map_err(|error| format!("training: {error}"))
}

fn train(binary: &Path, span: Duration) -> io::Result<TempDir> {
    let profiles = TempDir::new("profiles")?;
    // A server that was started by root writes its profile as another user.
    fs::set_permissions(profiles.path(), Permissions::from_mode(0o777))?;
    let authority = Authority::new();
    let certificate = authority.certify(&[NAME]);
    let mut server = Server::build(binary)
        .in_one_process()
        .certificate(NAME, &certificate)
        .env("LLVM_PROFILE_FILE", profiles.join("%m.profraw").display().to_string())
        .file("html/1k.html", page(1 << 10))
        .file("html/32k.html", page(32 << 10))
        .file("html/1m.html", page(1 << 20))
        .file("html/page.html", include_page())
        .file("conf/locations.conf", LOCATIONS)
        .start(&configuration(http_origin(), application()))?;
    let addresses = Addresses {
        plain: server.addr(),
        tls: server.addr_of(1),
        config: authority.client(&[&rustls::version::TLS13, &rustls::version::TLS12]),
    };
    for (load, path) in SCENARIOS {
        let count = load.run(&addresses, path, span)?;
        println!("dist: training: {load:?} {path}: {count} requests");
    }
    let status = server.stop()?;
    if !status.success() {
        return Err(io::Error::other(format!("the server ended with {status}")));
    }
    Ok(profiles)
}

fn configuration(origin: SocketAddr, application: SocketAddr) -> String {
    // The sandbox allows no new file, and the profile is one.
    format!(
        "sandbox off;
events {{ worker_connections 1024; }}
http {{
    types {{ text/html html; }}
    access_log off;
    keepalive_requests 1000000000;
    proxy_cache_path {{prefix}}/cache levels=1:2 keys_zone=pages:10m max_size=100m;
    upstream origin {{ server {origin}; keepalive 64; keepalive_requests 1000000000; }}
    upstream application {{ server {application}; keepalive 64; keepalive_requests 1000000000; }}
    upstream application_close {{ server {application}; }}
    server {{ listen 127.0.0.1:{{port}}; http2 on; include locations.conf; }}
    server {{
        listen 127.0.0.1:{{port1}} ssl;
        http2 on;
        ssl_certificate {NAME}.crt;
        ssl_certificate_key {NAME}.key;
        include locations.conf;
    }}
}}"
    )
}

/// Text that compresses as pages do.
fn page(size: usize) -> Vec<u8> {
    let lines = (0..).flat_map(|n| format!("<p>Line {n} of {size}, {}</p>\n", n * n % 9973).into_bytes());
    lines.take(size).collect()
}

/// Page with two subrequests.
fn include_page() -> String {
    "<p>one</p><!--# include virtual=\"/1k.html\" --><p>two</p><!--# include virtual=\"/1k.html\" -->\n"
        .repeat(2)
}

/// Origin whose paths begin with the size of the response.
fn http_origin() -> SocketAddr {
    origin(|mut conn| {
        let small = page(1 << 10);
        let large = page(32 << 10);
        while let Some(head) = conn.head() {
            let mut content = vec![0; content_length(&head)];
            if io::Read::read_exact(&mut conn.reader, &mut content).is_err() {
                return;
            }
            let body = if head.contains(" /32k") { &large } else { &small };
            conn.answer(
                "Content-Type: text/html\r\nCache-Control: max-age=600\r\nLast-Modified: Sun, 22 Nov 2026 00:00:00 GMT\r\n",
                body,
            );
        }
    })
}

fn content_length(head: &str) -> usize {
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    length.and_then(|length| length.parse().ok()).unwrap_or_default()
}

/// Application for FastCGI.
fn application() -> SocketAddr {
    origin(|mut conn| {
        let output =
            [b"Content-Type: text/html\r\nX-Powered-By: training\r\n\r\n".to_vec(), page(4 << 10)].concat();
        while conn.fastcgi().is_some() {
            conn.answer_fastcgi(&output);
        }
    })
}

impl Load {
    /// Runs the load and returns the number of requests.
    fn run(self, addresses: &Addresses, path: &str, span: Duration) -> io::Result<u64> {
        let end = Instant::now() + span;
        let count = AtomicU64::new(0);
        let next = || (Instant::now() < end).then(|| count.fetch_add(1, Relaxed));
        thread::scope(|scope| {
            let connection = || self.connection(addresses, path, &next);
            let all: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(connection)).collect();
            all.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the load panicked")))
            })
        })
        .map_err(|error| io::Error::new(error.kind(), format!("{self:?} {path}: {error}")))?;
        Ok(count.into_inner())
    }

    /// Sends requests on one connection, or on one after the other, until `next` returns no number.
    fn connection(self, addresses: &Addresses, path: &str, next: &dyn Fn() -> Option<u64>) -> io::Result<()> {
        let Addresses { plain, tls, config } = addresses;
        let path = |number: u64| path.replace("{n}", &number.to_string());
        match self {
            Self::Http1 => requests(Client::connect(*plain)?, next, |number| get(&path(number), "")),
            Self::Upload => {
                let content = "x".repeat(8 << 10);
                requests(Client::connect(*plain)?, next, |number| {
                    let path = path(number);
                    let length = content.len();
                    format!(
                        "POST {path} HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: {length}\r\n\r\n{content}"
                    )
                })
            }
            Self::Tls => {
                requests(Client::connect_tls(*tls, config, NAME)?, next, |number| get(&path(number), ""))
            }
            Self::Close => {
                while let Some(number) = next() {
                    once(Client::connect(*plain)?, &path(number))?;
                }
                Ok(())
            }
            Self::Handshakes => {
                while let Some(number) = next() {
                    once(Client::connect_tls(*tls, config, NAME)?, &path(number))?;
                }
                Ok(())
            }
            Self::Http2 => streams(*plain, &path, next),
            Self::Http2Tls => {
                let mut connection = Http2::connect_tls(*tls, config, NAME)?;
                while let Some(number) = next() {
                    let response = connection.get(&path(number)).map_err(io::Error::other)?;
                    check(response.status)?;
                }
                Ok(())
            }
        }
    }
}

/// Request as a browser sends it.
fn get(path: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {NAME}\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64) training\r\n\
         Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\nAccept-Language: en;q=0.5\r\n\
         Accept-Encoding: gzip, deflate\r\nCookie: session=0123456789abcdef\r\n{more}\r\n"
    )
}

fn requests(
    mut client: Client,
    next: &dyn Fn() -> Option<u64>,
    request: impl Fn(u64) -> String,
) -> io::Result<()> {
    while let Some(number) = next() {
        client.send(request(number))?;
        check(client.read_response()?.status)?;
    }
    Ok(())
}

fn once(mut client: Client, path: &str) -> io::Result<()> {
    client.send(get(path, "Connection: close\r\n"))?;
    check(client.read_response()?.status)
}

/// Sends requests on a plain connection of HTTP/2, [`STREAMS`] at a time.
fn streams(addr: SocketAddr, path: &dyn Fn(u64) -> String, next: &dyn Fn() -> Option<u64>) -> io::Result<()> {
    /// More than the responses of a batch.
    const WINDOW: u32 = 1 << 20;
    /// ACK of SETTINGS.
    const ACK: u8 = 1;
    let mut frames = Frames::connect(addr)?;
    let mut stream = 1;
    loop {
        let batch: Vec<_> = (0..STREAMS).map_while(|_| next()).collect();
        if batch.is_empty() {
            return Ok(());
        }
        let mut bytes = http2::frame(http2::kind::WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        for number in &batch {
            bytes.extend(http2::get(
                stream,
                &path(*number),
                &[("user-agent", "training"), ("accept", "*/*")],
            ));
            stream += 2;
        }
        frames.send(bytes)?;
        let mut open = batch.len();
        while open > 0 {
            let frame = frames.next_frame()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            match frame.kind {
                http2::kind::RST_STREAM | http2::kind::GOAWAY => {
                    return Err(io::Error::other(format!("HTTP/2 error {:?}", frame.code())));
                }
                http2::kind::DATA if frame.flags & http2::END_STREAM != 0 => open -= 1,
                http2::kind::SETTINGS if frame.flags & ACK == 0 => {
                    frames.send(http2::frame(http2::kind::SETTINGS, ACK, 0, b""))?;
                }
                _ => {}
            }
        }
    }
}

fn check(status: u16) -> io::Result<()> {
    if status == 200 { Ok(()) } else { Err(io::Error::other(format!("status {status}"))) }
}

/// Raw profiles in a directory.
pub(super) fn profiles(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let all: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    if all.is_empty() {
        return Err("the instrumented server wrote no profile".to_owned());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_scenarios_of_the_training_are_served() {
        let Some(binary) = super::super::test_binary() else { return };
        train(&binary, Duration::from_millis(50)).unwrap();
    }
}
