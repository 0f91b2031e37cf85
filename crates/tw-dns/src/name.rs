//! Domain name as in a query: lower case, without the final dot.

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::sync::Arc;

/// Longest label (RFC 1035, section 2.3.4).
const LABEL_MAX: usize = 63;
// DIFF(nginx): a longer name is none, and nobody is asked for it.
/// Longest name as text: 255 bytes on the wire are one more before the first label and one for the root.
const NAME_MAX: usize = 253;

/// A domain name: labels of 1 to 63 bytes, together at most 253, in lower case. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// Takes a name as a configuration or a request has it, with or without the dot at its end. `None` if no name
    /// server could know such a name: an empty label, a label or a name too long. Costs one allocation.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        let fits = |label: &[u8]| (1..=LABEL_MAX).contains(&label.len());
        if text.len() > NAME_MAX || !text.split(|byte| *byte == b'.').all(fits) {
            return None;
        }
        let mut name: Arc<[u8]> = text.into();
        // The `Arc` is not shared yet, so `make_mut` copies nothing.
        Arc::make_mut(&mut name).make_ascii_lowercase();
        Some(Self(name))
    }

    /// Name under which the names of an address are found (RFC 1035, section 3.5; RFC 3596, section 2.5). An address like
    /// `::ffff:192.0.2.1` is an IPv4 address.
    pub(crate) fn reverse(addr: IpAddr) -> Self {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = match addr.to_canonical() {
            IpAddr::V4(addr) => {
                let [a, b, c, d] = addr.octets();
                write!(text, "{d}.{c}.{b}.{a}.in-addr.arpa")
            }
            IpAddr::V6(addr) => {
                let octets = addr.octets();
                let mut digits = octets.iter().rev().flat_map(|octet| [octet & 15, octet >> 4]);
                digits
                    .try_for_each(|digit| write!(text, "{digit:x}."))
                    .and_then(|()| write!(text, "ip6.arpa"))
            }
        };
        Self(text.into_bytes().into())
    }

    /// The name of these labels, as an answer has them. `None` for the root, and for a label with a dot in it, which
    /// as text would be another name.
    pub(crate) fn from_labels<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut text = Vec::new();
        for label in labels {
            if label.contains(&b'.') {
                return None;
            }
            if !text.is_empty() {
                text.push(b'.');
            }
            text.extend_from_slice(label);
        }
        Self::parse(&text)
    }

    /// The name as text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Labels of the name, the first one first.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'.')
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = |count: usize| "a".repeat(count);
        let full = [long(63), long(63), long(63), long(61)].join(".");
        for (text, expected) in [
            ("www.Example.COM", Some("www.example.com")),
            ("www.example.com.", Some("www.example.com")),
            ("_http._tcp.example.com", Some("_http._tcp.example.com")),
            ("localhost", Some("localhost")),
            ("a b", Some("a b")),
            ("", None),
            (".", None),
            ("a..b", None),
            (".a", None),
            ("a..", None),
            (&long(63), Some(&*long(63))),
            (&long(64), None),
            (&full, Some(&*full)),
            (&format!("{full}a"), None),
        ] {
            let name = Name::parse(text.as_bytes());
            assert_eq!(name.map(|name| name.to_string()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn addresses_have_names_for_queries() {
        for (addr, expected) in [
            ("192.0.2.10", "10.2.0.192.in-addr.arpa"),
            ("::ffff:192.0.2.10", "10.2.0.192.in-addr.arpa"),
            (
                "2001:db8::567:89ab",
                "b.a.9.8.7.6.5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
            ),
        ] {
            let name = Name::reverse(addr.parse().unwrap());
            assert_eq!(name.to_string(), expected);
            assert_eq!(Name::parse(expected.as_bytes()), Some(name));
        }
    }

    #[test]
    fn labels_make_a_name() {
        let name = |labels: &[&str]| Name::from_labels(labels.iter().map(|label| label.as_bytes()));
        assert_eq!(name(&["WWW", "example"]), Name::parse(b"www.example"));
        assert_eq!(name(&["a.b", "example"]), None);
        assert_eq!(name(&[]), None);
        let parsed = Name::parse(b"a.bc.d").unwrap();
        assert_eq!(parsed.labels().collect::<Vec<_>>(), [b"a" as &[u8], b"bc", b"d"]);
    }
}
