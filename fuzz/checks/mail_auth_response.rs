//! Invariants for any response of an auth server of mail: no panic, and the end of its head does not depend on how the bytes arrive.

use tw_mail::auth_http::response::{head_len, parse};

pub(crate) fn check(data: &[u8]) {
    let whole = head_len(data, &mut 0);
    let mut scanned = 0;
    let in_pieces =
        (0..=data.len()).find_map(|end| head_len(data.get(..end).unwrap_or_default(), &mut scanned));
    assert_eq!(in_pieces, whole);
    let head = whole.and_then(|len| data.get(..len)).unwrap_or(data);
    if let Ok(response) = parse(head) {
        assert!(!response.server.contains(&b'\n') && !response.port.contains(&b'\n'));
    }
}
