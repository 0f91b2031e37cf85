//! Boundary of a form, from its media type.

use super::Oddities;
use crate::variable::Variable;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of the media type of a form that the firewall reads.
    const MEDIA_TYPE_MAX: usize = 1024, bytes, "the body is malformed";
}

/// Media type of forms with parts.
const FORM_DATA: &[u8] = b"multipart/form-data";

/// Boundary of a media type. The error is a reason.
///
/// Boundaries that another program could read in another way are refused, as by ModSecurity.
pub(crate) fn boundary(media_type: &[u8], oddities: &mut Oddities) -> Result<Vec<u8>, String> {
    let invalid = |what: &str| Err(format!("Multipart: Invalid boundary in C-T ({what})."));
    if media_type.len() > MEDIA_TYPE_MAX {
        return invalid("length");
    }
    let Some((kind, parameters)) = media_type.split_at_checked(FORM_DATA.len()) else {
        return Err("Multipart: Invalid MIME type.".to_owned());
    };
    if !kind.eq_ignore_ascii_case(FORM_DATA) {
        return Err("Multipart: Invalid MIME type.".to_owned());
    }
    let count = |text: &[u8]| memchr::memmem::find_iter(&text.to_ascii_lowercase(), b"boundary").count();
    // The word may be part of the value, which is refused below.
    let names = parameters.split(|byte| matches!(byte, b';' | b','));
    if names.filter(|name| name.trim_ascii().to_ascii_lowercase().starts_with(b"boundary")).count() > 1 {
        return Err("Multipart: Multiple boundary parameters in C-T.".to_owned());
    }
    let Some(at) = memchr::memmem::find(parameters, b"boundary") else {
        return match count(parameters) {
            0 => Err("Multipart: Boundary not found in C-T.".to_owned()),
            _ => invalid("case sensitivity"),
        };
    };
    let (before, rest) = parameters.split_at(at);
    let between: Vec<u8> = before.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    match &*between {
        b";" => {}
        b"" => oddities.add(Variable::MultipartMissingSemicolon),
        _ => return invalid("malformed"),
    }
    let rest = rest.get(b"boundary".len()..).unwrap_or_default();
    let Some(equals) = memchr::memchr(b'=', rest) else { return invalid("malformed") };
    let (space, value) = rest.split_at(equals);
    let value = value.get(1..).unwrap_or_default();
    if !space.iter().all(u8::is_ascii_whitespace) {
        return invalid("parameter name");
    }
    if !space.is_empty() || value.first().is_some_and(u8::is_ascii_whitespace) {
        oddities.add(Variable::MultipartBoundaryWhitespace);
    }
    let is_quoted = value.len() >= 2 && value.starts_with(b"\"") && value.ends_with(b"\"");
    let mut boundary = value;
    if is_quoted {
        oddities.add(Variable::MultipartBoundaryQuoted);
        boundary = value.get(1..value.len() - 1).unwrap_or_default();
    } else if value.starts_with(b"\"") || value.ends_with(b"\"") {
        return invalid("quote");
    }
    // Some programs send another parameter behind the boundary.
    if !has_valid_bytes(boundary) {
        boundary = boundary.split(|byte| *byte == b';').next().unwrap_or_default();
    }
    if memchr::memmem::find(&boundary.to_ascii_lowercase(), b"boundary=").is_some() {
        return invalid("content");
    }
    if !has_valid_bytes(boundary) {
        return invalid("characters");
    }
    if boundary.is_empty() {
        return invalid("empty");
    }
    Ok(boundary.to_vec())
}

/// Returns true if all bytes may be in a boundary (RFC 2046, section 5.1.1).
fn has_valid_bytes(boundary: &[u8]) -> bool {
    !boundary.ends_with(b" ")
        && boundary.iter().all(|byte| byte.is_ascii_alphanumeric() || b" '()+_,-./:=?".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundary_is_read_from_the_media_type() {
        type Expected<'a> = Result<&'a [u8], &'a str>;
        let cases: &[(&[u8], Expected<'_>, usize)] = &[
            (b"multipart/form-data; boundary=abc", Ok(b"abc"), 0),
            (b"multipart/form-data boundary = \"a b\"", Err("quote"), 2),
            (b"multipart/form-data; boundary=\"a b\"", Ok(b"a b"), 1),
            (b"multipart/form-data; boundary=abc; charset=utf-8", Ok(b"abc"), 0),
            (b"multipart/form-data", Err("not found"), 0),
            (b"multipart/form-data; Boundary=a", Err("case"), 0),
            (b"multipart/form-data; boundary=a; boundary=b", Err("Multiple"), 0),
            (b"multipart/form-data; x; boundary=a", Err("malformed"), 0),
            (b"multipart/form-data; boundary=a\"", Err("quote"), 0),
            (b"multipart/form-data; boundary=a%", Err("characters"), 0),
            (b"multipart/form-data; boundary=", Err("empty"), 0),
        ];
        for (media_type, expected, count) in cases {
            let mut oddities = Oddities::default();
            let result = boundary(media_type, &mut oddities);
            let shown = String::from_utf8_lossy(media_type);
            match (result, expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value, *expected, "{shown}"),
                (Err(text), Err(expected)) => assert!(text.contains(expected), "{shown}: {text}"),
                (result, _) => panic!("{shown}: {result:?}"),
            }
            assert_eq!(oddities.flags.len(), *count, "{shown}");
        }
    }
}
