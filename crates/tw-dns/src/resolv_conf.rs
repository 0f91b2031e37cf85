//! `/etc/resolv.conf`: the system's name servers (resolv.conf(5)). The text is an argument.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::name::Name;
use crate::resolver::{Families, Settings};
use crate::search::SearchList;

/// Servers that are taken, as many as the C library takes.
const SERVERS_MAX: usize = 3;
/// Longest `timeout` and most `attempts` that the C library takes.
const TIMEOUT_MAX_SECS: u64 = 30;
const ATTEMPTS_MAX: u32 = 5;

/// Name servers and search rules of the system.
///
/// Options without effect here: `edns0` (a long response is repeated over TCP), `single-request` and
/// `single-request-reopen` (each query has a socket of its own), `inet6`, `trust-ad`, `debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver`; without any, the one of this machine.
    pub servers: Vec<SocketAddr>,
    /// `options timeout`
    pub timeout: Option<Duration>,
    /// `options attempts`
    pub attempts: Option<u32>,
    /// `options rotate`: each question begins with another server.
    pub rotate: bool,
    /// `options use-vc`: queries over TCP.
    pub tcp_only: bool,
    /// `options no-aaaa`
    pub skips_ipv6: bool,
    /// `search` or `domain`, whichever is last, and `options ndots`.
    pub(crate) search: SearchList,
    /// True if one of them is there.
    pub(crate) says_domains: bool,
}

impl ResolvConf {
    /// Reads the lines `nameserver`, `search`, `domain` and `options`. Others, and what cannot be read, are left out
    /// as the C library does. The servers listen on `port`.
    pub fn parse(text: &[u8], port: u16) -> Self {
        let mut conf = Self {
            servers: Vec::new(),
            timeout: None,
            attempts: None,
            rotate: false,
            tcp_only: false,
            skips_ipv6: false,
            search: SearchList::default(),
            says_domains: false,
        };
        for line in String::from_utf8_lossy(text).lines() {
            if line.starts_with(['#', ';']) {
                continue;
            }
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") if conf.servers.len() < SERVERS_MAX => {
                    conf.servers.extend(words.next().and_then(|word| server(word, port)));
                }
                Some("search") => conf.set_domains(words),
                Some("domain") => conf.set_domains(words.take(1)),
                Some("options") => words.for_each(|option| conf.option(option)),
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            conf.servers.push((Ipv4Addr::LOCALHOST, port).into());
        }
        conf
    }

    fn set_domains<'a>(&mut self, words: impl Iterator<Item = &'a str>) {
        let domain = |word: &str| match word {
            "." => Some(None),
            word => Name::parse(word.as_bytes()).map(Some),
        };
        self.search.domains = words.filter_map(domain).collect();
        self.says_domains = !self.search.domains.is_empty();
    }

    /// Sets the default search domain of this machine: the part after the first dot of its name.
    pub(crate) fn set_domain_of(&mut self, hostname: &[u8]) {
        let domain = hostname.iter().position(|byte| *byte == b'.').and_then(|at| hostname.get(at + 1..));
        self.search.domains = domain.and_then(Name::parse).map(Some).into_iter().collect();
    }

    fn option(&mut self, option: &str) {
        match option.split_once(':') {
            Some(("timeout", value)) => {
                let secs = value.parse::<u64>().ok().filter(|secs| *secs > 0);
                self.timeout =
                    secs.map(|secs| Duration::from_secs(secs.min(TIMEOUT_MAX_SECS))).or(self.timeout);
            }
            Some(("attempts", value)) => {
                let count = value.parse::<u32>().ok().filter(|count| *count > 0);
                self.attempts = count.map(|count| count.min(ATTEMPTS_MAX)).or(self.attempts);
            }
            Some(("ndots", value)) => {
                if let Ok(count) = value.parse() {
                    self.search.set_ndots(count);
                }
            }
            Some(_) => {}
            None => match option {
                "rotate" => self.rotate = true,
                "use-vc" => self.tcp_only = true,
                "no-aaaa" => self.skips_ipv6 = true,
                "no-tld-query" => self.search.skips_bare = true,
                _ => {}
            },
        }
    }

    /// Settings of a resolver with these servers.
    pub fn settings(&self) -> Settings {
        let default = Settings::new(self.servers.clone());
        Settings {
            attempt_timeout: self.timeout.unwrap_or(default.attempt_timeout),
            attempts: self.attempts.unwrap_or(default.attempts),
            families: if self.skips_ipv6 { Families::Ipv4 } else { Families::Both },
            rotate: self.rotate,
            tcp_only: self.tcp_only,
            ..default
        }
    }
}

/// Address of a server; an IPv6 one may have an interface number after `%`. An interface name would have to be looked
/// up, so a server with one is left out.
fn server(word: &str, port: u16) -> Option<SocketAddr> {
    match word.split_once('%') {
        Some((addr, link)) => {
            Some(SocketAddrV6::new(addr.parse::<Ipv6Addr>().ok()?, port, 0, link.parse().ok()?).into())
        }
        None => Some(SocketAddr::new(word.parse::<IpAddr>().ok()?, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, servers, timeout, attempts) in [
            ("", "127.0.0.1:53", None, None),
            ("nameserver 192.0.2.1\nnameserver ::1 # comment\n", "192.0.2.1:53 [::1]:53", None, None),
            ("nameserver\t192.0.2.1\r\nsearch a.example\ndomain b\n", "192.0.2.1:53", None, None),
            ("#nameserver 192.0.2.1\n;nameserver 192.0.2.2\n", "127.0.0.1:53", None, None),
            ("nameserver x\nnameserver fe80::1%eth0\nnameserver fe80::1%2", "[fe80::1%2]:53", None, None),
            ("options timeout:3 attempts:2 rotate", "127.0.0.1:53", Some(3), Some(2)),
            ("options timeout:300 attempts:200", "127.0.0.1:53", Some(30), Some(5)),
            ("options timeout:0 attempts:x timeout", "127.0.0.1:53", None, None),
            (
                "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4",
                "192.0.2.1:53 192.0.2.2:53 192.0.2.3:53",
                None,
                None,
            ),
        ] {
            let conf = ResolvConf::parse(text.as_bytes(), 53);
            let results: Vec<_> = conf.servers.iter().map(ToString::to_string).collect();
            assert_eq!(results.join(" "), servers, "{text}");
            assert_eq!((conf.timeout, conf.attempts), (timeout.map(Duration::from_secs), attempts), "{text}");
        }
        assert_eq!(
            ResolvConf::parse(b"options timeout:3", 53).settings().attempt_timeout,
            Duration::from_secs(3)
        );
    }

    #[test]
    fn domains_and_options() {
        let conf = |text: &str| ResolvConf::parse(text.as_bytes(), 53);
        for (text, expected) in [
            ("", ""),
            ("search a.example B.example.\n", "a.example b.example"),
            ("domain a.example ignored\n", "a.example"),
            ("search a b\ndomain c\n", "c"),
            ("domain c\nsearch a b c d e f g h\n", "a b c d e f g h"),
            ("search a . a..b\n", "a ."),
        ] {
            let domains = conf(text).search.domains;
            let words: Vec<_> =
                domains.iter().map(|domain| domain.as_ref().map_or(".".into(), Name::to_string)).collect();
            assert_eq!(words.join(" "), expected, "{text}");
            assert_eq!(conf(text).says_domains, !expected.is_empty(), "{text}");
        }
        let settings = conf("options rotate use-vc no-aaaa edns0 trust-ad").settings();
        assert_eq!((settings.rotate, settings.tcp_only, settings.families), (true, true, Families::Ipv4));
        let settings = conf("").settings();
        assert_eq!((settings.rotate, settings.tcp_only, settings.families), (false, false, Families::Both));
        let mut of_machine = conf("");
        of_machine.set_domain_of(b"host.dept.example");
        assert_eq!(of_machine.search.domains, [Name::parse(b"dept.example")]);
        of_machine.set_domain_of(b"host");
        assert!(of_machine.search.domains.is_empty());
    }
}
