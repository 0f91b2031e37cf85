//! Values of header fields as variables write them.

use tw_request::vars::Value;

/// All values of the fields whose name is `name`, which is in lower case with underscores for dashes.
pub(super) fn put_fields<'a>(
    out: &mut Vec<u8>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    name: &[u8],
) -> Value {
    put_joined(out, fields.filter(|(field, _)| is_named(field, name)).map(|(_, value)| value), b", ")
}

/// All values with a separator between them.
pub(super) fn put_joined<'a>(
    out: &mut Vec<u8>,
    mut values: impl Iterator<Item = &'a [u8]>,
    separator: &[u8],
) -> Value {
    let Some(first) = values.next() else { return Value::Missing };
    out.extend_from_slice(first);
    for value in values {
        out.extend_from_slice(separator);
        out.extend_from_slice(value);
    }
    Value::Found
}

/// Returns true if a field has this name as variables write it.
fn is_named(field: &[u8], name: &[u8]) -> bool {
    let folded = |byte: &u8| if *byte == b'-' { b'_' } else { byte.to_ascii_lowercase() };
    field.len() == name.len() && field.iter().zip(name).all(|(field, name)| folded(field) == *name)
}
