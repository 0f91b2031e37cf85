//! System resolver on a guarded loop, with files of its own and a name server on the loopback interface.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use support::on_loop;
use tw_dns::{SystemFiles, SystemResolver};
use tw_rt::Heap;
use tw_testkit::TempDir;
use tw_testkit::dns::{Data, DnsQuery, DnsServer, Outbox, Transport, code, kind};
use tw_testkit::wait::{TIMEOUT, until};

#[global_allocator]
static ALLOCATOR: Heap = Heap;

/// DNS server with `known_names` at 192.0.2.1, which fails for `broken`.
fn name_server(known_names: &'static [&str], broken: &'static [&str]) -> DnsServer {
    DnsServer::start(move |query: &DnsQuery, out: &mut Outbox| {
        let answer = query.answer();
        out.send(match &*query.name {
            name if broken.contains(&name) => answer.code(code::SERVFAIL).bytes(),
            name if !known_names.contains(&name) => answer.code(code::NXDOMAIN).soa(60, 60).bytes(),
            name if query.kind == kind::A => answer.record(name, 60, Data::A([192, 0, 2, 1].into())).bytes(),
            _ => answer.soa(60, 60).bytes(),
        });
    })
}

/// Files of a system whose name server is `server`.
fn files(dir: &TempDir, server: &DnsServer, conf: &str, hosts: &str) -> SystemFiles {
    let resolv_conf = dir.path().join("resolv.conf");
    let hosts_path = dir.path().join("hosts");
    fs::write(&resolv_conf, format!("nameserver 127.0.0.1\noptions no-aaaa timeout:30\n{conf}")).unwrap();
    fs::write(&hosts_path, hosts).unwrap();
    SystemFiles { resolv_conf, hosts: hosts_path, port: server.addr().port() }
}

fn look_up(resolver: &Arc<SystemResolver>, name: &'static str, timeout: Duration) -> String {
    let resolver = Arc::clone(resolver);
    on_loop(move || async move {
        match resolver.addresses(name.as_bytes(), timeout).await {
            Ok(addresses) => addresses.iter().map(|addr| addr.to_string()).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        }
    })
}

/// Queried names, in order. A name may occur twice in a row, in different case.
fn query_names(server: &DnsServer) -> String {
    let mut names: Vec<_> = server.queries().into_iter().map(|query| query.name).collect();
    names.dedup();
    names.join(" ")
}

#[test]
fn names_are_searched_as_the_c_library_does() {
    let pod = "search ns.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n";
    let known_names =
        &["backend.ns.svc.cluster.local", "db.other.svc.cluster.local", "www.example.com", "tld"];
    let (text, missing) = ("192.0.2.1", "3: Host not found");
    for (conf, name, expected, names) in [
        (pod, "backend", text, "backend.ns.svc.cluster.local"),
        (pod, "db.other", text, "db.other.ns.svc.cluster.local db.other.svc.cluster.local"),
        (
            pod,
            "www.example.com",
            text,
            "www.example.com.ns.svc.cluster.local www.example.com.svc.cluster.local \
             www.example.com.cluster.local www.example.com",
        ),
        (pod, "www.example.com.", text, "www.example.com"),
        (pod, "backend.", missing, "backend"),
        ("search a.test\n", "www.example.com", text, "www.example.com"),
        ("search a.test\n", "www.b", missing, "www.b www.b.a.test"),
        ("domain example.com\n", "www", text, "www.example.com"),
        ("search a.test\n", "tld", text, "tld.a.test tld"),
        // A server that has a problem with one candidate knows the next one; hosts hold for the name as it is written.
        ("search broken.test example.com\n", "www", text, "www.broken.test www.example.com"),
        ("search hosts.test\n", "app", missing, "app.hosts.test app"),
        ("search hosts.test\n", "app.hosts.test", "192.0.2.7", ""),
        ("search a.test\n", "192.0.2.9", "192.0.2.9", ""),
    ] {
        let server = name_server(known_names, &["www.broken.test"]);
        let dir = TempDir::new("system").unwrap();
        let resolver = SystemResolver::new(files(&dir, &server, conf, "192.0.2.7 app.hosts.test\n"));
        assert_eq!(look_up(&resolver, name, TIMEOUT), expected, "{conf} {name}");
        assert_eq!(query_names(&server), names, "{conf} {name}");
    }
}

#[test]
fn changed_files_are_read_again_and_never_on_a_loop() {
    let server = name_server(&["web.b.test"], &[]);
    let dir = TempDir::new("system").unwrap();
    let resolver = SystemResolver::new(files(&dir, &server, "search a.test\n", ""));
    assert_eq!(look_up(&resolver, "web", TIMEOUT), "3: Host not found");
    assert_eq!(look_up(&resolver, "app", TIMEOUT), "3: Host not found");
    // The files are replaced, not changed in place, as by the programs that usually write them.
    files(&dir, &server, "search b.test\n", "192.0.2.8 app\n");
    let refresh = || {
        resolver.begin_refresh().map(|refresh| {
            assert!(resolver.begin_refresh().is_none(), "one at a time");
            refresh.run();
        })
    };
    assert!(until(TIMEOUT, || refresh().is_some()));
    assert!(resolver.begin_refresh().is_none(), "once a second");
    assert_eq!(look_up(&resolver, "web", TIMEOUT), "192.0.2.1");
    assert_eq!(look_up(&resolver, "app", TIMEOUT), "192.0.2.8");
    // A file that cannot be read keeps its earlier content.
    fs::rename(dir.path().join("hosts"), dir.path().join("hosts.old")).unwrap();
    fs::create_dir(dir.path().join("hosts")).unwrap();
    resolver.refresh();
    assert_eq!(look_up(&resolver, "app", TIMEOUT), "192.0.2.8");
    fs::remove_dir(dir.path().join("hosts")).unwrap();
    fs::rename(dir.path().join("hosts.old"), dir.path().join("hosts")).unwrap();
    // A file that was removed counts as empty.
    fs::remove_file(dir.path().join("hosts")).unwrap();
    resolver.refresh();
    assert_eq!(look_up(&resolver, "app", TIMEOUT), "3: Host not found");
}

#[test]
fn search_ends_at_its_deadline() {
    let server = DnsServer::start(|_, _| {});
    let dir = TempDir::new("system").unwrap();
    let resolver = SystemResolver::new(files(&dir, &server, "search a.test b.test c.test\n", ""));
    assert_eq!(look_up(&resolver, "web", Duration::from_millis(50)), "110: Operation timed out");
    assert_eq!(query_names(&server), "web.a.test");
}

#[test]
fn use_vc_queries_over_tcp_only() {
    let server = name_server(&["web"], &[]);
    let dir = TempDir::new("system").unwrap();
    let resolver = SystemResolver::new(files(&dir, &server, "options use-vc\n", ""));
    assert_eq!(look_up(&resolver, "web.", TIMEOUT), "192.0.2.1");
    assert!(server.queries().iter().all(|query| query.carrier == Transport::Tcp));
}
