//! Strict reader: RFC 9112 to the letter, and anything that it leaves open is an error.

use super::{End, ObservedRequest, Reading};

/// All requests of one connection.
pub(super) fn read(mut bytes: &[u8]) -> Reading {
    let mut reading = Reading::default();
    while !bytes.is_empty() {
        match request(bytes) {
            Ok((observed_request, rest)) => {
                reading.requests.push(observed_request);
                bytes = rest;
            }
            Err(end) => {
                reading.end = end;
                break;
            }
        }
    }
    reading
}

fn request(bytes: &[u8]) -> Result<(ObservedRequest, &[u8]), End> {
    let (start, mut rest) = line(bytes)?;
    let [method, target, "HTTP/1.0" | "HTTP/1.1"] = start.split(' ').collect::<Vec<_>>()[..] else {
        return wrong(start);
    };
    if !is_token(method) || !target.starts_with('/') || target.bytes().any(|b| b <= b' ' || b == 0x7f) {
        return wrong(start);
    }
    let mut hosts = Vec::new();
    let mut length = None;
    let mut coding = None;
    loop {
        let (field, next) = line(rest)?;
        rest = next;
        if field.is_empty() {
            break;
        }
        let Some((name, value)) = field.split_once(':').filter(|(name, _)| is_token(name)) else {
            return wrong(field);
        };
        let value = value.trim_matches([' ', '\t']);
        let again = match &*name.to_ascii_lowercase() {
            "host" => {
                hosts.push(value.to_owned());
                false
            }
            "content-length" => length.replace(value).is_some(),
            "transfer-encoding" => coding.replace(value).is_some(),
            _ => false,
        };
        if again || value.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
            return wrong(field);
        }
    }
    let [host] = &hosts[..] else { return wrong("Host") };
    let (body, rest) = match (length, coding) {
        (None, None) => (Vec::new(), rest),
        (Some(length), None) => {
            let is_number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
            let Some(length) = length.parse::<usize>().ok().filter(|_| is_number) else {
                return wrong(length);
            };
            let (body, rest) = rest.split_at_checked(length).ok_or(End::Short)?;
            (body.to_vec(), rest)
        }
        (None, Some("chunked")) => chunks(rest)?,
        (_, Some(coding)) => return wrong(coding),
    };
    let observed_request =
        ObservedRequest { method: method.to_owned(), target: target.to_owned(), host: host.clone(), body };
    Ok((observed_request, rest))
}

/// A chunked body without extensions and trailers.
fn chunks(mut bytes: &[u8]) -> Result<(Vec<u8>, &[u8]), End> {
    let mut body = Vec::new();
    loop {
        let (size, rest) = line(bytes)?;
        let is_hex = (1..=8).contains(&size.len()) && size.bytes().all(|b| b.is_ascii_hexdigit());
        let Some(size) = usize::from_str_radix(size, 16).ok().filter(|_| is_hex) else { return wrong(size) };
        let (data, rest) = rest.split_at_checked(size).ok_or(End::Short)?;
        let (end, rest) = line(rest)?;
        if !end.is_empty() {
            return wrong(end);
        }
        if size == 0 {
            return Ok((body, rest));
        }
        body.extend_from_slice(data);
        bytes = rest;
    }
}

/// A line and what follows it; only CR LF ends it.
fn line(bytes: &[u8]) -> Result<(&str, &[u8]), End> {
    let Some(at) = bytes.windows(2).position(|two| two == b"\r\n") else { return Err(End::Short) };
    match str::from_utf8(&bytes[..at]) {
        Ok(line) if !line.contains(['\r', '\n']) => Ok((line, &bytes[at + 2..])),
        _ => Err(End::Wrong(bytes[..at].escape_ascii().to_string())),
    }
}

fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn wrong<T>(what: &str) -> Result<T, End> {
    Err(End::Wrong(what.escape_default().to_string()))
}
