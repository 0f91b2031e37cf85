//! Invariants for any bytes at the socket of a DNS query: no panic, the same result every time, a match only for the
//! query, and never more records than the limit.
//!
//! The bytes are used as they are, and once more after a matching header and question, with the flags and the counts
//! of the bytes, so that most of them pass the first checks.

use tw_dns::wire::{Case, Kind, Query, Question, RANDOM_SIZE, Records, Reply, Transport, Verdict};
use tw_dns::{Name, ResolveError};

/// The question that everything is compared with.
pub(crate) fn query(kind: Kind) -> Query {
    let name = Name::parse(b"www.example.com").expect("a name");
    Query::new(&Question { name, kind }, Case::Lower, &[0; RANDOM_SIZE])
}

pub(crate) fn check(data: &[u8]) {
    for kind in [Kind::A, Kind::Aaaa, Kind::Srv, Kind::Ptr] {
        let query = query(kind);
        check_response(&query, kind, data);
        let (Some(flags), Some(counts), Some(rest)) = (data.get(2..4), data.get(6..10), data.get(12..))
        else {
            continue;
        };
        let sent = query.bytes();
        let mut message = vec![sent[0], sent[1], 0x80 | flags[0] & 0x02, flags[1], 0, 1];
        message.extend_from_slice(&[counts[0] & 0x0f, counts[1], counts[2] & 0x0f, counts[3], 0, 0]);
        message.extend_from_slice(&sent[12..]);
        // The question of the data is left out if it has ours.
        message.extend_from_slice(rest.strip_prefix(&sent[12..]).unwrap_or(rest));
        check_response(&query, kind, &message);
    }
}

fn check_response(query: &Query, kind: Kind, message: &[u8]) {
    for carrier in [Transport::Udp, Transport::Tcp] {
        let verdict = query.match_response(message, carrier);
        assert_eq!(verdict, query.match_response(message, carrier));
        let Verdict::Reply(reply) = verdict else { continue };
        assert_eq!(message[..2], query.bytes()[..2], "an answer has our id");
        match reply {
            Reply::Found { records: Records::Addresses(addrs), .. } => {
                assert!(!addrs.is_empty() && addrs.len() <= 1024);
                assert!(addrs.iter().all(|addr| addr.is_ipv4() == (kind == Kind::A)));
                assert!(matches!(kind, Kind::A | Kind::Aaaa));
            }
            Reply::Found { records: Records::Services(services), .. } => {
                assert!(!services.is_empty() && services.len() <= 1024);
                assert!(services.is_sorted_by_key(|service| service.priority));
                assert!(kind == Kind::Srv);
            }
            Reply::Found { records: Records::Names(names), .. } => {
                assert!(!names.is_empty() && names.len() <= 1024);
                assert!(names.iter().all(|name| Name::parse(name.as_bytes()).as_ref() == Some(name)));
                assert!(kind == Kind::Ptr);
            }
            Reply::Alias { to, .. } => assert_eq!(Name::parse(to.as_bytes()), Some(to)),
            Reply::Missing { .. } => {}
            Reply::Failed(error) => assert_ne!(error, ResolveError::NotFound),
        }
    }
}
