//! Parameters of `Content-Disposition` in the head of a part.

use super::{Oddities, Part};
use crate::variable::Variable;

fn skip_blanks(text: &[u8]) -> &[u8] {
    let count = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    text.get(count..).unwrap_or_default()
}

/// Reads the parameters of a disposition. The error is the number that ModSecurity gives to the fault.
pub(super) fn parameters(disposition: &[u8], part: &mut Part, oddities: &mut Oddities) -> Result<(), u8> {
    let rest = skip_blanks(disposition.strip_prefix(b"form-data").ok_or(1)?);
    if rest.is_empty() {
        return Ok(());
    }
    let mut rest = rest.strip_prefix(b";").ok_or(2)?;
    let mut extended_name = None;
    while !rest.is_empty() {
        let text = skip_blanks(rest);
        if text.is_empty() {
            return Err(3);
        }
        let end = text.iter().position(|byte| matches!(byte, b'=' | b'\t' | b' ')).ok_or(4)?;
        let (name, behind) = text.split_at(end);
        let behind = skip_blanks(behind);
        if behind.is_empty() {
            return Err(5);
        }
        let text = skip_blanks(behind.strip_prefix(b"=").ok_or(13)?);
        if text.is_empty() {
            return Err(6);
        }
        let (value, behind) = match name {
            b"filename*" => extended_value(text)?,
            _ => parameter(text, oddities)?,
        };
        let (slot, duplicate) = match name {
            b"name" => (&mut part.name, 14),
            b"filename" => (&mut part.file, 15),
            b"filename*" => (&mut extended_name, 20),
            _ => return Err(11),
        };
        if slot.replace(value).is_some() {
            return Err(duplicate);
        }
        rest = skip_blanks(behind);
        if !rest.is_empty() {
            rest = rest.strip_prefix(b";").ok_or_else(|| {
                oddities.add(Variable::MultipartInvalidQuoting);
                12
            })?;
        }
    }
    // Programs differ in which of both names they take.
    if extended_name.is_some() && part.file.is_none() { Err(21) } else { Ok(()) }
}

/// Value of a parameter, and what is behind it.
fn parameter<'a>(text: &'a [u8], oddities: &mut Oddities) -> Result<(Vec<u8>, &'a [u8]), u8> {
    let Some(quote @ (b'"' | b'\'')) = text.first() else {
        let is_token = |byte: &&u8| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(byte);
        let (value, rest) = text.split_at(text.iter().take_while(is_token).count());
        if value.contains(&b'\'') {
            oddities.add(Variable::MultipartInvalidQuoting);
        }
        return Ok((value.to_vec(), rest));
    };
    if *quote == b'\'' {
        oddities.add(Variable::MultipartInvalidQuoting);
    }
    let mut value = Vec::new();
    let mut bytes = text.iter().enumerate().skip(1).peekable();
    while let Some((at, byte)) = bytes.next() {
        if *byte == b'\\' {
            let (_, next) = bytes.peek().ok_or(8)?;
            let is_escaped = **next == *quote || **next == b'\\';
            match is_escaped.then(|| bytes.next()).flatten() {
                Some((_, next)) => value.push(*next),
                // Some browsers do not escape backslashes.
                None => value.push(b'\\'),
            }
        } else if byte == quote {
            return Ok((value, text.get(at + 1..).unwrap_or_default()));
        } else {
            value.push(*byte);
        }
    }
    oddities.add(Variable::MultipartInvalidQuoting);
    Err(7)
}

/// Value of `filename*`: a character set, a language, and a name with percent-encoding (RFC 8187).
fn extended_value(text: &[u8]) -> Result<(Vec<u8>, &[u8]), u8> {
    let set = text
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || b"!#$%&+-^_`{}~".contains(byte))
        .count();
    let rest = text.get(set..).unwrap_or_default().strip_prefix(b"'").filter(|_| set > 0).ok_or(16)?;
    let quote = memchr::memchr(b'\'', rest).ok_or(17)?;
    let name = rest.get(quote + 1..).unwrap_or_default();
    let end = memchr::memchr(b';', name).unwrap_or(name.len());
    let (name, behind) = name.split_at(end);
    let mut at = 0;
    while let Some(byte) = name.get(at) {
        at += match byte {
            b'%' => match name.get(at + 1..at + 3) {
                Some([high, low]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => 3,
                _ => return Err(18),
            },
            byte if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(byte) => 1,
            _ => return Err(19),
        };
    }
    Ok((name.to_vec(), behind))
}
