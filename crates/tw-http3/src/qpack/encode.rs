//! Fields → sections for the peer (RFC 9204 section 4.5), without the dynamic table.
//!
//! A field is the index of an entry of the static table, or a literal, with the index of its name if the table has it. Texts are
//! in the Huffman code where that is shorter.

use std::cell::RefCell;

use tw_fields::{FieldCoding, integer, status_digits, text};

use super::statics;

/// Section 4.5.2: a field of the static table.
const INDEXED: u8 = 0xc0;
/// Section 4.5.4: a name of the static table.
const NAME_INDEXED: u8 = 0x50;
/// Section 4.5.4: a field that no one on the way may add to a table.
const NEVER_INDEXED: u8 = 0x20;
/// Section 4.5.6: a name of its own.
const LITERAL: u8 = 0x20;

/// Encoding of sections for `tw-fields`. They need no insertion, and their base is 0 (section 4.5.1).
pub static FIELD_CODING: FieldCoding = FieldCoding { prefix: &[0, 0], field, status };

fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    LATEST.with_borrow_mut(|latest| {
        let latest = latest.get_mut(place(name));
        if let Some(latest) = latest.as_ref().filter(|latest| latest.is(name, value)) {
            return out.extend_from_slice(&latest.octets);
        }
        let start = out.len();
        let secrecy = encode(out, name, value);
        if let (Some(latest), Secrecy::Public, ..=LATEST_MAX) = (latest, secrecy, value.len()) {
            latest.set(name, value, out.get(start..).unwrap_or_default());
        }
    });
}

/// Longest value whose encoding is stored, in bytes.
const LATEST_MAX: usize = 64;
/// Number of fields whose encodings are stored.
const PLACES: usize = 64;

/// The latest field of its place, and its encoding.
#[derive(Default)]
struct Latest {
    name: Vec<u8>,
    value: Vec<u8>,
    octets: Vec<u8>,
}

impl Latest {
    fn is(&self, name: &[u8], value: &[u8]) -> bool {
        self.name == name && self.value == value
    }

    fn set(&mut self, name: &[u8], value: &[u8], octets: &[u8]) {
        for (stored, new) in [(&mut self.name, name), (&mut self.value, value), (&mut self.octets, octets)] {
            stored.clear();
            stored.extend_from_slice(new);
        }
    }
}

thread_local! {
    /// Latest fields with names of the static table. Most fields of a response are those of the response before.
    static LATEST: RefCell<[Latest; PLACES]> = RefCell::new(std::array::from_fn(|_| Latest::default()));
}

/// Place of a name among the latest fields. The usual ones of responses have different places.
fn place(name: &[u8]) -> usize {
    let end = name.last().copied().unwrap_or_default();
    (name.len() * 3 + usize::from(end)) % PLACES
}

/// Secrecy of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Secrecy {
    /// The encoding may be stored.
    Public,
    /// The value may be a secret, or of one person or request.
    Private,
}

/// Appends a field.
fn encode(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Secrecy {
    let Some(index) = statics::find(name) else {
        text::encode(out, LITERAL, 3, name, |byte| byte.to_ascii_lowercase());
        text::encode(out, 0, 7, value, |byte| byte);
        return Secrecy::Private;
    };
    let is_secret = statics::is_secret(index);
    if is_secret {
        integer::encode(out, NAME_INDEXED | NEVER_INDEXED, 4, index);
    } else if let Some(index) = statics::find_value(index, value) {
        integer::encode(out, INDEXED, 6, index);
        return Secrecy::Public;
    } else {
        integer::encode(out, NAME_INDEXED, 4, index);
    }
    text::encode(out, 0, 7, value, |byte| byte);
    if is_secret || statics::is_personal(index) { Secrecy::Private } else { Secrecy::Public }
}

fn status(out: &mut Vec<u8>, status: u16) {
    let digits = status_digits(status);
    match statics::find_value(statics::STATUS, &digits) {
        Some(index) => integer::encode(out, INDEXED, 6, index),
        None => {
            integer::encode(out, NAME_INDEXED, 4, statics::STATUS);
            text::encode(out, 0, 7, &digits, |byte| byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_fields_are_encoded_as_new_ones() {
        // The first two names have the same place.
        let fields: [(&[u8], &[u8]); 9] = [
            (b"Server", b"tailwater"),
            (b"Strict-Transport-Security", b"max-age=1"),
            (b"Server", b"tailwater"),
            (b"server", b"tailwater"),
            (b"ETag", b"\"1\""),
            (b"ETag", b"\"2\""),
            (b"ETag", b"\"2\""),
            (b"Set-Cookie", b"a=b"),
            (b"X-Own", b"1"),
        ];
        for (name, value) in fields.iter().chain(&fields) {
            let mut one = Vec::new();
            let mut other = Vec::new();
            field(&mut one, name, value);
            let secrecy = encode(&mut other, name, value);
            assert_eq!(one, other, "{}", name.escape_ascii());
            let is_stored = LATEST.with_borrow(|latest| latest[place(name)].is(name, value));
            assert_eq!(is_stored, secrecy == Secrecy::Public);
        }
    }
}
