//! Metrics that operators set alarms on: reloads, TLS handshakes, certificates, descriptors.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::ALL_VERSIONS;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server, Signal, wait};

use crate::support::metrics::{metric, try_metric};
use crate::support::reload::reload;
use crate::support::server;

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Waits for the value of a sample. A server that is being replaced may not answer.
fn becomes(server: &Server, series: &str, expected: f64) {
    let value =
        || Client::get(server.addr(), "/metrics").ok().and_then(|_| try_metric::<f64>(server, series));
    assert!(
        wait::until(wait::TIMEOUT, || value() == Some(expected)),
        "{series}: {:?}\n{}",
        value(),
        server.error_log()
    );
}

#[test]
fn reloads_are_counted_by_result_and_in_every_worker_process() {
    let conf =
        "worker_processes 1; http { server { listen 127.0.0.1:{port}; location = /metrics { metrics; } } }";
    let mut server = server().with_master().start(conf).unwrap();
    becomes(&server, "config_reloads_total{result=\"ok\"}", 0.0);
    becomes(&server, "config_last_reload_successful", 1.0);
    let started: f64 = try_metric(&server, "config_last_reload_success_timestamp_seconds").unwrap();
    assert!((started - now()).abs() < 60.0, "{started}");
    reload(&mut server, conf);
    becomes(&server, "config_reloads_total{result=\"ok\"}", 1.0);
    reload(&mut server, "http { nonsense; }");
    becomes(&server, "config_reloads_total{result=\"failed\"}", 1.0);
    becomes(&server, "config_last_reload_successful", 0.0);
    assert!(try_metric::<f64>(&server, "config_last_reload_success_timestamp_seconds").unwrap() >= started);
    // A new worker process serves. It takes the reload numbers from the master.
    reload(
        &mut server,
        &conf.replace("worker_processes 1;", "worker_processes 1; worker_rlimit_nofile 500;"),
    );
    becomes(&server, "config_reloads_total{result=\"ok\"}", 2.0);
    becomes(&server, "config_reloads_total{result=\"failed\"}", 1.0);
    becomes(&server, "config_last_reload_successful", 1.0);
    server.signal(Signal::QUIT).unwrap();
}

#[test]
fn handshakes_are_counted_by_kind_and_cause() {
    let authority = Authority::new();
    let server = server()
        .certificate("one", &authority.certify(&["localhost"]))
        .start(
            "http { server { listen 127.0.0.1:{port}; location = /metrics { metrics; } }
               ssl_certificate one.crt; ssl_certificate_key one.key; client_header_timeout 1s;
               server { listen 127.0.0.1:{port1} ssl; server_name localhost; return 200 ok; }
               server { listen 127.0.0.1:{port1} ssl; server_name rejected; ssl_reject_handshake on; } }",
        )
        .unwrap();
    let config = authority.client(ALL_VERSIONS);
    // The second client resumes the session of the first.
    for _ in 0..2 {
        let mut client = Client::connect_tls(server.addr_of(1), &config, "localhost").unwrap();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "ok");
    }
    assert!(Client::connect_tls(server.addr_of(1), &config, "rejected").is_err());
    // Unsupported TLS versions, an empty connection, and half a client hello.
    let hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03";
    TcpStream::connect(server.addr_of(1)).unwrap().write_all(hello).unwrap();
    drop(TcpStream::connect(server.addr_of(1)).unwrap());
    let mut silent = TcpStream::connect(server.addr_of(1)).unwrap();
    silent.write_all(&hello[..6]).unwrap();
    becomes(&server, "tls_handshakes_total{kind=\"full\"}", 1.0);
    becomes(&server, "tls_handshakes_total{kind=\"resumed\"}", 1.0);
    for (cause, count) in [("rejected", 1.0), ("protocol", 1.0), ("closed", 1.0), ("timeout", 1.0)] {
        becomes(&server, &format!("tls_handshake_failures_total{{cause=\"{cause}\"}}"), count);
    }
    becomes(&server, "tls_handshake_failures_total{cause=\"certificate\"}", 0.0);
    let name = server.prefix().join("conf/one.crt").display().to_string();
    let end: f64 =
        try_metric(&server, &format!("certificate_expiry_timestamp_seconds{{certificate=\"{name}\"}}"))
            .expect("the certificate is listed");
    assert!(end > now() + 24.0 * 3600.0, "{end}");
}

#[test]
fn processor_time_and_descriptors_are_shown() {
    let server = server()
        .start("http { server { listen 127.0.0.1:{port}; location = /metrics { metrics; } } }")
        .unwrap();
    let all = || {
        let text = crate::support::metrics::metrics_text(&server);
        let of = |series| crate::support::metrics::metric_values::<f64>(&text, series).first().copied();
        Some((of("process_cpu_seconds_total")?, of("process_max_fds")?))
    };
    // A scrape omits the numbers if the thread pool does not deliver them soon.
    let mut seen_value = None;
    assert!(wait::until(wait::TIMEOUT, || {
        seen_value = all();
        seen_value.is_some()
    }));
    let (cpu, max) = seen_value.unwrap();
    assert!(cpu > 0.0 && cpu < 60.0 && max >= 64.0, "{cpu} {max}");
    // Before Linux 6.2, the number of open descriptors is not available.
    if let Some(open) = try_metric::<f64>(&server, "process_open_fds") {
        assert!(open > 5.0 && open < 1000.0, "{open}");
        let tcp_streams: Vec<_> = (0..20).map(|_| TcpStream::connect(server.addr()).unwrap()).collect();
        let more = || try_metric::<f64>(&server, "process_open_fds").is_some_and(|now| now >= open + 20.0);
        assert!(wait::until(Duration::from_secs(10), more));
        drop(tcp_streams);
    }
    assert!(metric(&server, "panics_total") == 0);
}
