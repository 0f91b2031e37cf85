//! Cache directories filled by nginx: left alone, or taken over with `loader=nginx`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;

use tw_testkit::origin::counting;
use tw_testkit::ports::{Port, listening};
use tw_testkit::process::Group;
use tw_testkit::server::Builder;
use tw_testkit::{Client, Lacks, Server, Signal, TempDir, leave_out, wait};

use crate::support::cache::cache_status;
use crate::support::metrics::{metric, metrics_text};
use crate::support::{get, request, server, start_as_we_are};

const NGINX: &str = "/usr/sbin/nginx";

/// Keys and their MD5.
const A: (&str, &str) = ("/a", "0639767f3e9eaad729b54037a7e2abf5");
const B: (&str, &str) = ("/b", "97aa0bb188b55dc66927a8de59418743");
const C: (&str, &str) = ("/c", "c840eb2586c15e4528e3eef23eabb92d");

/// Expiry of an expired entry, and of a fresh one.
const PAST: i64 = 1_000_000_000;
const FUTURE: i64 = 10_000_000_000;

/// A file as nginx writes it on a machine with 64 bits.
fn file(key: &str, valid_until: i64, head: &str, body: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 336];
    file[..8].copy_from_slice(&5_u64.to_le_bytes());
    file[8..16].copy_from_slice(&valid_until.to_le_bytes());
    file[32..40].copy_from_slice(&(-1_i64).to_le_bytes());
    file[40..48].copy_from_slice(&PAST.to_le_bytes());
    file[48..52].copy_from_slice(&crc32(key.as_bytes()).to_le_bytes());
    file.extend_from_slice(format!("\nKEY: {key}\n").as_bytes());
    let head_start = file.len() as u16;
    file[54..56].copy_from_slice(&head_start.to_le_bytes());
    file[56..58].copy_from_slice(&(head_start + head.len() as u16).to_le_bytes());
    file.extend_from_slice(head.as_bytes());
    file.extend_from_slice(body);
    file
}

/// CRC-32, bit by bit.
fn crc32(text: &[u8]) -> u32 {
    !text.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(sum & 1)))
    })
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nX-Odd: a\r\nETag: \"x\"\r\nLast-Modified: Mon, 28 Sep 1970 06:00:00 GMT\r\n\
    Connection: close\r\n\r\n";

/// A server with a cache in `cache`, and these parameters and settings.
fn cached(builder: Builder, to: SocketAddr, parameters: &str, more: &str) -> Server {
    cached_in(builder, to, &format!("cache keys_zone=one:1m {parameters}"), more)
}

fn cached_in(builder: Builder, to: SocketAddr, path: &str, more: &str) -> Server {
    start_as_we_are(
        builder.with_master(),
        &format!(
            "proxy_cache_path {path}; proxy_cache_key $uri; \
             server {{ listen 127.0.0.1:{{port}}; \
               location / {{ proxy_pass http://{to}; proxy_cache one; proxy_cache_valid 1h; \
                 add_header X-Cache $upstream_cache_status; {more} }} \
               location = /metrics {{ metrics; }} }}"
        ),
    )
}

/// Waits until a metric has this value.
fn metric_is(server: &Server, name: &str, value: u64) {
    let is = || metric(server, name) == value;
    assert!(wait::until(wait::TIMEOUT, is), "{name} is not {value}: {}", metrics_text(server));
}

#[test]
fn files_of_nginx_are_kept_unread_by_default() {
    let files = [(A, vec![b'a'; 100]), (B, vec![b'b'; 5000])];
    let written_values = files.clone().map(|((key, _), body)| file(key, FUTURE, HEAD, &body));
    let builder = files
        .iter()
        .zip(&written_values)
        .fold(server(), |builder, (((_, name), _), content)| builder.file(format!("cache/{name}"), content));
    let (to, request_count) = counting(|conn, _, nth| conn.answer("", format!("fresh {nth}")));
    let server = cached(builder, to, "", "");
    metric_is(&server, "cache_entries", 2);
    // The files count for the size all the same: a block and two.
    metric_is(&server, "cache_bytes", 3 * 4096);
    let response = get(&server, "/a");
    assert_eq!((cache_status(&response), response.text()), ("MISS", "fresh 0".to_owned()));
    metric_is(&server, "cache_stored_total", 1);
    let response = get(&server, "/a");
    assert_eq!((cache_status(&response), response.text()), ("HIT", "fresh 0".to_owned()));
    assert_eq!(request_count.load(SeqCst), 1);
    metric_is(&server, "cache_entries", 2);
    metric_is(&server, "cache_damaged_total", 0);
    let content = |(_, name): (&str, &str)| fs::read(server.prefix().join("cache").join(name)).unwrap();
    assert_ne!(content(A)[..8], written_values[0][..8]);
    assert!(content(B) == written_values[1]);
    assert!(!server.error_log().contains("damaged"), "{}", server.error_log());
}

#[test]
fn files_of_nginx_are_served_with_loader_nginx() {
    let large = vec![b'b'; 300_000];
    let builder = server()
        .file(format!("cache/5/bf/{}", A.1), file(A.0, FUTURE, HEAD, b"0123456789"))
        .file(format!("cache/3/74/{}", B.1), file(B.0, FUTURE, HEAD, &large));
    let (to, request_count) = counting(|conn, _, _| conn.answer("", "fresh"));
    let server = cached_in(builder, to, "cache levels=1:2 keys_zone=one:1m loader=nginx", "");
    for _ in 0..2 {
        let response = get(&server, "/a");
        assert_eq!(
            (response.status, cache_status(&response), response.text().as_str()),
            (200, "HIT", "0123456789")
        );
        assert_eq!((response.field("X-Odd"), response.field("ETag")), (Some("a"), Some("\"x\"")));
        let response = get(&server, "/b");
        assert_eq!((cache_status(&response), response.body == large), ("HIT", true));
        assert_eq!(response.field("Content-Length"), Some("300000"));
    }
    let part = request(&server, "GET /a", &["Range: bytes=2-4"]);
    assert_eq!((part.status, part.text().as_str()), (206, "234"));
    assert_eq!(request(&server, "GET /a", &["If-None-Match: \"x\""]).status, 304);
    assert_eq!(request_count.load(SeqCst), 0);
    // No file has this key.
    assert_eq!(get(&server, "/c").text(), "fresh");
}

#[test]
fn revalidated_file_of_nginx_is_rewritten_in_our_format() {
    for body in [vec![b's'; 100], vec![b'l'; 700_000]] {
        let builder = server().file(format!("cache/{}", A.1), file(A.0, PAST, HEAD, &body));
        let (to, request_count) = counting(|conn, head, _| {
            assert!(head.contains("If-None-Match: \"x\"\r\n"), "{head}");
            conn.send("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nX-Accel-Expires: 1000\r\n\r\n");
        });
        let server = cached(builder, to, "loader=nginx", "proxy_cache_revalidate on;");
        let response = get(&server, "/a");
        assert_eq!((cache_status(&response), response.body == body), ("REVALIDATED", true));
        let path = server.prefix().join("cache").join(A.1);
        assert!(wait::until(wait::TIMEOUT, || fs::read(&path).unwrap()[0] != 5));
        let hit = wait::some(wait::TIMEOUT, || {
            let response = get(&server, "/a");
            assert!(response.body == body && response.field("X-Odd") == Some("a"));
            (cache_status(&response) == "HIT").then_some(())
        });
        assert!(hit.is_some(), "{}", server.error_log());
        let before = request_count.load(SeqCst);
        // The response is also found after a reopen.
        server.signal(Signal::USR1).unwrap();
        let response = get(&server, "/a");
        assert_eq!((cache_status(&response), response.body == body), ("HIT", true));
        assert_eq!(request_count.load(SeqCst), before);
    }
}

#[test]
fn expired_file_of_nginx_is_replaced() {
    let builder = server().file(format!("cache/{}", A.1), file(A.0, PAST, HEAD, b"old"));
    let (to, _) = counting(|conn, head, nth| {
        assert!(!head.contains("If-None-Match"), "{head}");
        conn.answer("", format!("fresh {nth}"));
    });
    let server = cached(builder, to, "loader=nginx", "");
    let response = get(&server, "/a");
    assert_eq!((cache_status(&response), response.text()), ("EXPIRED", "fresh 0".to_owned()));
    metric_is(&server, "cache_stored_total", 1);
    let response = get(&server, "/a");
    assert_eq!((cache_status(&response), response.text()), ("HIT", "fresh 0".to_owned()));
}

#[test]
fn damaged_files_are_removed_and_foreign_files_stay() {
    let mut damaged = file(A.0, FUTURE, HEAD, b"old");
    damaged[49] ^= 1;
    let other = file(B.0, FUTURE, "Status: 200\r\nX-Odd: a\r\n\r\n", b"old");
    let builder = server()
        .file(format!("cache/{}", A.1), damaged)
        .file(format!("cache/{}", B.1), &other)
        .file(format!("cache/{}", C.1), "strange");
    let (to, _) = counting(|conn, _, _| conn.answer("Cache-Control: private\r\n", "fresh"));
    let server = cached(builder, to, "loader=nginx", "");
    for path in ["/a", "/b", "/c"] {
        let response = get(&server, path);
        assert_eq!((cache_status(&response), response.text().as_str()), ("MISS", "fresh"), "{path}");
    }
    metric_is(&server, "cache_damaged_total", 2);
    let path = |name: &str| server.prefix().join("cache").join(name);
    assert!(!path(A.1).exists() && !path(C.1).exists());
    assert!(fs::read(path(B.1)).unwrap() == other);
    server.wait_error_log(A.1).unwrap();
    server.wait_error_log(C.1).unwrap();
    let log = server.error_log();
    assert!(!log.contains(B.1), "{log}");
}

#[test]
fn files_of_nginx_are_evicted_with_either_loader() {
    for parameters in ["max_size=1m", "max_size=1m loader=nginx"] {
        // No request has had these keys: the loader goes by the names of the files alone.
        let builder = (0..40).fold(server(), |builder, nth| {
            let key = format!("/{nth}");
            builder.file(format!("cache/{nth:032x}"), file(&key, FUTURE, HEAD, &[b'x'; 100_000]))
        });
        let (to, _) = counting(|conn, _, _| conn.answer("", "fresh"));
        let server = cached(builder, to, parameters, "");
        let files = || {
            let entries = fs::read_dir(server.prefix().join("cache")).unwrap();
            entries.filter_map(Result::ok).filter(|entry| entry.file_name().len() == 32).count()
        };
        assert!(wait::until(wait::TIMEOUT, || files() <= 10), "{}", files());
    }
}

#[test]
fn invalid_loader_is_refused() {
    let refused = crate::support::refusal_of(
        "http { proxy_cache_path a keys_zone=x:1m loader=squid; server { listen 127.0.0.1:{port}; } }",
    );
    assert!(refused.contains("invalid loader value \"squid\", it must be \"nginx\""), "{refused}");
}

/// Runs nginx with this `http` block in `dir` until `fill` is done; then it ends.
fn with_nginx(dir: &Path, http: &str, fill: impl FnOnce(SocketAddr)) {
    let port = Port::reserve().unwrap();
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let conf = dir.join("nginx.conf");
    let http = http.replace("{port}", &port.number().to_string());
    fs::create_dir_all(dir.join("logs")).unwrap();
    fs::write(
        &conf,
        format!("daemon off; {user} pid nginx.pid; error_log logs/error.log; events {{ }} http {{ access_log off; {http} }}"),
    )
    .unwrap();
    let mut command = Command::new(NGINX);
    command.arg("-p").arg(dir).arg("-c").arg(&conf).stdin(Stdio::null()).stderr(Stdio::null());
    let mut nginx = Group::new(command.process_group(0).spawn().unwrap());
    assert!(wait::until(wait::TIMEOUT, || listening(port.number())), "{conf:?}");
    fill(SocketAddr::from(([127, 0, 0, 1], port.number())));
    nginx.signal(Signal::QUIT).unwrap();
    assert!(nginx.wait(wait::TIMEOUT).unwrap().success());
}

#[test]
fn cache_filled_by_nginx_itself_is_served() {
    if !Path::new(NGINX).exists() {
        return leave_out(Lacks::Machine, format_args!("there is no {NGINX}: a cache that it has filled"));
    }
    let (to, request_count) = counting(|conn, head, _| {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let language = if head.contains("Accept-Language: de") { "de" } else { "en" };
        match &*path {
            "/large" => conn.answer("ETag: \"l\"\r\n", vec![b'l'; 500_000]),
            "/vary" => conn.answer("Vary: Accept-Language\r\n", language),
            "/chunks" => conn.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nchunk\r\n1\r\ns\r\n0\r\n\r\n",
            ),
            "/missing" => conn.send("HTTP/1.1 404 Nothing Here\r\nContent-Length: 4\r\n\r\nlost"),
            _ => conn.answer("X-Odd: a\r\nCache-Control: max-age=1000\r\n", path),
        }
    });
    let dir = TempDir::new("nginx").unwrap();
    let requests = [
        ("/one", "X-None: a"),
        ("/large", "X-None: a"),
        ("/vary", "Accept-Language: de"),
        ("/vary", "Accept-Language: en"),
        ("/chunks", "X-None: a"),
        ("/missing", "X-None: a"),
    ];
    let mut of_nginx = Vec::new();
    with_nginx(
        dir.path(),
        &format!(
            "proxy_cache_path cache levels=1:2 keys_zone=one:1m; proxy_cache_key $uri; \
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://{to}; proxy_http_version 1.1; \
               proxy_cache one; proxy_cache_valid any 1h; }} }}"
        ),
        |addr| {
            for (path, field) in requests {
                let mut client = Client::connect(addr).unwrap();
                client
                    .send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{field}\r\nConnection: close\r\n\r\n"))
                    .unwrap();
                of_nginx.push(client.read_response().unwrap());
            }
        },
    );
    assert_eq!(request_count.load(SeqCst), requests.len());
    let path = format!("{}/cache levels=1:2 keys_zone=one:1m loader=nginx", dir.path().display());
    let server = cached_in(server(), to, &path, "");
    for ((path, field), before) in requests.iter().zip(&of_nginx) {
        let response = request(&server, &format!("GET {path}"), &[field]);
        assert_eq!(
            (response.status, cache_status(&response)),
            (before.status, if before.status == 404 { "" } else { "HIT" }),
            "{path} {field}"
        );
        assert!(response.body == before.body, "{path} {field}");
        for name in ["X-Odd", "ETag", "Vary", "Cache-Control"] {
            assert_eq!(response.field(name), before.field(name), "{path} {name}");
        }
    }
    assert_eq!(request_count.load(SeqCst), requests.len(), "{}", server.error_log());
    // A language for which no variant is stored is fetched.
    assert_eq!(request(&server, "GET /vary", &["Accept-Language: fr"]).text(), "en");
    assert_eq!(request_count.load(SeqCst), requests.len() + 1);
}
