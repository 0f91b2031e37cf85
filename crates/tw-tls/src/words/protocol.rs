//! Versions of the protocol (`ssl_protocols`, MinProtocol, MaxProtocol).

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use super::{Selection, WordError};

/// A version, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// SSL 2, never offered.
    Ssl2,
    /// SSL 3, never offered.
    Ssl3,
    /// TLS 1.0, never offered.
    Tls10,
    /// TLS 1.1, never offered.
    Tls11,
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// The versions that are offered; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocols {
    /// Both.
    Both,
    /// TLS 1.2 alone.
    Only12,
    /// TLS 1.3 alone.
    Only13,
}

const NAMES: &[(&str, Protocol)] = &[
    ("SSLv2", Protocol::Ssl2),
    ("SSLv3", Protocol::Ssl3),
    ("TLSv1", Protocol::Tls10),
    ("TLSv1.1", Protocol::Tls11),
    ("TLSv1.2", Protocol::Tls12),
    ("TLSv1.3", Protocol::Tls13),
];

impl Protocol {
    /// The version of this name: `TLSv1.2`.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(candidate, _)| *candidate == name).map(|(_, protocol)| *protocol)
    }
}

impl Protocols {
    /// The offered ones between two versions, both included; `None` if there is none.
    pub fn between(min: Protocol, max: Protocol) -> Option<Self> {
        let has = |protocol| min <= protocol && protocol <= max;
        match (has(Protocol::Tls12), has(Protocol::Tls13)) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Only12),
            (false, true) => Some(Self::Only13),
            (false, false) => None,
        }
    }

    /// Versions of these that lie between two versions; `None` without any.
    pub fn within(self, min: Option<Protocol>, max: Option<Protocol>) -> Option<Self> {
        let (first, last) = match self {
            Self::Both => (Protocol::Tls12, Protocol::Tls13),
            Self::Only12 => (Protocol::Tls12, Protocol::Tls12),
            Self::Only13 => (Protocol::Tls13, Protocol::Tls13),
        };
        Self::between(min.map_or(first, |min| min.max(first)), max.map_or(last, |max| max.min(last)))
    }

    /// Returns `true` if a version is among them.
    pub fn has(self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Tls12 => self != Self::Only13,
            Protocol::Tls13 => self != Self::Only12,
            _ => false,
        }
    }

    /// For rustls.
    pub fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        static ONLY_12: [&SupportedProtocolVersion; 1] = [&TLS12];
        static ONLY_13: [&SupportedProtocolVersion; 1] = [&TLS13];
        match self {
            Self::Both => &BOTH,
            Self::Only12 => &ONLY_12,
            Self::Only13 => &ONLY_13,
        }
    }
}

/// Versions selected by a string, and the names of those that are never offered.
///
/// # Errors
/// An unknown name, or only versions that are never offered.
pub fn protocols<'a>(
    words: impl IntoIterator<Item = &'a str>,
) -> Result<(Protocols, Selection<Protocol>), WordError> {
    let mut selected = Selection { chosen: Vec::new(), never: Vec::new() };
    for word in words {
        match Protocol::named(word).ok_or_else(|| WordError::Unknown(word.to_owned()))? {
            protocol if selected.chosen.contains(&protocol) => {}
            protocol @ (Protocol::Tls12 | Protocol::Tls13) => selected.chosen.push(protocol),
            _ if selected.never.iter().any(|text| text == word) => {}
            _ => selected.never.push(word.to_owned()),
        }
    }
    let has = |protocol| selected.chosen.contains(&protocol);
    match (has(Protocol::Tls12), has(Protocol::Tls13)) {
        (true, true) => Ok((Protocols::Both, selected)),
        (true, false) => Ok((Protocols::Only12, selected)),
        (false, true) => Ok((Protocols::Only13, selected)),
        (false, false) => Err(WordError::NeverOffered(selected.never)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (words, expected, never) in [
            (&["TLSv1.2", "TLSv1.3"][..], Protocols::Both, &[][..]),
            (&["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"], Protocols::Both, &["TLSv1", "TLSv1.1"]),
            (&["SSLv3", "TLSv1.2", "SSLv3", "TLSv1.2"], Protocols::Only12, &["SSLv3"]),
            (&["TLSv1.3"], Protocols::Only13, &[]),
        ] {
            let (protocols, selected) = protocols(words.iter().copied()).unwrap();
            assert_eq!(
                (protocols, selected.never.as_slice()),
                (expected, never.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>().as_slice())
            );
        }
        assert_eq!(protocols(["TLSv1.4"]).unwrap_err(), WordError::Unknown("TLSv1.4".to_owned()));
        assert_eq!(
            protocols(["SSLv2", "TLSv1"]).unwrap_err(),
            WordError::NeverOffered(vec!["SSLv2".to_owned(), "TLSv1".to_owned()])
        );
    }

    #[test]
    fn between_two_versions() {
        use Protocol::*;
        assert_eq!(Protocols::between(Tls10, Tls13), Some(Protocols::Both));
        assert_eq!(Protocols::between(Tls12, Tls12), Some(Protocols::Only12));
        assert_eq!(Protocols::between(Ssl2, Tls11), None);
        assert_eq!(Protocols::between(Tls13, Tls12), None);
        assert_eq!(Protocols::Both.within(Some(Tls13), None), Some(Protocols::Only13));
        assert_eq!(Protocols::Both.within(Some(Tls10), Some(Tls12)), Some(Protocols::Only12));
        assert_eq!(Protocols::Only12.within(Some(Tls13), None), None);
        assert!(Protocols::Only13.has(Tls13) && !Protocols::Only13.has(Tls12) && !Protocols::Both.has(Tls11));
    }
}
