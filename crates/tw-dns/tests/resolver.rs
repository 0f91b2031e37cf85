//! Resolver on a guarded loop, with name servers on the loopback interface that give the answers of the test.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use support::on_loop;
use tw_dns::{Addresses, Families, Hosts, ResolveError, Resolver, Settings, Stats};
use tw_rt::{Heap, Subject, clock, spawn_local};
use tw_testkit::dns::{Data, DnsQuery, DnsServer, Outbox, Transport, code, kind};
use tw_testkit::wait::{TIMEOUT, until};

#[global_allocator]
static ALLOCATOR: Heap = Heap;

const ADDR: [u8; 4] = [192, 0, 2, 1];
const MS: Duration = Duration::from_millis(1);

/// Settings for servers that answer: long timeouts, so that a slow machine does not cause a second query.
fn patient(servers: &[&DnsServer]) -> Settings {
    let addrs = servers.iter().map(|server| server.addr()).collect();
    Settings { attempt_timeout: TIMEOUT, families: Families::Ipv4, ..Settings::new(addrs) }
}

/// Settings for servers that may not answer.
fn hasty(servers: &[&DnsServer]) -> Settings {
    Settings { attempt_timeout: 500 * MS, attempts: 2, ..patient(servers) }
}

fn resolver(settings: Settings) -> Arc<Resolver> {
    Resolver::new(settings, Arc::new(Stats::default()))
}

type Resolution = Result<Vec<String>, String>;

fn text(addresses: Result<Addresses, ResolveError>) -> Resolution {
    let addresses = addresses.map_err(|error| error.to_string())?;
    let mut addrs: Vec<_> = addresses.iter().map(|addr| addr.to_string()).collect();
    addrs.sort();
    Ok(addrs)
}

/// Looks names up, one after the other.
fn look_up(resolver: &Arc<Resolver>, names: &[&str]) -> Vec<Resolution> {
    let resolver = Arc::clone(resolver);
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    on_loop(|| async move {
        let mut all = Vec::new();
        for name in names {
            all.push(text(resolver.addresses(name.as_bytes(), TIMEOUT).await));
        }
        all
    })
}

fn one(settings: Settings, name: &str) -> Resolution {
    look_up(&resolver(settings), &[name]).remove(0)
}

fn is(addrs: &[&str]) -> Resolution {
    Ok(addrs.iter().map(ToString::to_string).collect())
}

fn fails(error: &str) -> Resolution {
    Err(error.to_owned())
}

#[test]
fn both_families_are_found_and_kept() {
    let server = DnsServer::start(|query, out| {
        let name = &*query.name;
        out.send(match query.kind {
            kind::A => query.answer().record(name, 60, Data::A(ADDR.into())).bytes(),
            _ => query.answer().record(name, 60, Data::Aaaa("2001:db8::1".parse().unwrap())).bytes(),
        });
    });
    let resolver = resolver(Settings { families: Families::Both, ..patient(&[&server]) });
    let names = ["www.example.com", "WWW.example.com.", "www.example.com"];
    let expected = is(&["192.0.2.1", "2001:db8::1"]);
    assert_eq!(look_up(&resolver, &names), [expected.clone(), expected.clone(), expected.clone()]);
    // Another loop has the answers, too.
    assert_eq!(look_up(&resolver, &names[..1]), [expected]);
    assert_eq!((server.count("www.example.com", kind::A), server.queries().len()), (1, 2));
    let stats = resolver.stats();
    assert_eq!((stats.name.value(), stats.noerror.value(), stats.cached.value()), (4, 2, 6));
}

#[test]
fn one_address_family_is_enough() {
    let both = |query: &DnsQuery, out: &mut Outbox| out.send(query.address(60, ADDR));
    let server = DnsServer::start(both);
    for (families, expected, query) in [
        (Families::Both, is(&["192.0.2.1"]), 3),
        (Families::Ipv4, is(&["192.0.2.1"]), 1),
        (Families::Ipv6, fails("3: Host not found"), 2),
    ] {
        let before = server.queries().len();
        assert_eq!(one(Settings { families, ..patient(&[&server]) }, "a.example"), expected);
        // A missing record is asked for twice while it is unknown whether the server keeps the case of letters.
        assert!(server.queries().len() - before <= query, "{families:?}");
    }
}

#[test]
fn a_server_that_never_answers_for_ipv6_costs_a_second_once() {
    let server = DnsServer::start(|query, out| {
        if query.kind == kind::A {
            out.send(query.address(60, ADDR));
        }
    });
    let settings = Settings { families: Families::Both, ..patient(&[&server]) };
    let resolver = resolver(settings);
    let (result, expires_in) = on_loop(move || async move {
        let addresses = resolver.addresses(b"a.example", TIMEOUT).await;
        let expires =
            addresses.as_ref().map(|addresses| addresses.expires.saturating_duration_since(clock::now()));
        let expires = expires.unwrap_or_default();
        (text(addresses), expires)
    });
    assert_eq!(result, is(&["192.0.2.1"]));
    assert!(expires_in <= Duration::from_secs(5), "it is asked for again soon: {expires_in:?}");
}

#[test]
fn lookups_in_flight_are_one_question() {
    let server = DnsServer::start(|query, out| out.send(query.address(60, ADDR)));
    let resolver = resolver(patient(&[&server]));
    let results = on_loop(move || async move {
        let subject = |id| Subject { kind: "test", id };
        let look = |id| {
            let resolver = Arc::clone(&resolver);
            spawn_local(subject(id), async move { text(resolver.addresses(b"a.example", TIMEOUT).await) })
        };
        let tasks: Vec<_> = (0..50).map(look).collect();
        let mut results = HashSet::new();
        for task in tasks {
            results.insert(task.await.unwrap());
        }
        results
    });
    assert_eq!(results, HashSet::from([is(&["192.0.2.1"])]));
    assert_eq!(server.queries().len(), 1);
}

#[test]
fn unmatched_messages_are_ignored_and_counted() {
    let server = DnsServer::start(|query, out| {
        let forged = query.answer().record(&query.name, 60, Data::A([203, 0, 113, 66].into()));
        let mut id = forged.clone();
        id.id[0] ^= 0x80;
        let mut name = forged.clone();
        name.name = "evil.example".into();
        let mut kind = forged.clone();
        kind.kind = kind::AAAA;
        for message in
            [id.bytes(), name.bytes(), kind.bytes(), b"garbage".to_vec(), Vec::new(), vec![0xff; 600]]
        {
            out.send(message);
        }
        out.send(query.address(60, ADDR));
    });
    let resolver = resolver(patient(&[&server]));
    assert_eq!(look_up(&resolver, &["www.example.com"]), [is(&["192.0.2.1"])]);
    assert_eq!((resolver.stats().unmatched.value(), server.queries().len()), (6, 1));
}

#[test]
fn repeated_guesses_cause_a_query_over_tcp() {
    let server = DnsServer::start(|query, out| match query.carrier {
        Transport::Tcp => out.send(query.address(60, ADDR)),
        Transport::Udp => {
            let forged = query.answer().record(&query.name, 60, Data::A([203, 0, 113, 66].into()));
            for n in 1..100 {
                let mut forged = forged.clone();
                forged.id[1] ^= n;
                out.send(forged.bytes());
            }
        }
    });
    let resolver = resolver(patient(&[&server]));
    assert_eq!(look_up(&resolver, &["www.example.com"]), [is(&["192.0.2.1"])]);
    assert_eq!(resolver.stats().unmatched.value(), 9);
}

#[test]
fn server_that_changes_case_is_queried_over_tcp() {
    let server = DnsServer::start(|query, out| {
        let mut answer = query.answer().record(&query.name, 60, Data::A(ADDR.into()));
        answer.name = query.name.clone();
        out.send(answer.bytes());
    });
    let name = "a-name-with-many-letters.example.com";
    assert_eq!(one(patient(&[&server]), name), is(&["192.0.2.1"]));
    let carriers: Vec<_> = server.queries().iter().map(|query| query.carrier).collect();
    assert_eq!(carriers, [Transport::Udp, Transport::Tcp]);
}

#[test]
fn case_sensitive_server_gets_lower_case() {
    let server = DnsServer::start(|query, out| {
        let is_known = query.written_name.ends_with("many-letters.example.com");
        out.send(if is_known {
            query.address(60, ADDR)
        } else {
            query.answer().code(code::NXDOMAIN).bytes()
        });
    });
    let resolver = resolver(patient(&[&server]));
    let names = ["many-letters.example.com", "b.many-letters.example.com", "many-letters.example.org"];
    let missing = fails("3: Host not found");
    assert_eq!(look_up(&resolver, &names), [is(&["192.0.2.1"]), is(&["192.0.2.1"]), missing]);
    let query = server.queries();
    assert_eq!(query.len(), 4, "only the first one twice: {query:?}");
    assert!(
        query[0].written_name != query[0].name
            && query[1..].iter().all(|query| query.written_name == query.name)
    );
}

#[test]
fn case_stays_mixed_for_a_server_that_preserves_it() {
    let server = DnsServer::start(|query, out| {
        let is_known = query.name.starts_with("www.");
        out.send(if is_known {
            query.address(60, ADDR)
        } else {
            query.answer().code(code::NXDOMAIN).bytes()
        });
    });
    let resolver = resolver(patient(&[&server]));
    look_up(&resolver, &["www.some-long-name.example", "missing.some-long-name.example"]);
    let query = server.queries();
    assert_eq!(query.len(), 2, "nothing is asked for twice: {query:?}");
    assert!(query.iter().all(|query| query.written_name != query.name), "{query:?}");
}

#[test]
fn truncated_response_is_repeated_over_tcp() {
    let server = DnsServer::start(|query, out| match query.carrier {
        Transport::Udp => out.send(query.answer().truncated().bytes()),
        Transport::Tcp => {
            let answer = (0..2000_u32).fold(query.answer(), |answer, n| {
                answer.record("a.example", 60, Data::A((0x0a00_0000 + n).into()))
            });
            out.send(answer.bytes());
        }
    });
    let resolver = resolver(patient(&[&server]));
    let results = look_up(&resolver, &["a.example"]).remove(0).unwrap();
    assert_eq!(results.len(), 1024);
    assert_eq!(resolver.stats().truncated.value(), 1);
}

#[test]
fn invalid_response_over_tcp_is_an_error() {
    let server = DnsServer::start(|query, out| match query.carrier {
        Transport::Udp => out.send(query.answer().truncated().bytes()),
        Transport::Tcp if query.name == "garbage.example" => out.send(vec![7; 40_000]),
        Transport::Tcp if query.name == "empty.example" => out.send(Vec::new()),
        Transport::Tcp => {}
    });
    let settings = Settings { attempts: 1, attempt_timeout: 1000 * MS, ..patient(&[&server]) };
    for (name, error) in [
        ("garbage.example", "1: Format error"),
        ("empty.example", "1: Format error"),
        ("closed.example", "104: Connection reset by peer"),
    ] {
        // On a machine that stalls for a second no server answers in time, hence the retries.
        let find = || one(settings.clone(), name);
        assert!(until(TIMEOUT, || find() == fails(error)), "{name}: {:?}", find());
    }
}

#[test]
fn aliases_are_followed_to_their_end() {
    let server = DnsServer::start(|query, out| {
        let name = &*query.name;
        let answer = query.answer();
        out.send(match name {
            "a.example" => answer.record(name, 60, Data::Cname("b.example")).bytes(),
            "b.example" => {
                let alias = answer.record(name, 60, Data::Cname("c.example"));
                alias.record("c.example", 60, Data::Cname("d.example")).bytes()
            }
            "d.example" => query.address(60, ADDR),
            "nowhere.example" => answer.record(name, 60, Data::Cname("missing.example")).bytes(),
            "ping.example" => answer.record(name, 60, Data::Cname("pong.example")).bytes(),
            "pong.example" => answer.record(name, 60, Data::Cname("ping.example")).bytes(),
            "missing.example" => answer.code(code::NXDOMAIN).bytes(),
            _ => answer.record(name, 60, Data::Cname(&format!("x{name}"))).bytes(),
        });
    });
    let resolver = resolver(patient(&[&server]));
    let results =
        look_up(&resolver, &["a.example", "d.example", "nowhere.example", "ping.example", "x.example"]);
    let missing = || fails("3: Host not found");
    assert_eq!(results, [is(&["192.0.2.1"]), is(&["192.0.2.1"]), missing(), missing(), missing()]);
    let endless = server.queries().iter().filter(|query| query.name.ends_with("x.example")).count();
    assert_eq!(endless, 17, "a chain without an end has one");
    assert_eq!(server.count("ping.example", kind::A) + server.count("pong.example", kind::A), 17);
}

#[test]
fn next_server_is_queried_after_a_failure() {
    let failing = |code| DnsServer::start(move |query, out| out.send(query.answer().code(code).bytes()));
    let good = || DnsServer::start(|query, out| out.send(query.address(60, ADDR)));
    let counters: [fn(&Stats) -> u64; 4] =
        [|s| s.servfail.value(), |s| s.refused.value(), |s| s.notimp.value(), |s| s.formerr.value()];
    let codes = [code::SERVFAIL, code::REFUSED, code::NOTIMP, code::FORMERR];
    let errors = ["2: Server failure", "5: Operation refused", "4: Unimplemented", "1: Format error"];
    for ((code, counter), error) in codes.into_iter().zip(counters).zip(errors) {
        let bad = failing(code);
        let good = good();
        let resolver = resolver(patient(&[&bad, &good]));
        assert_eq!(look_up(&resolver, &["a.example"]), [is(&["192.0.2.1"])], "{code}");
        assert_eq!((counter(resolver.stats()), bad.queries().len()), (1, 1));
        assert_eq!(one(patient(&[&bad]), "a.example"), fails(error));
    }
}

#[test]
fn next_server_is_queried_after_a_timeout() {
    let names = ["a.example", "b.example", "c.example", "d.example"];
    // On a machine that stalls, the good server is silent, too, and both are asked again.
    let is_asked_last = until(TIMEOUT, || {
        let silent = DnsServer::start(|_, _| {});
        let good = DnsServer::start(|query, out| out.send(query.address(60, ADDR)));
        let resolver = resolver(Settings { attempts: 8, ..hasty(&[&silent, &good]) });
        assert_eq!(look_up(&resolver, &names), [(); 4].map(|()| is(&["192.0.2.1"])));
        assert!(resolver.stats().timedout.value() >= 1);
        silent.queries().iter().all(|query| query.name == "a.example")
    });
    assert!(is_asked_last);
}

#[test]
fn late_response_is_accepted() {
    let mut first: Option<DnsQuery> = None;
    let server = DnsServer::start(move |query, out| match &first {
        None => first = Some(query.clone()),
        // Only the first query is answered, and only when a later one arrives.
        Some(first) => out.send_to(first.from, first.address(60, ADDR)),
    });
    assert_eq!(one(hasty(&[&server]), "a.example"), is(&["192.0.2.1"]));
}

#[test]
fn silent_servers_cause_a_timeout() {
    let server = DnsServer::start(|_, _| {});
    assert_eq!(one(hasty(&[&server]), "a.example"), fails("110: Operation timed out"));
    let resolver = resolver(patient(&[&server]));
    let (result, took) = on_loop(move || async move {
        // Time spans count from the beginning of the turn of the loop.
        let start = clock::now();
        (text(resolver.addresses(b"b.example", 50 * MS).await), start.elapsed())
    });
    assert_eq!(result, fails("110: Operation timed out"));
    assert!(took >= 50 * MS, "{took:?}");
}

#[test]
fn unreachable_server_is_a_system_error() {
    // The port belongs to this socket as long as it lives, and has no listener: the socket is connected to itself.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    socket.connect(addr).unwrap();
    let settings = |servers| Settings { attempts: 1, attempt_timeout: 500 * MS, ..Settings::new(servers) };
    assert_eq!(one(settings(vec![addr]), "a.example"), fails("111: Connection refused"));
    assert_eq!(one(settings(Vec::new()), "a.example"), fails("2: Server failure"));
    let good = DnsServer::start(|query, out| out.send(query.address(60, ADDR)));
    let both = Settings { attempt_timeout: TIMEOUT, ..settings(vec![addr, good.addr()]) };
    assert_eq!(one(both, "a.example"), is(&["192.0.2.1"]));
}

/// A server whose answers are those of `script` by the number of the question.
fn numbered(script: impl Fn(usize, &DnsQuery) -> Option<Vec<u8>> + Send + 'static) -> DnsServer {
    let count = AtomicUsize::new(0);
    DnsServer::start(move |query, out| {
        if let Some(message) = script(count.fetch_add(1, SeqCst), query) {
            out.send(message);
        }
    })
}

/// Looks a name up until its answer expires, and again; `again` is the number of lookups.
fn after_expiry(settings: Settings, again: usize) -> (Vec<Resolution>, Vec<bool>, Arc<Resolver>) {
    let resolver = resolver(settings);
    let used = Arc::clone(&resolver);
    let (results, stale) = on_loop(move || async move {
        let mut all = Vec::new();
        let mut stale = Vec::new();
        for n in 0..=again {
            let addresses = used.addresses(b"a.example", TIMEOUT).await;
            if n == 0
                && let Ok(addresses) = &addresses
            {
                tw_rt::time::sleep_until(addresses.expires).await;
            }
            stale.push(addresses.as_ref().is_ok_and(|addresses| addresses.is_stale));
            all.push(text(addresses));
        }
        (all, stale)
    });
    (results, stale, resolver)
}

#[test]
fn answers_expire() {
    let server = numbered(|n, query| Some(query.address(60, [192, 0, 2, n as u8 + 1])));
    let (results, stale, _) = after_expiry(Settings { valid: Some(20 * MS), ..patient(&[&server]) }, 1);
    assert_eq!((results, stale), (vec![is(&["192.0.2.1"]), is(&["192.0.2.2"])], vec![false, false]));
}

#[test]
fn stale_answers_are_used_when_no_server_answers() {
    let server = numbered(|n, query| (n == 0).then(|| query.address(60, ADDR)));
    let settings = Settings { valid: Some(20 * MS), attempts: 1, ..hasty(&[&server]) };
    let settings = Settings { attempt_timeout: 1000 * MS, ..settings };
    let (results, stale, resolver) = after_expiry(settings, 3);
    assert_eq!(results, [(); 4].map(|()| is(&["192.0.2.1"])));
    assert_eq!((stale, resolver.stats().stale.value()), (vec![false, true, true, true], 3));
    // Later lookups do not wait for the silent server again.
    assert_eq!(server.queries().len(), 2);
}

#[test]
fn stale_answer_does_not_wait_long_for_a_slow_server() {
    let server = numbered(|n, query| (n == 0).then(|| query.address(60, ADDR)));
    let settings = Settings { valid: Some(20 * MS), ..patient(&[&server]) };
    let start = Instant::now();
    let (results, stale, _) = after_expiry(settings, 1);
    assert_eq!((results, stale), (vec![is(&["192.0.2.1"]), is(&["192.0.2.1"])], vec![false, true]));
    assert!(start.elapsed() < TIMEOUT, "{:?}", start.elapsed());
}

#[test]
fn changed_answer_replaces_the_old_one() {
    for (code, error) in [(code::SERVFAIL, "2: Server failure"), (code::NXDOMAIN, "3: Host not found")] {
        let server = numbered(move |n, query| match n {
            0 => Some(query.address(60, ADDR)),
            _ => Some(query.answer().code(code).bytes()),
        });
        let (results, _, _) = after_expiry(Settings { valid: Some(20 * MS), ..patient(&[&server]) }, 1);
        assert_eq!(results, [is(&["192.0.2.1"]), fails(error)]);
    }
}

#[test]
fn negative_answers_are_kept_for_their_ttl() {
    let server = DnsServer::start(|query, out| {
        let answer = query.answer().code(code::NXDOMAIN);
        out.send(if query.name == "kept.example" { answer.soa(20, 20).bytes() } else { answer.bytes() });
    });
    let resolver = resolver(patient(&[&server]));
    let names = ["kept.example", "kept.example", "other.example", "other.example"];
    assert_eq!(look_up(&resolver, &names), [(); 4].map(|()| fails("3: Host not found")));
    let kept = server.count("kept.example", kind::A);
    let other = server.count("other.example", kind::A);
    assert_eq!(other, 2 * kept, "{:?}", server.queries());
    assert!(resolver.stats().nxdomain.value() >= 3);
}

#[test]
fn servers_of_a_service_come_with_their_addresses() {
    let server = DnsServer::start(|query, out| {
        let name = &*query.name;
        let answer = query.answer();
        out.send(match (name, query.kind) {
            ("_http._tcp.example.com", kind::SRV) => {
                let answer = answer.record(name, 60, Data::Srv(20, 1, 8080, "b.example"));
                let answer = answer.record(name, 60, Data::Srv(10, 5, 8081, "a.example"));
                answer.record(name, 60, Data::Srv(30, 5, 8081, "missing.example")).bytes()
            }
            ("_sip._udp.example.com", kind::SRV) => {
                answer.record(name, 60, Data::Srv(1, 1, 5060, "a.example")).bytes()
            }
            ("a.example", kind::A) => query.address(60, ADDR),
            ("b.example", kind::A) => query.address(60, [192, 0, 2, 2]),
            _ => answer.code(code::NXDOMAIN).bytes(),
        });
    });
    let resolver = resolver(patient(&[&server]));
    let results = on_loop(move || async move {
        let mut all = Vec::new();
        for service in ["http", "_sip._udp", "nothing", "bad..name"] {
            let services = resolver.services(service.as_bytes(), b"example.com", TIMEOUT).await;
            all.push(match services {
                Err(error) => error.to_string(),
                Ok(services) => {
                    let one = |target: tw_dns::Target| {
                        let addrs =
                            text(target.addresses).map_or_else(|error| error, |addrs| addrs.join(","));
                        format!(
                            "{} {} {} {}: {addrs}",
                            target.priority, target.weight, target.port, target.name
                        )
                    };
                    services.targets.into_iter().map(one).collect::<Vec<_>>().join("; ")
                }
            });
        }
        assert_eq!(resolver.stats().srv.value(), 4);
        all
    });
    let http = "10 5 8081 a.example: 192.0.2.1; 20 1 8080 b.example: 192.0.2.2; \
        30 5 8081 missing.example: 3: Host not found";
    assert_eq!(results, [http, "1 1 5060 a.example: 192.0.2.1", "3: Host not found", "3: Host not found"]);
}

#[test]
fn names_of_an_address_are_found_and_kept() {
    let server = DnsServer::start(|query, out| {
        let name = &*query.name;
        let answer = query.answer();
        out.send(match (name, query.kind) {
            ("1.2.0.192.in-addr.arpa", kind::PTR) => {
                let answer = answer.record(name, 60, Data::Ptr("Crawl-1.Example.COM"));
                answer.record(name, 60, Data::Ptr("b.example")).bytes()
            }
            // Part of a network delegated by an alias (RFC 2317).
            ("2.2.0.192.in-addr.arpa", kind::PTR) => {
                let answer = answer.record(name, 60, Data::Cname("2.0-3.2.0.192.in-addr.arpa"));
                answer.record("2.0-3.2.0.192.in-addr.arpa", 60, Data::Ptr("c.example")).bytes()
            }
            _ => answer.code(code::NXDOMAIN).bytes(),
        });
    });
    let resolver = resolver(patient(&[&server]));
    let results = on_loop(move || async move {
        let mut all = Vec::new();
        for addr in ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"] {
            all.push(match resolver.names(addr.parse().unwrap(), TIMEOUT).await {
                Ok(names) => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                Err(error) => error.to_string(),
            });
        }
        assert_eq!(resolver.stats().addr.value(), 5);
        all
    });
    let crawler = "crawl-1.example.com b.example";
    assert_eq!(results, [crawler, crawler, "c.example", "3: Host not found", "3: Host not found"]);
    assert_eq!(server.count("1.2.0.192.in-addr.arpa", kind::PTR), 1);
}

#[test]
fn some_names_need_no_server() {
    let hosts = Some(Arc::new(Hosts::parse(b"192.0.2.7 web.example\n2001:db8::7 web.example six.example\n")));
    let settings = Settings { hosts, ..Settings::new(Vec::new()) };
    let names = ["192.0.2.9", "::1", "WEB.example", "six.example", "other.example", "a..b", ""];
    let expected = [
        is(&["192.0.2.9"]),
        is(&["::1"]),
        is(&["192.0.2.7", "2001:db8::7"]),
        is(&["2001:db8::7"]),
        fails("2: Server failure"),
        fails("3: Host not found"),
        fails("3: Host not found"),
    ];
    assert_eq!(look_up(&resolver(settings.clone()), &names), expected);
    let ipv4 = Settings { families: Families::Ipv4, ..settings };
    assert_eq!(one(ipv4, "web.example"), is(&["192.0.2.7"]));
}

#[test]
fn lookups_rotate_the_addresses() {
    let server = DnsServer::start(|query, out| {
        let answer = query.answer();
        let answer =
            (1..=3).fold(answer, |answer, n| answer.record("a.example", 60, Data::A([192, 0, 2, n].into())));
        out.send(answer.bytes());
    });
    let resolver = resolver(patient(&[&server]));
    let firsts: Vec<IpAddr> = on_loop(move || async move {
        let mut firsts = Vec::new();
        for _ in 0..3 {
            let addresses = resolver.addresses(b"a.example", TIMEOUT).await.unwrap();
            assert_eq!((addresses.count(), addresses.iter().collect::<HashSet<_>>().len()), (3, 3));
            firsts.extend(addresses.iter().next());
        }
        firsts
    });
    assert_eq!(firsts.into_iter().collect::<HashSet<_>>().len(), 3);
}

#[test]
fn ports_and_ids_are_hard_to_guess() {
    let server = DnsServer::start(|query, out| out.send(query.address(60, ADDR)));
    let names: Vec<String> = (0..50).map(|n| format!("n{n}.example")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    look_up(&resolver(patient(&[&server])), &names);
    let ports: HashSet<SocketAddr> = server.queries().iter().map(|query| query.from).collect();
    assert!(ports.len() >= 40, "{ports:?}");
    let ids: HashSet<[u8; 2]> = server.queries().iter().map(|query| query.answer().id).collect();
    assert!(ids.len() >= 45, "{ids:?}");
}

#[test]
fn random_responses_never_hang_a_lookup() {
    // Marsaglia's xorshift64: the same every time.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let server = DnsServer::start(move |query, out| {
        let mut random = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % bound) as usize
        };
        let mut message =
            query.answer().record(&query.name, 1, Data::Cname("other.example")).soa(1, 1).bytes();
        for _ in 0..random(4) {
            let at = 2 + random(message.len() as u64 - 2);
            message[at] ^= 1 << random(8);
        }
        message.truncate(12 + random(message.len() as u64 * 2));
        out.send(message);
    });
    let resolver = resolver(Settings { attempt_timeout: 2 * MS, attempts: 2, ..patient(&[&server]) });
    let names: Vec<String> = (0..300).map(|n| format!("n{n}.example")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let results = look_up(&resolver, &names);
    assert_eq!(results.len(), 300);
    assert!(results.iter().all(Result::is_err), "nothing has an address");
}

#[test]
fn durations_may_be_arbitrarily_long() {
    let server = DnsServer::start(|query, out| out.send(query.address(60, ADDR)));
    let longest =
        Settings { valid: Some(Duration::MAX), attempt_timeout: Duration::MAX, ..patient(&[&server]) };
    let resolver = resolver(longest);
    let result = on_loop(move || async move { text(resolver.addresses(b"a.example", Duration::MAX).await) });
    assert_eq!(result, is(&["192.0.2.1"]));
}
