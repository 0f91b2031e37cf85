//! Interpretation of a response: aliases (RFC 1034, section 3.6.2) and negative answers (RFC 2308).

use std::net::IpAddr;
use std::sync::Arc;

use crate::error::ResolveError;
use crate::name::Name;

tw_base::limits! {
    /// Limits of the work that a response can cause.
    pub(crate) const LIMITS;

    /// Aliases (CNAME) that are followed for a name.
    ///
    /// Limit of aliases followed within one response, and of queries that follow them. Real chains have up to five; nginx
    /// follows 50.
    pub(crate) const CHAIN_MAX: usize = 16, count, "the name is not found";
}

/// Kinds of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Servers of a service.
    Srv,
    /// Names of an address.
    Ptr,
}

/// Name and record type of a query.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Question {
    /// The name.
    pub name: Name,
    /// Record type.
    pub kind: Kind,
}

/// A server of a service (RFC 2782).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Servers with the lowest one are used first.
    pub priority: u16,
    /// The share of requests among those of one priority.
    pub weight: u16,
    /// Port of the service.
    pub port: u16,
    /// Name of the server.
    pub target: Name,
}

/// One record that matters, as an answer has it.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) owner: Name,
    /// Seconds.
    pub(crate) ttl: u32,
    pub(crate) data: Data,
}

/// Data of a record.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    Address(IpAddr),
    Alias(Name),
    Service(Service),
    /// Name of an address.
    Pointer(Name),
}

/// Records of the requested type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Records {
    /// Of a name.
    Addresses(Arc<[IpAddr]>),
    /// Of a service, in the order of their priorities.
    Services(Arc<[Service]>),
    /// Of an address.
    Names(Arc<[Name]>),
}

/// Result of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Records of the requested type.
    Found {
        /// At least one record.
        records: Records,
        /// Time to live in seconds: the shortest of all records on the way.
        ttl: u32,
    },
    /// Alias whose target has to be queried.
    Alias {
        /// The other name.
        to: Name,
        /// Time to live in seconds.
        ttl: u32,
    },
    /// No records.
    Missing {
        /// Not even the name.
        is_name: bool,
        /// Time to live in seconds, if the response has one.
        ttl: Option<u32>,
    },
    /// The server could not answer.
    Failed(ResolveError),
}

/// Interprets the records of a response. `missing` is true if the name does not exist; `soa_ttl` is the lifetime of a
/// negative answer.
pub(crate) fn read(question: &Question, records: Vec<Record>, missing: bool, soa_ttl: Option<u32>) -> Reply {
    let mut at = &question.name;
    let mut ttl = u32::MAX;
    for _ in 0..=CHAIN_MAX {
        let here = || records.iter().filter(|record| record.owner == *at);
        let fits = |record: &&Record| !matches!(record.data, Data::Alias(_));
        if let Some(shortest) = here().filter(fits).map(|record| record.ttl).min() {
            let records = collect(here().map(|record| &record.data), question.kind);
            return Reply::Found { records, ttl: ttl.min(shortest) };
        }
        let alias = here().find_map(|record| match &record.data {
            Data::Alias(to) => Some((to, record.ttl)),
            _ => None,
        });
        match alias {
            Some((to, alias_ttl)) => {
                at = to;
                ttl = ttl.min(alias_ttl);
            }
            // A negative answer is about the last name of the chain.
            None if missing || soa_ttl.is_some() || *at == question.name => {
                return Reply::Missing { is_name: missing, ttl: soa_ttl.map(|soa_ttl| soa_ttl.min(ttl)) };
            }
            None => return Reply::Alias { to: at.clone(), ttl },
        }
    }
    Reply::Missing { is_name: false, ttl: None }
}

fn collect<'a>(data: impl Iterator<Item = &'a Data>, kind: Kind) -> Records {
    if kind == Kind::Srv {
        let mut services: Vec<Service> = data
            .filter_map(|data| match data {
                Data::Service(service) => Some(service.clone()),
                _ => None,
            })
            .collect();
        services.sort_by_key(|service| service.priority);
        return Records::Services(services.into());
    }
    if kind == Kind::Ptr {
        let names = data.filter_map(|data| match data {
            Data::Pointer(name) => Some(name.clone()),
            _ => None,
        });
        return Records::Names(names.collect());
    }
    let addresses = data.filter_map(|data| match data {
        Data::Address(addr) => Some(*addr),
        _ => None,
    });
    Records::Addresses(addresses.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text.as_bytes()).unwrap()
    }

    /// `owner ttl address`, or `owner ttl alias`; separated by `;`.
    fn records(text: &str) -> Vec<Record> {
        let record = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let data = words[2].parse().map_or_else(|_| Data::Alias(name(words[2])), Data::Address);
            Record { owner: name(words[0]), ttl: words[1].parse().unwrap(), data }
        };
        text.split(';').filter(|line| !line.trim().is_empty()).map(record).collect()
    }

    fn outcome(reply: Reply) -> String {
        match reply {
            Reply::Found { records: Records::Addresses(addrs), ttl } => {
                let addrs: Vec<_> = addrs.iter().map(ToString::to_string).collect();
                format!("{} for {ttl}", addrs.join(","))
            }
            Reply::Alias { to, ttl } => format!("ask for {to} for {ttl}"),
            Reply::Missing { is_name, ttl } => format!("missing name:{is_name} for {ttl:?}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn answers() {
        for (text, missing, soa, expected) in [
            ("a 60 192.0.2.1", false, None, "192.0.2.1 for 60"),
            ("a 60 192.0.2.1; a 30 192.0.2.2", false, None, "192.0.2.1,192.0.2.2 for 30"),
            ("b 60 192.0.2.1", false, None, "missing name:false for None"),
            ("a 5 b; b 60 192.0.2.1", false, None, "192.0.2.1 for 5"),
            // Records may come in any order, together with others that were not requested.
            ("b 9 192.0.2.1; c 1 192.0.2.9; a 50 b", false, None, "192.0.2.1 for 9"),
            ("a 5 b; b 3 c", false, None, "ask for c for 3"),
            ("a 5 b; b 3 c", true, Some(100), "missing name:true for Some(3)"),
            ("a 5 b", true, None, "missing name:true for None"),
            ("a 5 b", false, Some(2), "missing name:false for Some(2)"),
            ("", false, Some(70), "missing name:false for Some(70)"),
            ("", true, Some(70), "missing name:true for Some(70)"),
            ("", true, None, "missing name:true for None"),
            // Round and round.
            ("a 5 a", false, None, "missing name:false for None"),
            ("a 5 b; b 5 c; c 5 a", false, None, "missing name:false for None"),
        ] {
            let question = Question { name: name("a"), kind: Kind::A };
            assert_eq!(outcome(read(&question, records(text), missing, soa)), expected, "{text}");
        }
    }

    #[test]
    fn chains_have_an_end() {
        let chain = |count: usize| {
            let aliases = (0..count).map(|n| format!("a{n} 5 a{};", n + 1)).collect::<String>();
            let question = Question { name: name("a0"), kind: Kind::A };
            outcome(read(&question, records(&format!("{aliases} a{count} 9 192.0.2.1")), false, None))
        };
        assert_eq!(chain(CHAIN_MAX), "192.0.2.1 for 5");
        assert_eq!(chain(CHAIN_MAX + 1), "missing name:false for None");
    }

    #[test]
    fn services_come_by_priority() {
        let service = |priority, target| Service { priority, weight: 1, port: 80, target: name(target) };
        let records = [(20, "c"), (10, "b"), (20, "a")].map(|(priority, target)| Record {
            owner: name("_http._tcp.a"),
            ttl: 7,
            data: Data::Service(service(priority, target)),
        });
        let question = Question { name: name("_http._tcp.a"), kind: Kind::Srv };
        let Reply::Found { records: Records::Services(services), ttl: 7 } =
            read(&question, records.to_vec(), false, None)
        else {
            panic!("not found");
        };
        assert_eq!(*services, [service(10, "b"), service(20, "c"), service(20, "a")]);
    }
}
