//! Choice of the virtual server by the name that a client sends in a TLS handshake (nginx: ngx_stream_find_virtual_server,
//! ngx_stream_validate_host).

use std::borrow::Cow;

use tw_core::regex::Captures;
use tw_core::session::Session;

use crate::session::StreamSession;

/// Makes the server called `name` that of the session. Without one it stays as it is.
pub fn choose_server(s: &StreamSession, name: &[u8]) {
    let (Some(host), Some(group)) = (host(name), s.client.group()) else { return };
    let mut captures = Captures::default();
    // A regular expression that takes too long is no match.
    let Ok(Some((server, regex))) = group.names.find(&host, &mut captures) else { return };
    if let Some(regex) = regex {
        s.store_named(regex, &captures);
        s.bindings().captures.replace(captures);
    }
    s.client.set_server(server);
}

/// A name in lower case, without port and without a dot at its end; `None` if it is no name of a host.
fn host(name: &[u8]) -> Option<Cow<'_, [u8]>> {
    let host = match name {
        [b'[', ..] => {
            let end = name.iter().position(|byte| *byte == b']')? + 1;
            let (host, port) = name.split_at_checked(end)?;
            port_is_valid(port).then_some(host)?
        }
        _ => {
            let end = name.iter().position(|byte| *byte == b':').unwrap_or(name.len());
            let (host, port) = name.split_at_checked(end)?;
            port_is_valid(port).then_some(host)?
        }
    };
    let inner = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(host);
    let is_allowed = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || b"-._~!$&'()*+,;=%".contains(byte)
            || (*byte == b':' && inner.len() < host.len())
    };
    if !inner.iter().all(is_allowed) || host.windows(2).any(|pair| pair == b"..") {
        return None;
    }
    let host = host.strip_suffix(b".").unwrap_or(host);
    if host.is_empty() {
        return None;
    }
    Some(if host.iter().any(u8::is_ascii_uppercase) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    })
}

/// Returns true for nothing, and for `:port`.
fn port_is_valid(port: &[u8]) -> bool {
    match port.strip_prefix(b":") {
        None => port.is_empty(),
        Some(digits) => {
            let number =
                std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            digits.is_empty() || number.is_some_and(|number| number.parse::<u16>().is_ok())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_what_names_a_server() {
        for (name, expected) in [
            ("example.com", Some("example.com")),
            ("Example.COM.", Some("example.com")),
            ("example.com:443", Some("example.com")),
            ("example.com:", Some("example.com")),
            ("example.com:70000", None),
            ("example.com:+1", None),
            ("[::1]", Some("[::1]")),
            ("[::1]:5", Some("[::1]")),
            ("[::1", None),
            ("[::1]x", None),
            ("a..b", None),
            ("a b", None),
            ("a\0", None),
            ("a/b", None),
            (".", None),
            ("", None),
        ] {
            let expected = expected.map(|text| text.as_bytes().to_vec());
            assert_eq!(host(name.as_bytes()).map(Cow::into_owned), expected, "{name}");
        }
    }
}
