//! Invariants for any first bytes of a proxy: no panic, more bytes never change what was found before, a header never has more bytes than
//! are allowed, and addresses that were read are read again from both versions.

use tw_net::Addr;
use tw_net::listen::SocketKind;
use tw_net::proxy_protocol::{Addrs, Header, MAX_HEADER, Tlv, parse, write_v1, write_v2};

/// Values that variables can name.
const TLVS: [Tlv; 5] = [Tlv::Type(1), Tlv::Type(0x20), Tlv::Ssl(0x21), Tlv::Ssl(0xff), Tlv::SslVerify];

pub(crate) fn check(data: &[u8]) {
    let mut result = Ok(None);
    for end in 0..=data.len().min(MAX_HEADER + 1) {
        let now = parse(data.get(..end).unwrap_or_default());
        match &result {
            Ok(None) => {}
            Ok(Some(_)) => assert_eq!(result, now, "{end}"),
            // The line that is shown may be longer.
            Err(_) => assert!(now.is_err(), "{end}"),
        }
        result = now;
    }
    assert!(
        !(matches!(result, Ok(None)) && data.len() >= MAX_HEADER),
        "more than the largest header is awaited"
    );
    let Ok(Some((header, len))) = result else { return };
    assert!(len <= data.len() && len <= MAX_HEADER);
    for tlv in TLVS {
        if let Ok(Some(value)) = header.tlv(tlv) {
            assert!(value.len() <= len);
        }
    }
    let Some(addrs) = header.addrs else { return };
    let [src, dst] = [addrs.src, addrs.dst].map(Addr::from);
    let mut bytes = Vec::new();
    write_v1(&mut bytes, &src, &dst);
    check_again(&bytes, addrs);
    bytes.clear();
    write_v2(&mut bytes, SocketKind::Stream, &src, &dst, &[(1, b"h2".to_vec())]);
    let again = check_again(&bytes, addrs);
    assert_eq!(again.tlv(Tlv::Type(1)).expect("values that were written").as_deref(), Some(&b"h2"[..]));
}

/// Reads what was written.
fn check_again(bytes: &[u8], addrs: Addrs) -> Header {
    let (again, len) = parse(bytes).expect("a written header").expect("a whole header");
    assert_eq!((again.addrs, len), (Some(addrs), bytes.len()));
    again
}
