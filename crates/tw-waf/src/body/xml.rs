//! XML: its text and the values of its attributes. Nothing is expanded but the five entities and numbers.

use quick_xml::Reader;
use quick_xml::events::Event;

/// Parses `text`: calls `attribute` with each value, and returns all text between tags. The error is a reason.
pub(crate) fn parse(text: &[u8], mut attribute: impl FnMut(&[u8])) -> Result<Vec<u8>, String> {
    let mut reader = Reader::from_reader(text);
    let mut content = Vec::new();
    let mut depth = 0usize;
    let mut has_root = false;
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(tag) => {
                depth += 1;
                has_root = true;
                attributes(&tag, &mut attribute)?;
            }
            Event::Empty(tag) => {
                has_root = true;
                attributes(&tag, &mut attribute)?;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Text(piece) => content.extend_from_slice(&piece),
            Event::CData(piece) => content.extend_from_slice(&piece),
            Event::GeneralRef(name) => push_reference(&name, &mut content),
            Event::Eof => break,
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
    if depth > 0 {
        return Err("an element has no end".to_owned());
    }
    if !has_root {
        return Err("there is no element".to_owned());
    }
    Ok(content)
}

fn attributes(tag: &quick_xml::events::BytesStart<'_>, take: &mut impl FnMut(&[u8])) -> Result<(), String> {
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let mut value = Vec::new();
        let mut rest: &[u8] = &attribute.value;
        while let Some(at) = memchr::memchr(b'&', rest) {
            value.extend_from_slice(rest.get(..at).unwrap_or_default());
            let behind = rest.get(at + 1..).unwrap_or_default();
            match memchr::memchr(b';', behind) {
                Some(end) => {
                    push_reference(behind.get(..end).unwrap_or_default(), &mut value);
                    rest = behind.get(end + 1..).unwrap_or_default();
                }
                None => {
                    value.push(b'&');
                    rest = behind;
                }
            }
        }
        value.extend_from_slice(rest);
        take(&value);
    }
    Ok(())
}

/// Appends the character of a reference, or the reference itself if it is unknown.
fn push_reference(name: &[u8], out: &mut Vec<u8>) {
    let number = name.strip_prefix(b"#").and_then(|digits| {
        let digits = std::str::from_utf8(digits).ok()?;
        let code = match digits.strip_prefix('x') {
            Some(hex) => u32::from_str_radix(hex, 16).ok()?,
            None => digits.parse().ok()?,
        };
        char::from_u32(code)
    });
    let character = number.or(match name {
        b"lt" => Some('<'),
        b"gt" => Some('>'),
        b"amp" => Some('&'),
        b"quot" => Some('"'),
        b"apos" => Some('\''),
        _ => None,
    });
    match character {
        Some(character) => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            out.push(b'&');
            out.extend_from_slice(name);
            out.push(b';');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_found() {
        let mut attributes = Vec::new();
        let text =
            parse(b"<?xml version='1.0'?><a b='1&lt;'>x<c d=\"2\"/>&amp;y<![CDATA[<z>]]></a>", |value| {
                attributes.push(value.to_vec());
            });
        assert_eq!(text.unwrap(), b"x&y<z>");
        assert_eq!(attributes, [b"1<".to_vec(), b"2".to_vec()]);
    }

    #[test]
    fn malformed_bodies_are_errors() {
        for text in ["<a>", "a", "<a></b>", "<a b=1></a>", "<"] {
            assert!(parse(text.as_bytes(), |_| {}).is_err(), "{text}");
        }
    }
}
