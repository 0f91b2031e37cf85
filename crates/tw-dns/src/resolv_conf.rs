//! `/etc/resolv.conf`: the system's name servers (resolv.conf(5)). The text is an argument.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use crate::resolver::Settings;

/// Port of a name server.
const DNS_PORT: u16 = 53;
/// Servers that are taken, as many as the C library takes.
const SERVERS_MAX: usize = 3;
/// Longest `timeout` and most `attempts` that the C library takes.
const TIMEOUT_MAX_SECS: u64 = 30;
const ATTEMPTS_MAX: u32 = 5;

/// What the system says about name servers.
///
/// `search` and `domain` are ignored: a name in a configuration is a whole one, as nginx takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvConf {
    /// `nameserver`; without any, the one of this machine.
    pub servers: Vec<SocketAddr>,
    /// `options timeout`
    pub timeout: Option<Duration>,
    /// `options attempts`
    pub attempts: Option<u32>,
}

impl ResolvConf {
    /// Reads the lines `nameserver` and `options`. Others, and what cannot be read, are left out as the C library does.
    pub fn parse(text: &[u8]) -> Self {
        let mut conf = Self { servers: Vec::new(), timeout: None, attempts: None };
        for line in String::from_utf8_lossy(text).lines() {
            if line.starts_with(['#', ';']) {
                continue;
            }
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") if conf.servers.len() < SERVERS_MAX => {
                    conf.servers.extend(words.next().and_then(server));
                }
                Some("options") => words.for_each(|option| conf.option(option)),
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            conf.servers.push((Ipv4Addr::LOCALHOST, DNS_PORT).into());
        }
        conf
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
            _ => {}
        }
    }

    /// A resolver that asks these servers.
    pub fn settings(&self) -> Settings {
        let default = Settings::new(self.servers.clone());
        Settings {
            attempt_timeout: self.timeout.unwrap_or(default.attempt_timeout),
            attempts: self.attempts.unwrap_or(default.attempts),
            ..default
        }
    }
}

/// The address of a server; an IPv6 one may have the number of a link behind a `%`. The name of a link would have to be
/// looked up, so a server with one is left out.
fn server(word: &str) -> Option<SocketAddr> {
    match word.split_once('%') {
        Some((addr, link)) => {
            Some(SocketAddrV6::new(addr.parse::<Ipv6Addr>().ok()?, DNS_PORT, 0, link.parse().ok()?).into())
        }
        None => Some(SocketAddr::new(word.parse::<IpAddr>().ok()?, DNS_PORT)),
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
            let conf = ResolvConf::parse(text.as_bytes());
            let found: Vec<_> = conf.servers.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), servers, "{text}");
            assert_eq!((conf.timeout, conf.attempts), (timeout.map(Duration::from_secs), attempts), "{text}");
        }
        assert_eq!(
            ResolvConf::parse(b"options timeout:3").settings().attempt_timeout,
            Duration::from_secs(3)
        );
    }
}
