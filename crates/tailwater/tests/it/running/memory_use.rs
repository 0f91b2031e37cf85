//! Memory and open files that clients can make the process hold, and their return.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Signal;
use tw_testkit::{Server, wait};

use crate::support::content::noise;
use crate::support::metrics::metric;
use crate::support::process::children;
use crate::support::slow_reader;
use crate::support::{get, server};

#[test]
fn slow_readers_get_cheaper_codings_when_memory_is_in_use() {
    const MAX: u64 = 40 << 20;
    let conf = format!(
        "compression_memory {MAX}; http {{ brotli on; zstd on; gzip on;
         server {{ listen 127.0.0.1:{{port}} sndbuf=8k; root html; location /metrics {{ metrics; }} }} }}"
    );
    let server = server().file("html/a.html", noise(1 << 20)).start(&conf).unwrap();
    let used = || metric(&server, "encoder_memory_bytes{state=\"used\"}");
    assert_eq!(used(), 0);
    let mut codings = BTreeMap::<_, u64>::new();
    let mut clients = Vec::new();
    for _ in 0..60 {
        let (client, coding) = slow_reader(&server, "/a.html", "gzip, br, zstd");
        clients.push(client);
        *codings.entry(coding).or_default() += 1;
        let used = used();
        assert!(used <= MAX, "{used} with {codings:?}");
    }
    for coding in ["br", "zstd", "gzip", "none"] {
        assert!(codings.contains_key(coding), "{codings:?}");
    }
    let refused = metric(&server, "encoder_memory_refusals_total{coding=\"br\"}");
    assert_eq!(refused, 60 - codings["br"]);
    // A body that is compressed in one piece needs none of the memory that slow readers hold.
    assert_eq!(slow_reader(&server, "/a.html", "br").1, "none");
    fs::write(server.prefix().join("html/a.html"), noise(100_000)).unwrap();
    assert_eq!(slow_reader(&server, "/a.html", "br").1, "br");
    drop(clients);
    assert!(wait::until(wait::TIMEOUT, || used() == 0), "{}", used());
}

/// Bytes of memory of the process that was started, and of its children.
fn resident(server: &Server) -> Vec<u64> {
    let pid = server.pid();
    let pids = children(pid);
    let bytes = |pid: u32| {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
    };
    std::iter::once(pid).chain(pids).map(bytes).collect()
}

#[test]
fn memory_of_a_burst_is_returned() {
    /// Memory that threads may hold after work in addition to that before: stacks, and partly used pages.
    const MORE: u64 = 24 << 20;
    let conf = "worker_processes 2; thread_pool default threads=4; compression_memory 1024m; http { brotli on; brotli_comp_level 6; gzip on; gzip_comp_level 9;
        server { listen 127.0.0.1:{port} sndbuf=8k; root html; location /metrics { metrics; } } }";
    let builder = server().file("html/a.html", noise(1 << 20)).with_master();
    let server = builder.start(conf).unwrap();
    assert_eq!(get(&server, "/metrics").status, 200);
    let before = resident(&server);
    assert_eq!(before.len(), 2, "a master and a worker process");
    let clients: Vec<_> =
        (0..60).map(|n| slow_reader(&server, "/a.html", ["br", "br", "br", "gzip"][n % 4])).collect();
    assert_eq!(clients.iter().filter(|(_, coding)| coding == "br").count(), 45);
    let used = metric(&server, "encoder_memory_bytes{state=\"used\"}");
    assert!(used > 10 * MORE, "{used}");
    drop(clients);
    let mut after = Vec::new();
    let is_back = wait::until(6 * wait::TIMEOUT, || {
        after = resident(&server);
        after.iter().zip(&before).all(|(after, before)| *after < before + MORE)
    });
    assert!(is_back, "{before:?} before, {after:?} after");
}

/// Number of descriptors of the started process for a file of this name; removed files count.
fn open_files(server: &Server, name: &str) -> usize {
    let links = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok())
        .filter(|link| link.to_string_lossy().trim_end_matches(" (deleted)").ends_with(name))
        .count()
}

#[test]
fn open_files_are_closed_on_removal_reload_and_reopen() {
    let builder =
        server().file("html/a.bin", noise(100_000)).file("html/b.bin", noise(100_000)).in_one_process();
    let conf = "open_files_inactive 1h; http { server { listen 127.0.0.1:{port}; root html; } }";
    let server = builder.start(conf).unwrap();
    let open = |name: &str| {
        assert_eq!(get(&server, &format!("/{name}")).status, 200);
        assert_eq!(open_files(&server, name), 1, "{name}");
    };
    let is_closed = |name: &str| wait::until(wait::TIMEOUT, || open_files(&server, name) == 0);
    open("a.bin");
    open("b.bin");
    fs::remove_file(server.prefix().join("html/a.bin")).unwrap();
    assert!(is_closed("a.bin"));
    assert_eq!(open_files(&server, "b.bin"), 1, "it has its name");
    for signal in [Signal::HUP, Signal::USR1] {
        open("b.bin");
        server.signal(signal).unwrap();
        assert!(is_closed("b.bin"), "{signal:?}");
    }
}

#[test]
fn inactive_files_are_closed() {
    let builder = server().file("html/a.bin", noise(100_000)).in_one_process();
    let conf = "open_files_inactive 1ms; http { server { listen 127.0.0.1:{port}; root html; } }";
    let server = builder.start(conf).unwrap();
    assert_eq!(get(&server, "/a.bin").status, 200);
    assert!(wait::until(wait::TIMEOUT, || open_files(&server, "a.bin") == 0));
}
