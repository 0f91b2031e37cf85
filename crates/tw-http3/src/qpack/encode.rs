//! Fields → sections for the peer (RFC 9204 section 4.5), without the dynamic table.
//!
//! A field is the index of an entry of the static table, or a literal, with the index of its name if the table has it. Texts are
//! in the Huffman code where that is shorter.

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
    let Some(index) = statics::find(name) else {
        text::encode(out, LITERAL, 3, name, |byte| byte.to_ascii_lowercase());
        return text::encode(out, 0, 7, value, |byte| byte);
    };
    if statics::is_secret(index) {
        integer::encode(out, NAME_INDEXED | NEVER_INDEXED, 4, index);
    } else if let Some(index) = statics::find_value(index, value) {
        return integer::encode(out, INDEXED, 6, index);
    } else {
        integer::encode(out, NAME_INDEXED, 4, index);
    }
    text::encode(out, 0, 7, value, |byte| byte);
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
