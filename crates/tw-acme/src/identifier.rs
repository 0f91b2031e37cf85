//! Identifiers of a certificate: names of hosts and addresses (RFC 8555, section 7.1.4; RFC 8738).

use std::fmt;
use std::net::IpAddr;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Names and addresses of one certificate that is ordered.
    const IDENTIFIERS_MAX: usize = 100, count, "the configuration is refused";
}

/// One name or address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identifier {
    /// A name in lower case; `*.example.com` is one.
    Dns(Box<str>),
    /// An address.
    Ip(IpAddr),
}

/// Why a word is no identifier; nginx's texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameError {
    /// A byte that no name has, and where it stands.
    Invalid(u8, usize),
    /// A character that may not stand there.
    Unexpected(char, usize),
    /// A name that ends with a dot or is empty.
    NotALabel,
    /// More than so many.
    TooMany(usize),
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(byte, at) => {
                write!(f, "invalid server name: invalid character {byte:x} at position {at}")
            }
            Self::Unexpected(letter, at) => {
                write!(f, "invalid server name: unexpected character '{letter}' at position {at}")
            }
            Self::NotALabel => f.write_str("invalid server name: does not end with a label"),
            Self::TooMany(max) => write!(f, "more than {max} identifiers"),
        }
    }
}

impl std::error::Error for NameError {}

impl Identifier {
    /// Adds what a word says to a list, each once: an address, a name, or with a dot in front a name with and without `www.`.
    ///
    /// # Errors
    /// Fails with [`NameError`] if the word cannot be an identifier of a certificate.
    pub fn add(word: &str, to: &mut Vec<Self>) -> Result<(), NameError> {
        if let Ok(address) = word.parse() {
            return push(Self::Ip(address), to);
        }
        check(word)?;
        match word.strip_prefix('.') {
            Some(host) => {
                let host = host.to_ascii_lowercase();
                push(Self::Dns(format!("www.{host}").into()), to)?;
                push(Self::Dns(host.into()), to)
            }
            None => push(Self::Dns(word.to_ascii_lowercase().into()), to),
        }
    }

    /// Returns its type in an order.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Dns(_) => "dns",
            Self::Ip(_) => "ip",
        }
    }

    /// Returns true for a wildcard name, which only DNS can prove.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Self::Dns(name) if name.starts_with("*."))
    }

    /// The name in the hello of an authority that looks for it (RFC 8738, section 6: of an address, its reverse name).
    pub(crate) fn name_in_hello(&self) -> String {
        match self {
            Self::Dns(name) => name.to_string(),
            Self::Ip(IpAddr::V4(address)) => {
                let [a, b, c, d] = address.octets();
                format!("{d}.{c}.{b}.{a}.in-addr.arpa")
            }
            Self::Ip(IpAddr::V6(address)) => {
                let nibbles = address
                    .octets()
                    .into_iter()
                    .rev()
                    .map(|byte| format!("{:x}.{:x}.", byte & 0xf, byte >> 4));
                nibbles.collect::<String>() + "ip6.arpa"
            }
        }
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

fn push(identifier: Identifier, to: &mut Vec<Identifier>) -> Result<(), NameError> {
    if to.contains(&identifier) {
        return Ok(());
    }
    if to.len() == IDENTIFIERS_MAX {
        return Err(NameError::TooMany(IDENTIFIERS_MAX));
    }
    to.push(identifier);
    Ok(())
}

/// Checks that a word is a name of labels and dots, with a dot or one wildcard in front.
fn check(name: &str) -> Result<(), NameError> {
    #[derive(PartialEq, Eq)]
    enum At {
        Start,
        Label,
        Dot,
        Wildcard,
    }
    let mut at = At::Start;
    for (position, byte) in name.bytes().enumerate() {
        let unexpected = || NameError::Unexpected(char::from(byte), position);
        at = match byte {
            0x00..=0x20 | 0x7f.. => return Err(NameError::Invalid(byte, position)),
            b'*' if at == At::Start => At::Wildcard,
            b'.' if at != At::Dot => At::Dot,
            _ if at == At::Wildcard => return Err(unexpected()),
            // Underscores are in names of hosts that people have.
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => At::Label,
            _ => return Err(unexpected()),
        };
    }
    if at == At::Label { Ok(()) } else { Err(NameError::NotALabel) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(words: &[&str]) -> Result<String, String> {
        let mut all = Vec::new();
        for word in words {
            Identifier::add(word, &mut all).map_err(|error| error.to_string())?;
        }
        Ok(all.iter().map(|id| format!("{}:{id}", id.kind())).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn words() {
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(added(&["Example.COM", "example.com"]), ok("dns:example.com"));
        assert_eq!(added(&[".example.com"]), ok("dns:www.example.com dns:example.com"));
        assert_eq!(added(&["*.example.com"]), ok("dns:*.example.com"));
        assert_eq!(added(&["192.0.2.1", "2001:DB8::1"]), ok("ip:192.0.2.1 ip:2001:db8::1"));
        for bad in
            ["", ".", "a..b", "a.", "*", "*.", "a.*.b", "*a.b", "a b", "a/b", "\u{e4}.example", "$host"]
        {
            assert!(added(&[bad]).is_err(), "{bad}");
        }
        assert_eq!(added(&["a b"]), Err("invalid server name: invalid character 20 at position 1".into()));
        let many: Vec<_> = (0..=IDENTIFIERS_MAX).map(|n| format!("h{n}.example")).collect();
        let many: Vec<&str> = many.iter().map(|name| &**name).collect();
        assert_eq!(added(&many), Err("more than 100 identifiers".into()));
    }

    #[test]
    fn names_in_hellos() {
        for (word, name) in [
            ("example.com", "example.com"),
            ("192.0.2.1", "1.2.0.192.in-addr.arpa"),
            ("2001:db8::1", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"),
        ] {
            let mut all = Vec::new();
            Identifier::add(word, &mut all).unwrap();
            assert_eq!(all[0].name_in_hello(), name);
        }
    }
}
