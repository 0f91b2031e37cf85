//! The client hello of a connection whose TLS is not terminated here: version, server name and protocols, read from the first bytes
//! (RFC 8446 section 4.1.2, RFC 6066 section 3, RFC 7301 section 3.1).
//!
//! A message may be split over several records. Bytes that are no client hello are an answer, too: they are of another protocol.

/// Type of a record of the handshake protocol.
const HANDSHAKE: u8 = 22;
/// Type of the message.
const CLIENT_HELLO: u8 = 1;
/// Bytes of the random number.
pub(crate) const RANDOM: usize = 32;
/// Types of extensions.
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
/// Length of a name of a host, without the dot at its end, and of its parts (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;
/// TLSv1.3, as versions are written.
const TLS_1_3: [u8; 2] = [3, 4];

/// First bytes of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstBytes {
    /// More are needed.
    Incomplete,
    /// A client hello.
    ClientHello(PeekedHello),
    /// Something else.
    Other,
}

/// Facts of a client hello.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeekedHello {
    /// Highest version that the client can do: major and minor number.
    pub version: [u8; 2],
    /// Server name (SNI) as it was sent; empty if there is none.
    pub server_name: Vec<u8>,
    /// Protocols that the client offers (ALPN).
    pub alpn: Vec<Vec<u8>>,
}

impl PeekedHello {
    // DIFF(nginx): what is no name of a host, such as `unix:/run/x` or `a b`, is as none. It may become an address, or part of one.
    /// Server name, if it is one of a host: letters, digits, `-`, `_` and dots, and no IPv4 address (RFC 6066, section 3); else empty.
    pub fn host_name(&self) -> &[u8] {
        let name = self.server_name.as_slice();
        let labels = name.strip_suffix(b".").unwrap_or(name);
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_label = |label: &[u8]| (1..=LABEL_MAX).contains(&label.len()) && label.iter().all(is_plain);
        let last = labels.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
        // A top-level domain is never a number, but the last part of an address is, in all notations that systems
        // accept.
        let is_number = last.first().is_some_and(u8::is_ascii_digit)
            && (last.iter().all(u8::is_ascii_digit)
                || last.get(1).is_some_and(|x| x.eq_ignore_ascii_case(&b'x')));
        if labels.len() <= NAME_MAX && labels.split(|byte| *byte == b'.').all(is_label) && !is_number {
            name
        } else {
            b""
        }
    }

    /// Name of the version as OpenSSL writes it; `None` for an unknown one.
    pub fn version_name(&self) -> Option<&'static str> {
        Some(match self.version {
            [0, 2] => "SSLv2",
            [3, 0] => "SSLv3",
            [3, 1] => "TLSv1",
            [3, 2] => "TLSv1.1",
            [3, 3] => "TLSv1.2",
            TLS_1_3 => "TLSv1.3",
            _ => return None,
        })
    }
}

/// Shortest client hello that names a server: that of a client which can do TLS 1.2. Names are shorter than 64 KiB.
pub fn of_name(name: &str) -> Vec<u8> {
    let prefixed = |content: &[u8]| {
        let len = u16::try_from(content.len()).unwrap_or(u16::MAX);
        [&len.to_be_bytes(), content].concat()
    };
    // Extension server_name (RFC 6066, section 3): a list of one host_name.
    let names = prefixed(&[&[0][..], &prefixed(name.as_bytes())].concat());
    let extensions = prefixed(&[&[0, 0][..], &prefixed(&names)].concat());
    // Version, random, session id, one cipher suite, no compression (RFC 5246, section 7.4.1.2).
    let hello = [&[3, 3][..], &[0; 32], &[0], &[0, 2, 0xc0, 0x2f], &[1, 0], &extensions].concat();
    let message = [&[1, 0][..], &prefixed(&hello)].concat();
    [&[22, 3, 1][..], &prefixed(&message)].concat()
}

/// Reads the first bytes of a client. Allocates as many bytes as the message has in `bytes`.
pub fn peek(bytes: &[u8]) -> FirstBytes {
    match message(bytes) {
        Ok(body) => hello(&body).map_or(FirstBytes::Other, FirstBytes::ClientHello),
        Err(other) => other,
    }
}

/// Body of the client hello in the first bytes of a client. The error says what these are instead.
pub(crate) fn message(bytes: &[u8]) -> Result<Vec<u8>, FirstBytes> {
    let mut message = Vec::new();
    let mut rest = bytes;
    while let Some((header, behind)) = rest.split_first_chunk::<5>() {
        let [kind, major, _, high, low] = *header;
        if let [first, _, 1, major @ (0 | 3), minor] = *header
            && first & 0x80 != 0
        {
            // The hello of SSLv2, in which a client may offer later versions.
            let version = [major, minor];
            return Err(FirstBytes::ClientHello(PeekedHello { version, ..PeekedHello::default() }));
        }
        if kind != HANDSHAKE || major != 3 {
            return Err(FirstBytes::Other);
        }
        let len = usize::from(u16::from_be_bytes([high, low]));
        let Some((content, behind)) = behind.split_at_checked(len) else {
            return Err(FirstBytes::Incomplete);
        };
        message.extend_from_slice(content);
        rest = behind;
        let Some((header, body)) = message.split_first_chunk::<4>() else { continue };
        let [kind, len @ ..] = *header;
        if kind != CLIENT_HELLO {
            return Err(FirstBytes::Other);
        }
        let [high, middle, low] = len;
        let len = u32::from_be_bytes([0, high, middle, low]) as usize;
        if body.len() >= len {
            message.drain(..4);
            message.truncate(len);
            return Ok(message);
        }
    }
    Err(FirstBytes::Incomplete)
}

/// Reads the body of the message; `None` if it is malformed.
fn hello(mut body: &[u8]) -> Option<PeekedHello> {
    let version = *take(&mut body, 2)?.first_chunk()?;
    let mut hello = PeekedHello { version, ..PeekedHello::default() };
    take(&mut body, RANDOM)?;
    let _session_id = vector_8(&mut body)?;
    let _cipher_suites = vector_16(&mut body)?;
    let _compression_methods = vector_8(&mut body)?;
    if body.is_empty() {
        return Some(hello);
    }
    let mut extensions = vector_16(&mut body)?;
    let mut has_name = false;
    let mut has_alpn = false;
    while !extensions.is_empty() {
        let kind = u16::from_be_bytes(*take(&mut extensions, 2)?.first_chunk()?);
        if kind == SUPPORTED_VERSIONS {
            // As in nginx, the length of the list counts, not that of the extension.
            take(&mut extensions, 2)?;
            vector_8(&mut extensions)?;
            hello.version = TLS_1_3;
            continue;
        }
        let content = vector_16(&mut extensions)?;
        match kind {
            SERVER_NAME if !has_name => {
                has_name = true;
                hello.server_name = server_name(content)?.to_vec();
            }
            ALPN if !has_alpn => {
                has_alpn = true;
                hello.alpn = protocols(content)?;
            }
            _ => {}
        }
    }
    Some(hello)
}

/// The first name of a list of server names.
fn server_name(mut content: &[u8]) -> Option<&[u8]> {
    let mut list = vector_16(&mut content)?;
    match take(&mut list, 1)? {
        [0] => vector_16(&mut list),
        _ => None,
    }
}

/// The names of a list of protocols.
fn protocols(mut content: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut list = vector_16(&mut content)?;
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let protocol = vector_8(&mut list)?;
        if protocol.is_empty() {
            return None;
        }
        protocols.push(protocol.to_vec());
    }
    Some(protocols)
}

/// Takes the first `len` bytes.
pub(crate) fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(first)
}

/// Takes a vector with one byte for its length.
pub(crate) fn vector_8<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::from(*take(bytes, 1)?.first()?);
    take(bytes, len)
}

/// Takes a vector with two bytes for its length.
pub(crate) fn vector_16<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::from(u16::from_be_bytes(*take(bytes, 2)?.first_chunk()?));
    take(bytes, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vec_16(content: &[u8]) -> Vec<u8> {
        [&u16::try_from(content.len()).unwrap().to_be_bytes(), content].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [kind.to_be_bytes().to_vec(), vec_16(content)].concat()
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let body = [&[3, 3], &[7; 32][..], &[1, 9], &[0, 2, 19, 1], &[1, 0], extensions].concat();
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[CLIENT_HELLO], &len[1..], &body].concat()
    }

    /// The message in records of at most `size` bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|part| [&[HANDSHAKE, 3, 1], &*vec_16(part)].concat()).collect()
    }

    fn full() -> Vec<u8> {
        let name = extension(SERVER_NAME, &vec_16(&[&[0], &*vec_16(b"example.com")].concat()));
        let alpn = extension(ALPN, &vec_16(b"\x02h2\x08http/1.1"));
        let versions = extension(SUPPORTED_VERSIONS, &[2, 3, 4]);
        message(&vec_16(&[extension(10, &[]), name, alpn, versions].concat()))
    }

    #[test]
    fn hello_of_a_name_is_read() {
        let FirstBytes::ClientHello(hello) = peek(&of_name("a.example")) else { panic!("no client hello") };
        assert_eq!((&*hello.server_name, hello.version_name()), (&b"a.example"[..], Some("TLSv1.2")));
    }

    #[test]
    fn host_name_is_letters_digits_and_dots() {
        let long = "x".repeat(64);
        let name_of = |name: &str| {
            let server_name = name.as_bytes().to_vec();
            PeekedHello { server_name, ..PeekedHello::default() }.host_name().to_vec()
        };
        for name in
            ["localhost", "A.example", "a_b-c.example.", "1.example", "xn--bcher-kva.example", "0x.example"]
        {
            assert_eq!(name_of(name), name.as_bytes());
        }
        for name in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "unix:/run/x",
            "a b",
            "a\0",
            "a\r\n",
            "a:443",
            "[::1]",
            "::1",
            "a/b",
            "*.a",
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "0x7f.1",
            "0x7f000001",
            "2130706433",
            "b\u{fc}cher.example",
            &long,
        ] {
            assert_eq!(name_of(name), b"", "{name}");
        }
        assert_eq!(name_of(&["abcdefghi"; 30].join(".")), b"");
    }

    #[test]
    fn hello_is_read_however_it_is_split() {
        let expected = PeekedHello {
            version: TLS_1_3,
            server_name: b"example.com".to_vec(),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        assert_eq!(expected.version_name(), Some("TLSv1.3"));
        let message = full();
        for size in 1..=message.len() {
            let bytes = records(&message, size);
            for end in 0..bytes.len() {
                assert_eq!(peek(&bytes[..end]), FirstBytes::Incomplete, "{size} {end}");
            }
            assert_eq!(peek(&bytes), FirstBytes::ClientHello(expected.clone()), "{size}");
            let behind = [&bytes[..], b"more"].concat();
            assert_eq!(peek(&behind), FirstBytes::ClientHello(expected.clone()), "{size}");
        }
    }

    #[test]
    fn hello_without_extensions() {
        for extensions in [&[][..], &[0, 0]] {
            let expected = PeekedHello { version: [3, 3], ..PeekedHello::default() };
            let bytes = records(&message(extensions), 1000);
            assert_eq!(peek(&bytes), FirstBytes::ClientHello(expected));
        }
        let FirstBytes::ClientHello(old) = peek(&[0x80, 46, 1, 0, 2]) else { panic!("no hello") };
        assert_eq!(old.version_name(), Some("SSLv2"));
    }

    #[test]
    fn other_bytes_are_no_hello() {
        let ext = |kind, content: &[u8]| records(&message(&vec_16(&extension(kind, content))), 1000);
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            vec![HANDSHAKE, 2, 0, 0, 1],
            records(&[2, 0, 0, 0], 1000),
            records(&[CLIENT_HELLO, 0, 0, 1, 3], 1000),
            records(&message(&[0, 1]), 1000),
            ext(SERVER_NAME, &[]),
            ext(SERVER_NAME, &[0, 4, 1, 0, 1, b'a']),
            ext(SERVER_NAME, &[0, 4, 0, 0, 9, b'a']),
            ext(ALPN, &[0, 1, 0]),
            ext(ALPN, &[0, 2, 5, b'a']),
        ] {
            assert_eq!(peek(&bytes), FirstBytes::Other, "{bytes:?}");
        }
    }
}
