//! Compression in a cgroup with little memory: the server survives, and clients get cheaper codings.

use tw_testkit::Server;
use tw_testkit::server::Builder;

use crate::support::cgroup::Cgroup;
use crate::support::content::noise;
use crate::support::metrics::metric;
use crate::support::slow_reader;
use crate::support::{get, server};

const LIMIT: u64 = 96 << 20;
/// Concurrent slow clients.
const CLIENTS: usize = 400;
const CONF: &str = "worker_processes 2; worker_memory_lock off; events { worker_connections 2000; }
    http { brotli on; brotli_comp_level 9; brotli_window 16m; zstd on; zstd_comp_level 22; gzip on; gzip_comp_level 9;
    server { listen 127.0.0.1:{port} sndbuf=8k backlog=1000; root html; location /metrics { metrics; }
    location /unknown/ { alias html/; sub_filter nothing something; } } }";

fn builder() -> Builder {
    server().with_master().file("html/a.html", noise(4 << 20)).file("html/short.html", noise(200_000))
}

/// Checks that the worker serves and that no process was killed.
fn is_alive(server: &Server, group: &Cgroup, what: &str) {
    assert_eq!(get(server, "/metrics").status, 200, "{what}");
    assert_eq!(group.killed(), 0, "{what}: {} KB at most", group.peak() >> 10);
}

#[test]
fn one_client_of_each_coding_fits_into_96_megabytes() {
    for (coding, target) in ["br", "zstd", "gzip"]
        .into_iter()
        .flat_map(|coding| ["/a.html", "/unknown/a.html", "/short.html"].map(|target| (coding, target)))
    {
        let Some(group) = Cgroup::new(&format!("one-{coding}"), LIMIT) else { return };
        let server = group.start(builder(), CONF);
        let mut client = server.connect().unwrap();
        client
            .send(format!(
                "GET {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\nConnection: close\r\n\r\n"
            ))
            .unwrap();
        let len = client.read_until_close().unwrap().len();
        assert!(len > 200_000, "{len}");
        is_alive(&server, &group, &format!("{coding} {target}"));
    }
}

#[test]
fn slow_clients_of_each_coding_fit_into_96_megabytes() {
    for (accept, target) in [
        ("br", "/a.html"),
        ("zstd", "/a.html"),
        ("gzip", "/a.html"),
        ("br, zstd, gzip", "/a.html"),
        ("br, zstd, gzip", "/unknown/a.html"),
        ("br, zstd, gzip", "/short.html"),
    ] {
        let Some(group) = Cgroup::new("slow", LIMIT) else { return };
        let server = group.start(builder(), CONF);
        let clients: Vec<_> = (0..CLIENTS).map(|_| slow_reader(&server, target, accept)).collect();
        is_alive(&server, &group, &format!("{accept} {target}"));
        let count = |coding: &str| clients.iter().filter(|(_, got)| got == coding).count();
        if let [coding] = accept.split(", ").collect::<Vec<_>>()[..] {
            assert!(count("none") > 0, "{accept}: all were compressed");
            let refused = format!("encoder_memory_refusals_total{{coding=\"{coding}\"}}");
            assert_eq!(metric(&server, &refused), count("none") as u64, "{accept}");
        }
        if accept.contains("gzip") {
            assert!(count("gzip") > 0, "{accept} {target}: the cheapest coding has room");
        }
        // Other requests do not pay for the memory of these.
        assert_eq!(get(&server, "/a.html").body.len(), 4 << 20, "{accept} {target}");
        drop(clients);
        is_alive(&server, &group, &format!("{accept} {target}, when the clients are gone"));
    }
}
