//! Fields → blocks for the peer (RFC 7541, section 6), without the dynamic table.
//!
//! A field is the index of an entry of the static table, or a literal that is not indexed, with the index of its name if
//! the table has it. Texts are in the Huffman code where that is shorter.

use tw_fields::{FieldCoding, integer, status_digits, text};

use super::statics;

/// Section 6.1: a field of a table.
const INDEXED: u8 = 0x80;
/// Section 6.2.2: a field that is not added to the table of this connection.
const NOT_INDEXED: u8 = 0x00;
/// Section 6.2.3: a field that no one on the way may add to a table.
const NEVER_INDEXED: u8 = 0x10;
/// Section 6.3: a new size of the dynamic table.
const SIZE_UPDATE: u8 = 0x20;

/// Encoding of sections for `tw-fields`.
pub(crate) static CODING: FieldCoding = FieldCoding { prefix: &[], field, status };

/// Writes a field. The name may have capital letters: they are written small, as HTTP/2 wants.
#[inline]
pub(crate) fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let Some(index) = statics::find(name) else {
        out.push(NOT_INDEXED);
        text::encode(out, 0, 7, name, |byte| byte.to_ascii_lowercase());
        return text::encode(out, 0, 7, value, |byte| byte);
    };

    if statics::is_secret(index) {
        integer::encode(out, NEVER_INDEXED, 4, index);
    } else if let Some(index) = statics::find_value(index, value) {
        return integer::encode(out, INDEXED, 7, index);
    } else {
        integer::encode(out, NOT_INDEXED, 4, index);
    }
    text::encode(out, 0, 7, value, |byte| byte);
}

/// Writes `:status`, which has three digits: 100 to 999.
#[inline]
pub(crate) fn status(out: &mut Vec<u8>, status: u16) {
    let digits = status_digits(status);
    match statics::find_value(statics::STATUS, &digits) {
        Some(index) => integer::encode(out, INDEXED, 7, index),
        None => {
            integer::encode(out, NOT_INDEXED, 4, statics::STATUS);
            text::encode(out, 0, 7, &digits, |byte| byte);
        }
    }
}

/// Writes that the dynamic table has this size from here on; stands before the first field of a block.
#[inline]
pub(crate) fn size_update(out: &mut Vec<u8>, size: usize) {
    integer::encode(out, SIZE_UPDATE, 5, size);
}
