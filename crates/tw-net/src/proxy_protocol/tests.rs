use super::*;

fn addrs(src: &str, dst: &str) -> Option<Addrs> {
    Some(Addrs { src: src.parse().unwrap(), dst: dst.parse().unwrap() })
}

fn error(text: &[u8]) -> String {
    parse(text).unwrap_err().to_string()
}

/// Every beginning of `header` asks for more; then it is complete, whatever follows.
fn check_whole(header: &[u8], expected: Option<Addrs>) -> Header {
    for cut in 0..header.len() {
        assert_eq!(parse(&header[..cut]), Ok(None), "{}", header[..cut].escape_ascii());
    }
    let mut sent = header.to_vec();
    sent.extend_from_slice(b"GET / HTTP/1.1\r\n");
    let (parsed, len) = parse(&sent).unwrap().unwrap();
    assert_eq!((parsed.addrs, len), (expected, header.len()), "{}", header.escape_ascii());
    parsed
}

#[test]
fn version_1() {
    let ip = ["ffff"; 8].join(":");
    let longest = format!("PROXY TCP6 {ip} {ip} 65535 65535\r\n");
    assert_eq!(longest.len(), 104);
    let all_ones = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    let cases = [
        ("PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n", addrs("192.0.2.1:56324", "198.51.100.2:443")),
        ("PROXY TCP6 2001:db8::1 ::1 0 65535\r\n", addrs("[2001:db8::1]:0", "[::1]:65535")),
        ("PROXY UNKNOWN\r\n", None),
        ("PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None),
        (&longest, addrs(all_ones, all_ones)),
    ];
    for (header, expected) in cases {
        check_whole(header.as_bytes(), expected);
    }
}

#[test]
fn broken_version_1() {
    let cases = [
        "GET / HTTP/1.1\r\n",
        "PROXY\r\n",
        "PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        "PROXY TCP4 192.0.2.1  192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 +2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 \r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\rx",
        "PROXY UNKNOWN\nGET",
        "PROXY UNKNOWN\nGET / HTTP/1.1\r\nHost: a\r\n",
        "PROXY UNKNOWN\rGET / HTTP/1.1\r\n",
        "PROXY TCP4 192.0.2.\u{e9} 192.0.2.2 1 2\r\n",
    ];
    for header in cases {
        assert!(matches!(parse(header.as_bytes()), Err(HeaderError::Broken(_))), "{header}");
    }
    assert_eq!(error(b"GET / HTTP/1.1\r\nHost: a\r\n"), "broken header: \"GET / HTTP/1.1\"");
    assert_eq!(error(b"\x16\x03\"\r\n"), "broken header: \"\\x16\\x03\\\"\"");

    // A line that does not end within its limit is refused when the limit is reached, not before.
    let endless = format!("PROXY UNKNOWN {}", "f".repeat(200));
    assert_eq!(parse(&endless.as_bytes()[..106]), Ok(None));
    assert!(parse(&endless.as_bytes()[..107]).is_err());
    assert!(parse(endless.as_bytes()).is_err());
}

fn v2(version_command: u8, family_transport: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.extend([version_command, family_transport]);
    header.extend((rest.len() as u16).to_be_bytes());
    header.extend(rest);
    header
}

const INET: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0xdc, 0x04, 0x01, 0xbb];

#[test]
fn version_2() {
    let mut inet6 = [0; 36];
    (inet6[0], inet6[1], inet6[15], inet6[31], inet6[33], inet6[35]) = (0x20, 0x01, 1, 2, 3, 4);
    let cases = [
        (v2(0x21, 0x11, &INET), addrs("192.0.2.1:56324", "198.51.100.2:443")),
        (v2(0x21, 0x21, &inet6), addrs("[2001::1]:3", "[::2]:4")),
        // LOCAL; a datagram; no family; a Unix socket; a command that is not defined.
        (v2(0x20, 0x00, b""), None),
        (v2(0x20, 0x11, &INET), None),
        (v2(0x21, 0x12, &INET), None),
        (v2(0x21, 0x01, b"abc"), None),
        (v2(0x21, 0x31, &[0; 216]), None),
        (v2(0x2f, 0x11, &INET), None),
    ];
    for (header, expected) in cases {
        check_whole(&header, expected);
    }
}

#[test]
fn broken_version_2() {
    assert_eq!(error(&v2(0x11, 0x11, &INET)), "unknown PROXY protocol version: 1");
    assert_eq!(error(&v2(0x21, 0x11, &INET[..11])), "header is too short");
    assert_eq!(error(&v2(0x21, 0x21, &INET)), "header is too short");
    // Refused by its announced length, before the bytes are there.
    let longest = v2(0x20, 0, &[0; MAX_HEADER - V2_FIXED]);
    assert_eq!(parse(&longest).unwrap().unwrap().1, MAX_HEADER);
    assert_eq!(error(&v2(0x20, 0, &[0; MAX_HEADER - V2_FIXED + 1])[..16]), "header is too large");
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut tlv = vec![kind];
    tlv.extend((value.len() as u16).to_be_bytes());
    tlv.extend(value);
    tlv
}

fn with_tlvs(tlvs: &[Vec<u8>]) -> Header {
    let header = v2(0x21, 0x11, &[&INET[..], &tlvs.concat()].concat());
    check_whole(&header, addrs("192.0.2.1:56324", "198.51.100.2:443"))
}

#[test]
fn values() {
    let ssl = [vec![1, 0, 0, 1, 2], tlv(0x21, b"TLSv1.3"), tlv(0x22, b"client")].concat();
    let header =
        with_tlvs(&[tlv(0x02, b"example.com"), tlv(0x05, b""), tlv(0x20, &ssl), tlv(0x02, b"second")]);
    let cases: [(&str, Option<&[u8]>); 8] = [
        ("authority", Some(b"example.com")),
        ("0x02", Some(b"example.com")),
        ("unique_id", Some(b"")),
        ("alpn", None),
        ("ssl_verify", Some(b"258")),
        ("ssl_version", Some(b"TLSv1.3")),
        ("ssl_0x22", Some(b"client")),
        ("ssl_cipher", None),
    ];
    for (name, expected) in cases {
        let value = header.tlv(Tlv::from_name(name).unwrap()).unwrap();
        assert_eq!(value.as_deref(), expected, "{name}");
    }
    for unknown in ["", "ssl_", "sslx", "verify", "ssl_authority", "0x", "0x100", "0x+1", "02"] {
        assert_eq!(Tlv::from_name(unknown), None, "{unknown}");
    }
}

#[test]
fn cut_values() {
    let header = with_tlvs(&[tlv(0x02, b"whole"), vec![0x01, 0, 9, b'c', b'u', b't']]);
    assert_eq!(header.tlv(Tlv::Type(0x02)).unwrap().as_deref(), Some(&b"whole"[..]));
    assert_eq!(header.tlv(Tlv::Type(0x01)), Err(BrokenTlv));
    assert_eq!(with_tlvs(&[tlv(0x20, &[1, 0, 0])]).tlv(Tlv::SslVerify), Err(BrokenTlv));
    assert_eq!(with_tlvs(&[]).tlv(Tlv::SslVerify), Ok(None));
}

#[test]
fn header_round_trip() {
    let addr = |text: &str| Addr::Inet(text.parse().unwrap());
    let cases = [
        (addr("192.0.2.1:1"), addr("192.0.2.2:80"), "PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n"),
        (addr("[2001:db8::1]:1"), addr("[::1]:80"), "PROXY TCP6 2001:db8::1 ::1 1 80\r\n"),
        (addr("192.0.2.1:1"), addr("[::1]:80"), "PROXY TCP6 ::ffff:192.0.2.1 ::1 1 80\r\n"),
        (Addr::Unix(None), addr("[::1]:80"), "PROXY UNKNOWN\r\n"),
        (addr("192.0.2.1:1"), Addr::Unix(None), "PROXY UNKNOWN\r\n"),
    ];
    for (src, dst, expected) in cases {
        let mut out = Vec::new();
        write_v1(&mut out, &src, &dst);
        assert_eq!(out, expected.as_bytes());
        assert_eq!(parse(&out).unwrap().unwrap().1, out.len());
    }
}

#[test]
fn header_is_parsed_alike_in_any_pieces() {
    // Marsaglia's xorshift64, the same sequence every time.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound.max(1) as u64) as usize
    };
    let seeds = [
        b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\nGET /".to_vec(),
        b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n".to_vec(),
        b"PROXY UNKNOWN ffff:f...f:ffff 1 2\r\nx".to_vec(),
        v2(0x21, 0x11, &[&INET[..], &tlv(0x02, b"example.com"), &tlv(0x20, &[1, 0, 0, 1, 2])].concat()),
        v2(0x20, 0, &[]),
        v2(0x21, 0x21, &[7; 36]),
    ];
    for _ in 0..5_000 {
        let mut sent = seeds[below(seeds.len())].clone();
        for _ in 0..below(4) {
            let at = below(sent.len());
            match below(4) {
                0 => sent[at] = [b' ', b'\r', b'\n', b'.', b':', 0, 0xff, b'9'][below(8)],
                1 => sent[at] ^= 1 << below(8),
                2 => drop(sent.remove(at)),
                _ => sent.insert(at, [b' ', b'\r', b'\n', b'.', b':', 0, 0xff, b'9'][below(8)]),
            }
        }
        let whole = parse(&sent);
        let mut first_result = None;
        for end in 0..=sent.len() {
            let result = parse(&sent[..end]);
            match &first_result {
                // A result does not change with the bytes that follow; only the text of an error may show more of the
                // line.
                Some(Ok(header)) => assert_eq!(result.as_ref(), Ok(header), "{}", sent.escape_ascii()),
                Some(Err(_)) => assert!(result.is_err(), "{}", sent.escape_ascii()),
                None => first_result = (result != Ok(None)).then_some(result),
            }
        }
        assert_eq!(first_result.is_none(), whole == Ok(None), "{}", sent.escape_ascii());
        if let Ok(Some((header, len))) = &whole {
            assert!(*len <= sent.len());
            for name in ["authority", "ssl_verify", "ssl_cn", "0x02"] {
                // Invalid values are reported as errors, and must not panic.
                let _ = header.tlv(Tlv::from_name(name).unwrap());
            }
        }
    }
}

#[test]
fn version_2_is_written_as_it_is_read() {
    let inet = |text: &str| Addr::Inet(text.parse().unwrap());
    let cases = [
        (inet("192.0.2.1:5"), inet("192.0.2.2:6"), SocketKind::Stream, [0x21, 0x11]),
        (inet("192.0.2.1:5"), inet("192.0.2.2:6"), SocketKind::Datagram, [0x21, 0x12]),
        (inet("[2001:db8::1]:5"), inet("192.0.2.2:6"), SocketKind::Stream, [0x21, 0x21]),
        (inet("[::ffff:192.0.2.1]:5"), inet("[::ffff:192.0.2.2]:6"), SocketKind::Stream, [0x21, 0x11]),
        (Addr::Unix(None), inet("192.0.2.2:6"), SocketKind::Stream, [0x20, 0]),
    ];
    for (src, dst, kind, expected) in cases {
        let mut out = Vec::new();
        write_v2(&mut out, kind, &src, &dst, &[(0xea, b"value".to_vec())]);
        assert_eq!(out[12..14], expected, "{src}");
        let (header, len) = parse(&out).unwrap().unwrap();
        assert_eq!(len, out.len());
        if kind == SocketKind::Stream && expected != [0x20, 0] {
            let addrs = header.addrs.unwrap();
            assert_eq!(addrs.src.ip().to_canonical(), src.inet().unwrap().ip().to_canonical());
            assert_eq!((addrs.src.port(), addrs.dst.port()), (5, 6));
            assert_eq!(header.tlv(Tlv::Type(0xea)).unwrap().as_deref(), Some(&b"value"[..]));
        }
        // The checksum is that of the header with zeros in its place.
        let sum = header_sum(&out);
        assert_eq!(sum, crc32c(&[&out[..out.len() - 4], &[0; 4]].concat()));
    }
}

fn header_sum(header: &[u8]) -> u32 {
    u32::from_be_bytes(*header.last_chunk().unwrap())
}
