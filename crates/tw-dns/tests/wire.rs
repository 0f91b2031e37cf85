//! Matching of responses, with messages made by hand; and the check of the fuzz target, over its checked-in inputs
//! and over mutations of these from a fixed seed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use tw_dns::wire::{Case, Kind, Query, Question, RANDOM_SIZE, Records, Reply, Service, Transport, Verdict};
use tw_dns::{Name, ResolveError};
use tw_testkit::dns::{self, Data, DnsQuery, DnsResponse, code, kind};

#[path = "../../../fuzz/checks/dns.rs"]
mod check;

/// Bytes of a message before its question.
const HEADER_SIZE: usize = 12;
/// Mutations: some seconds without optimisation.
const MUTATIONS: usize = 10_000;
const ADDR: [u8; 4] = [192, 0, 2, 1];

fn question(name: &str, kind: Kind) -> Question {
    Question { name: Name::parse(name.as_bytes()).unwrap(), kind }
}

fn dns_query(query: &Query) -> DnsQuery {
    DnsQuery::read(query.bytes(), dns::Transport::Udp, SocketAddr::from(([127, 0, 0, 1], 1))).unwrap()
}

/// Every second bit is set.
fn query(case: Case) -> Query {
    Query::new(&question("www.example.com", Kind::A), case, &[0x55; RANDOM_SIZE])
}

fn addresses_verdict(addrs: &[[u8; 4]], ttl: u32) -> Verdict {
    let addrs: Arc<[IpAddr]> = addrs.iter().map(|addr| IpAddr::from(*addr)).collect();
    Verdict::Reply(Reply::Found { records: Records::Addresses(addrs), ttl })
}

fn missing(is_name: bool, ttl: Option<u32>) -> Verdict {
    Verdict::Reply(Reply::Missing { is_name, ttl })
}

fn failed(error: ResolveError) -> Verdict {
    Verdict::Reply(Reply::Failed(error))
}

fn address(answer: DnsResponse) -> DnsResponse {
    let name = answer.name.clone();
    answer.record(&name, 60, Data::A(ADDR.into()))
}

#[test]
fn queries_are_encoded_as_in_rfc_1035() {
    let mixed = query(Case::Mixed);
    assert!(mixed.is_mixed());
    let expected =
        b"\x55\x55\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03WwW\x07eXaMpLe\x03CoM\x00\x00\x01\x00\x01";
    assert_eq!(mixed.bytes().escape_ascii().to_string(), expected.escape_ascii().to_string());
    let lower = Query::new(&question("a.b", Kind::Srv), Case::Lower, &[0xff; RANDOM_SIZE]);
    assert!(!lower.is_mixed());
    assert_eq!(
        lower.bytes(),
        b"\xff\xff\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x01b\x00\x00\x21\x00\x01"
    );
    let digits = Query::new(&question("1.2-3", Kind::Aaaa), Case::Mixed, &[0xff; RANDOM_SIZE]);
    assert!(!digits.is_mixed(), "nothing to mix");
}

#[test]
fn longest_name_fits_into_a_query() {
    let name = [63, 63, 63, 61].map(|count| "a".repeat(count)).join(".");
    let query = Query::new(&question(&name, Kind::A), Case::Mixed, &[0xff; RANDOM_SIZE]);
    assert_eq!(query.bytes().len(), HEADER_SIZE + 255 + 4);
    let answer = address(dns_query(&query).answer());
    assert_eq!(query.match_response(&answer.bytes(), Transport::Udp), addresses_verdict(&[ADDR], 60));
}

#[test]
fn answers_over_udp() {
    let query = query(Case::Mixed);
    let plain = || dns_query(&query).answer();
    let name = plain().name;
    let changed = |change: &dyn Fn(&mut DnsResponse)| {
        let mut answer = address(plain());
        change(&mut answer);
        answer
    };
    let record = |ttl, data| plain().record(&name, ttl, data);
    let alias = || record(5, Data::Cname("Other.example"));
    let ipv6 = Data::Aaaa("2001:db8::1".parse().unwrap());
    let to = Name::parse(b"other.example").unwrap();
    for (what, answer, expected) in [
        ("one", address(plain()), addresses_verdict(&[ADDR], 60)),
        (
            "two",
            address(plain()).record(&name, 30, Data::A([192, 0, 2, 2].into())),
            addresses_verdict(&[ADDR, [192, 0, 2, 2]], 30),
        ),
        ("an alias", alias(), Verdict::Reply(Reply::Alias { to, ttl: 5 })),
        (
            "through an alias",
            alias().record("oTHER.example", 60, Data::A(ADDR.into())),
            addresses_verdict(&[ADDR], 5),
        ),
        ("another kind beside it", address(record(1, ipv6)), addresses_verdict(&[ADDR], 60)),
        (
            "an unknown kind",
            address(record(1, Data::Raw(65_000, vec![1, 2]))),
            addresses_verdict(&[ADDR], 60),
        ),
        ("another's", plain().record("evil.example", 60, Data::A(ADDR.into())), missing(false, None)),
        ("no data", plain().soa(300, 20), missing(false, Some(20))),
        ("no name", plain().code(code::NXDOMAIN).soa(10, 20), missing(true, Some(10))),
        ("no name, and nothing else", plain().code(code::NXDOMAIN), missing(true, None)),
        ("a negative time", record(u32::MAX, Data::A(ADDR.into())), addresses_verdict(&[ADDR], 0)),
        ("a problem", plain().code(code::SERVFAIL), failed(ResolveError::ServerFailure)),
        ("a problem, and one", address(plain()).code(code::REFUSED), failed(ResolveError::Refused)),
        ("another problem", plain().code(code::NOTIMP), failed(ResolveError::NotImplemented)),
        ("an odd code", plain().code(9), failed(ResolveError::Other(9))),
        ("no question", changed(&|answer| answer.questions = 0), Verdict::Unmatched),
        (
            "a problem with the question",
            changed(&|answer| answer.questions = 0).code(code::FORMERR),
            failed(ResolveError::Format),
        ),
        ("two questions", changed(&|answer| answer.questions = 2), Verdict::Unmatched),
        ("another id", changed(&|answer| answer.id[1] ^= 1), Verdict::Unmatched),
        ("another name", changed(&|answer| answer.name = "WwW.eXaMpLe.oRg".into()), Verdict::Unmatched),
        ("a longer name", changed(&|answer| answer.name.push_str(".x")), Verdict::Unmatched),
        ("a shorter name", changed(&|answer| answer.name = "WwW.eXaMpLe".into()), Verdict::Unmatched),
        ("no name at all", changed(&|answer| answer.name = String::new()), Verdict::Unmatched),
        ("another kind", changed(&|answer| answer.kind = kind::AAAA), Verdict::Unmatched),
        ("lower case", changed(&|answer| answer.name = answer.name.to_lowercase()), Verdict::WrongCase),
        (
            "one letter",
            changed(&|answer| answer.name = answer.name.replacen('W', "w", 1)),
            Verdict::WrongCase,
        ),
        ("cut off", address(plain()).truncated(), Verdict::Truncated),
        ("short data", record(60, Data::Raw(kind::A, vec![1, 2, 3])), failed(ResolveError::Format)),
        ("no data in it", record(60, Data::Raw(kind::A, Vec::new())), missing(false, None)),
    ] {
        assert_eq!(query.match_response(&answer.bytes(), Transport::Udp), expected, "{what}");
    }
}

#[test]
fn tcp_responses_may_change_case_but_must_be_complete() {
    let query = query(Case::Mixed);
    let answer = address(dns_query(&query).answer());
    let mut lower = answer.clone();
    lower.name = lower.name.to_lowercase();
    assert_eq!(query.match_response(&lower.bytes(), Transport::Tcp), addresses_verdict(&[ADDR], 60));
    assert_eq!(
        query.match_response(&answer.truncated().bytes(), Transport::Tcp),
        failed(ResolveError::Format)
    );
}

#[test]
fn queries_and_truncated_responses_are_refused() {
    let query = query(Case::Mixed);
    assert_eq!(query.match_response(query.bytes(), Transport::Udp), Verdict::Unmatched);
    let whole = address(dns_query(&query).answer()).soa(1, 1).bytes();
    // The question, and a record: both have the name.
    let address_end = HEADER_SIZE + 17 + 4 + 17 + 10 + 4;
    for end in 0..=whole.len() {
        let verdict = query.match_response(&whole[..end], Transport::Udp);
        let is_answer = matches!(verdict, Verdict::Reply(Reply::Found { .. }));
        // Bytes behind the answer do not matter.
        assert_eq!(is_answer, end >= address_end, "{end}: {verdict:?}");
    }
}

#[test]
fn services() {
    let query = Query::new(&question("_http._tcp.example", Kind::Srv), Case::Mixed, &[0x0f; RANDOM_SIZE]);
    let answer = dns_query(&query).answer();
    let name = answer.name.clone();
    let two = answer.clone().record(&name, 9, Data::Srv(20, 1, 80, "b.example"));
    let two = two.record(&name, 8, Data::Srv(10, 5, 81, "A.example"));
    let service = |priority, weight, port, target: &str| {
        let target = Name::parse(target.as_bytes()).unwrap();
        Service { priority, weight, port, target }
    };
    let services = [service(10, 5, 81, "a.example"), service(20, 1, 80, "b.example")];
    let expected = Verdict::Reply(Reply::Found { records: Records::Services(services.into()), ttl: 8 });
    assert_eq!(query.match_response(&two.bytes(), Transport::Udp), expected);
    // RFC 2782: there is no such service.
    let none = answer.record(&name, 9, Data::Srv(0, 0, 0, "."));
    assert_eq!(query.match_response(&none.bytes(), Transport::Udp), missing(false, None));
}

#[test]
fn giant_answers_are_read_in_part() {
    let query = query(Case::Lower);
    let mut answer = dns_query(&query).answer();
    for n in 0..1500 {
        answer = answer.record("www.example.com", 60, Data::A((0xc000_0000 + n).into()));
    }
    let verdict = query.match_response(&answer.bytes(), Transport::Tcp);
    let Verdict::Reply(Reply::Found { records: Records::Addresses(addrs), .. }) = verdict else {
        panic!("not found");
    };
    assert_eq!(addrs.len(), 1024);
}

#[test]
fn invalid_compression_pointers_are_refused() {
    let query = query(Case::Lower);
    let mut message = dns_query(&query).answer().bytes();
    message[6..8].copy_from_slice(&[0, 1]);
    let itself = (message.len() as u16 | 0xc000).to_be_bytes();
    for pointer in [itself, [0xff, 0xff], [0xc0, 0x00]] {
        let record =
            [&pointer, b"\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x01\x02\x03\x04".as_slice()].concat();
        let verdict = query.match_response(&[&*message, &record].concat(), Transport::Udp);
        let is_harmless = verdict == failed(ResolveError::Format) || verdict == missing(false, None);
        assert!(is_harmless, "{verdict:?}");
    }
}

/// Marsaglia's xorshift64: any sequence will do, as long as it is the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len());
        match self.below(4) {
            0 => input.insert(at, self.below(256) as u8),
            1 if !input.is_empty() => input[at] = [0, 1, 5, 12, 28, 33, 0x3f, 0xc0, 0xff][self.below(9)],
            2 if !input.is_empty() => drop(input.remove(at)),
            _ if !input.is_empty() => input[at] ^= 1 << self.below(8),
            _ => {}
        }
    }
}

#[test]
fn random_messages_do_not_panic() {
    let inputs: Vec<Vec<u8>> = messages().iter().map(|(_, message)| message.bytes()).collect();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    check::check(b"");
    for _ in 0..MUTATIONS {
        let mut input = inputs[random.below(inputs.len())].clone();
        for _ in 0..=random.below(6) {
            random.mutate(&mut input);
        }
        check::check(&input);
    }
}

/// Initial inputs of the fuzz target.
fn messages() -> Vec<(&'static str, DnsResponse)> {
    let answer = || dns_query(&check::query(Kind::A)).answer();
    let name = "www.example.com";
    let many = (0..40).fold(answer(), |answer, n| answer.record(name, n, Data::A(ADDR.into())));
    let chain = (1..20).fold(answer().record(name, 5, Data::Cname("a0.example")), |answer, n| {
        answer.record(&format!("a{}.example", n - 1), 5, Data::Cname(&format!("a{n}.example")))
    });
    let service =
        dns_query(&check::query(Kind::Srv)).answer().record(name, 5, Data::Srv(1, 2, 3, "a.example"));
    let pointer = dns_query(&check::query(Kind::Ptr)).answer().record(name, 5, Data::Ptr("a.example"));
    let ipv6 = dns_query(&check::query(Kind::Aaaa)).answer();
    let ipv6 = ipv6.record(name, 5, Data::Aaaa("2001:db8::1".parse().unwrap()));
    vec![
        ("address", address(answer())),
        ("addresses", many),
        ("alias", answer().record(name, 5, Data::Cname("other.example"))),
        ("chain", chain),
        ("loop", answer().record(name, 5, Data::Cname(name))),
        ("no_data", answer().soa(9, 9)),
        ("no_name", answer().code(code::NXDOMAIN).soa(9, 9)),
        ("failure", answer().code(code::SERVFAIL)),
        ("truncated", address(answer()).truncated()),
        ("service", service),
        ("pointer", pointer),
        ("ipv6", ipv6),
        ("odd", answer().record(name, 5, Data::Raw(64, vec![0, 1, 0, 0, 1, 0, 3, 2, b'h', b'2']))),
    ]
}

/// `UPDATE=1` writes them.
#[test]
fn corpus_has_real_responses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/dns");
    for (file, message) in messages() {
        let path = folder.join(file);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, message.bytes()).unwrap();
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        assert_eq!(kept, message.bytes(), "{}", path.display());
        check::check(&kept);
    }
}
