//! Fingerprints of client hellos: JA3, and JA4 of TLS clients.
//!
//! Both list what a client offers, without the values that clients make up so that servers ignore unknown ones (GREASE,
//! RFC 8701). JA3 keeps the order of the hello; JA4 sorts it, so that clients which shuffle their extensions have one
//! fingerprint.

use std::fmt::Write as _;

use aws_lc_rs::digest;
use md5::{Digest, Md5};

use crate::client_hello::{self, RANDOM, take, vector_8, vector_16};

/// Types of extensions.
const SERVER_NAME: u16 = 0;
const SUPPORTED_GROUPS: u16 = 10;
const POINT_FORMATS: u16 = 11;
const SIGNATURE_ALGORITHMS: u16 = 13;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Client hello that gets a fingerprint.
    const FINGERPRINT_HELLO_MAX: usize = 16 << 10, bytes, "`$ssl_ja3` and `$ssl_ja4` are missing";
}

/// Protocol below TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsTransport {
    /// TCP, or a stream of bytes like it.
    Tcp,
    /// QUIC.
    Quic,
}

/// Fingerprints of one client hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// JA3 before it is hashed.
    pub ja3: Box<str>,
    /// JA4.
    pub ja4: Box<str>,
}

/// Lists of a client hello in their order.
#[derive(Debug, Default)]
struct Lists {
    version: u16,
    suites: Vec<u16>,
    extensions: Vec<u16>,
    groups: Vec<u16>,
    formats: Vec<u8>,
    schemes: Vec<u16>,
    versions: Vec<u16>,
    /// First protocol of ALPN; empty if there is none.
    protocol: Vec<u8>,
}

impl Fingerprint {
    /// Fingerprint of the client hello in the first records of a connection. `None` if they have none.
    pub fn of_records(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > FINGERPRINT_HELLO_MAX {
            return None;
        }
        let body = client_hello::message(bytes).ok()?;
        Some(Self::of(&Lists::read(&body)?, TlsTransport::Tcp))
    }

    /// Fingerprint of a client hello without records: a message with its header of four bytes.
    pub fn of_message(message: &[u8], carrier: TlsTransport) -> Option<Self> {
        let body = message.get(4..).filter(|body| body.len() <= FINGERPRINT_HELLO_MAX)?;
        Some(Self::of(&Lists::read(body)?, carrier))
    }

    /// MD5 of JA3, in hexadecimal.
    pub fn ja3_hash(&self) -> String {
        hex(&Md5::digest(self.ja3.as_bytes()))
    }

    fn of(lists: &Lists, carrier: TlsTransport) -> Self {
        Self { ja3: lists.ja3().into(), ja4: lists.ja4(carrier).into() }
    }
}

impl Lists {
    /// Reads the body of the message; `None` if it is malformed.
    fn read(mut body: &[u8]) -> Option<Self> {
        let mut lists = Self { version: number(take(&mut body, 2)?)?, ..Self::default() };
        take(&mut body, RANDOM)?;
        let _session_id = vector_8(&mut body)?;
        lists.suites = numbers(vector_16(&mut body)?);
        let _compression_methods = vector_8(&mut body)?;
        if body.is_empty() {
            return Some(lists);
        }
        let mut extensions = vector_16(&mut body)?;
        while !extensions.is_empty() {
            let kind = number(take(&mut extensions, 2)?)?;
            let mut content = vector_16(&mut extensions)?;
            lists.extensions.push(kind);
            match kind {
                SUPPORTED_GROUPS => lists.groups = numbers(vector_16(&mut content)?),
                POINT_FORMATS => lists.formats = vector_8(&mut content)?.to_vec(),
                SIGNATURE_ALGORITHMS => lists.schemes = numbers(vector_16(&mut content)?),
                SUPPORTED_VERSIONS => lists.versions = numbers(vector_8(&mut content)?),
                ALPN => {
                    let mut protocols = vector_16(&mut content)?;
                    lists.protocol = vector_8(&mut protocols)?.to_vec();
                }
                _ => {}
            }
        }
        Some(lists)
    }

    fn ja3(&self) -> String {
        let mut out = self.version.to_string();
        for list in [&self.suites, &self.extensions, &self.groups] {
            out.push(',');
            push_joined(usual(list), &mut out);
        }
        out.push(',');
        push_joined(self.formats.iter().map(|format| u16::from(*format)), &mut out);
        out
    }

    fn ja4(&self, carrier: TlsTransport) -> String {
        let carrier = match carrier {
            TlsTransport::Tcp => 't',
            TlsTransport::Quic => 'q',
        };
        let version = match usual(&self.versions).max().unwrap_or(self.version) {
            0x0304 => "13",
            0x0303 => "12",
            0x0302 => "11",
            0x0301 => "10",
            0x0300 => "s3",
            0x0002 => "s2",
            _ => "00",
        };
        let target = if self.extensions.contains(&SERVER_NAME) { 'd' } else { 'i' };
        let suites: Vec<u16> = usual(&self.suites).collect();
        let extensions: Vec<u16> = usual(&self.extensions).collect();
        let count = |list: &[u16]| list.len().min(99);
        let mut out = format!("{carrier}{version}{target}{:02}{:02}", count(&suites), count(&extensions));
        out.extend(ends_of_protocol(&self.protocol));
        out.push('_');
        out.push_str(&short_hash(&sorted(suites)));
        out.push('_');
        let named = |kind: &u16| !matches!(*kind, SERVER_NAME | ALPN);
        let mut offered = sorted(extensions.into_iter().filter(named).collect());
        let schemes: Vec<_> = usual(&self.schemes).map(|scheme| format!("{scheme:04x}")).collect();
        if !schemes.is_empty() {
            offered.push('_');
            offered.push_str(&schemes.join(","));
        }
        out.push_str(&short_hash(&offered));
        out
    }
}

/// Values that are not made up.
fn usual(list: &[u16]) -> impl Iterator<Item = u16> + '_ {
    let is_made_up = |value: u16| value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff;
    list.iter().copied().filter(move |value| !is_made_up(*value))
}

fn push_joined(values: impl Iterator<Item = u16>, out: &mut String) {
    for (at, value) in values.enumerate() {
        let dash = if at == 0 { "" } else { "-" };
        // Writing into a string cannot fail.
        let _ = write!(out, "{dash}{value}");
    }
}

/// Sorted values in hexadecimal, commas between.
fn sorted(mut values: Vec<u16>) -> String {
    values.sort_unstable();
    values.iter().map(|value| format!("{value:04x}")).collect::<Vec<_>>().join(",")
}

/// First and last character of a protocol, of its hexadecimal form if one of them is neither letter nor digit.
fn ends_of_protocol(protocol: &[u8]) -> [char; 2] {
    let (Some(first), Some(last)) = (protocol.first(), protocol.last()) else { return ['0', '0'] };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [char::from(*first), char::from(*last)];
    }
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
    [digit(first >> 4), digit(last & 0xf)]
}

/// First twelve digits of the SHA-256 of a text; zeros for none.
fn short_hash(text: &str) -> String {
    match text {
        "" => "0".repeat(12),
        _ => hex(digest::digest(&digest::SHA256, text.as_bytes()).as_ref()).chars().take(12).collect(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn number(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn numbers(list: &[u8]) -> Vec<u16> {
    list.chunks_exact(2).filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists of the example in the description of JA4, with values of GREASE.
    fn example() -> Lists {
        Lists {
            version: 0x0303,
            suites: vec![
                0x2a2a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013,
                0xc014, 0x009c, 0x009d, 0x002f, 0x0035,
            ],
            extensions: vec![
                0x6a6a, 0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005, 0x0023,
                0x0012, 0x002b, 0xff01, 0x000b, 0x000a, 0x0015,
            ],
            groups: vec![0x3a3a, 29, 23, 24],
            formats: vec![0],
            schemes: vec![0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601],
            versions: vec![0x7a7a, 0x0304, 0x0303],
            protocol: b"h2".to_vec(),
        }
    }

    /// The lists as the body of a client hello.
    fn body(lists: &Lists) -> Vec<u8> {
        let of_16 = |values: &[u16]| values.iter().flat_map(|value| value.to_be_bytes()).collect::<Vec<_>>();
        let vec_8 = |content: &[u8]| [&[content.len() as u8], content].concat();
        let vec_16 = |content: &[u8]| [&(content.len() as u16).to_be_bytes()[..], content].concat();
        let extensions = lists.extensions.iter().flat_map(|kind| {
            let content = match *kind {
                SUPPORTED_GROUPS => vec_16(&of_16(&lists.groups)),
                POINT_FORMATS => vec_8(&lists.formats),
                SIGNATURE_ALGORITHMS => vec_16(&of_16(&lists.schemes)),
                SUPPORTED_VERSIONS => vec_8(&of_16(&lists.versions)),
                ALPN => vec_16(&vec_8(&lists.protocol)),
                _ => Vec::new(),
            };
            [kind.to_be_bytes().to_vec(), vec_16(&content)].concat()
        });
        let extensions: Vec<u8> = extensions.collect();
        [
            lists.version.to_be_bytes().to_vec(),
            vec![7; RANDOM],
            vec_8(&[1; 32]),
            vec_16(&of_16(&lists.suites)),
            vec_8(&[0]),
            vec_16(&extensions),
        ]
        .concat()
    }

    #[test]
    fn fingerprints_of_known_hellos() {
        let message = |lists: &Lists| {
            let body = body(lists);
            [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat()
        };
        let of = |lists: &Lists, carrier| Fingerprint::of_message(&message(lists), carrier).unwrap();
        let fingerprint = of(&example(), TlsTransport::Tcp);
        assert_eq!(&*fingerprint.ja4, "t13d1516h2_8daaf6152771_e5627efa2ab1");
        assert_eq!(
            &*fingerprint.ja3,
            "771,4865-4866-4867-49195-49199-49196-49200-52393-52392-49171-49172-156-157-47-53,\
             27-0-51-16-17513-23-45-13-5-35-18-43-65281-11-10-21,29-23-24,0"
        );
        // A hello without signature algorithms, from the same description.
        let without = Lists { schemes: Vec::new(), ..example() };
        assert!(of(&without, TlsTransport::Quic).ja4.starts_with("q13d1516h2_8daaf6152771_6d807ffa2a79"));
        let records =
            [&[22, 3, 1][..], &(message(&example()).len() as u16).to_be_bytes(), &message(&example())];
        assert_eq!(Fingerprint::of_records(&records.concat()), Some(fingerprint));
        // The example of JA3.
        let old = Lists {
            version: 769,
            suites: vec![
                255, 49162, 49172, 136, 135, 57, 56, 49167, 49157, 132, 53, 49159, 49161, 49169, 49171, 69,
                68, 51, 50, 49164, 49166, 49154, 49156, 150, 65, 4, 5, 47, 49160, 49170, 22, 19, 49165,
                49155, 65279, 10,
            ],
            extensions: vec![0, 10, 11, 35],
            groups: vec![23, 24, 25],
            formats: vec![0],
            ..Lists::default()
        };
        let fingerprint = of(&old, TlsTransport::Tcp);
        assert_eq!(fingerprint.ja3_hash(), "2aef69b4ba1938c3a400de4188743185");
        assert!(fingerprint.ja4.starts_with("t10d360400_"), "{}", fingerprint.ja4);
    }

    #[test]
    fn protocols_have_two_characters() {
        for (protocol, expected) in [
            (&b""[..], "00"),
            (b"h2", "h2"),
            (b"http/1.1", "h1"),
            (b"x", "xx"),
            (&[0xab], "ab"),
            (&[0xab, 0xcd], "ad"),
            (&[0x30, 0xab], "3b"),
            (&[0x30, 0x31, 0xab, 0xcd], "3d"),
            (&[0x30, 0xab, 0xcd, 0x31], "01"),
        ] {
            assert_eq!(ends_of_protocol(protocol).iter().collect::<String>(), expected, "{protocol:?}");
        }
    }

    #[test]
    fn malformed_and_large_hellos_have_none() {
        let body = body(&example());
        for end in 0..body.len() {
            assert!(Lists::read(&body[..end]).is_none() || end == 2 + RANDOM + 33 + 2 + 32 + 2, "{end}");
        }
        let empty = Lists { suites: Vec::new(), extensions: Vec::new(), ..Lists::default() };
        assert_eq!(empty.ja4(TlsTransport::Tcp), "t00i000000_000000000000_000000000000");
        let large = Lists { suites: vec![1; 9000], ..example() };
        let body = self::body(&large);
        assert_eq!(Fingerprint::of_message(&[&[1, 0, 0, 0][..], &body].concat(), TlsTransport::Quic), None);
        assert_eq!(Fingerprint::of_records(b"GET / HTTP/1.1\r\n\r\n"), None);
    }
}
