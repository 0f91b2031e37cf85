//! `secure_link`: variables that check the signature and expiry of a link (nginx: ngx_http_secure_link_module).
//! Computed variables.

use std::sync::Arc;

use md5::{Digest, Md5};
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, Word, record};
use tw_core::module::Settings;
use tw_http::base64::{self, Alphabet};
use tw_module_support::secret::is_same;
use tw_request::plan::Plan;
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Template, Value, VarDef};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Characters of a hash in base64, with their padding.
const ENCODED_MAX: usize = 24;

/// Links as written.
#[derive(Default)]
pub(crate) struct Raw {
    connection: Setting<Word>,
    md5: Setting<Word>,
    secret: Setting<Box<[u8]>>,
}

/// Links of one location.
pub(crate) struct SecureLink {
    connection: Option<Arc<Template>>,
    md5: Option<Arc<Template>>,
    secret: Option<Arc<[u8]>>,
    slots: [u16; 2],
}

/// A hash.
type Hash = [u8; 16];

impl Settings<Http> for SecureLink {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("secure_link", "expression", ALL, Args::exact(1))
            .since("0.8.50")
            .doc("The hash of a link, and behind a comma the time in seconds until which it holds.")
            .set(|raw, node, _| raw.connection.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("secure_link_md5", "expression", ALL, Args::exact(1))
            .since("0.8.50")
            .doc("The text whose MD5 hash a link must have, with a secret in it.")
            .set(|raw, node, _| raw.md5.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("secure_link_secret", "word", LOCATION, Args::exact(1))
            .doc("The secret of links like /prefix/hash/link, whose hash is that of the link and the secret.")
            .set(|raw, node, _| raw.secret.set_with(node, |node| Ok(node.arg(0)?.bytes.clone()))),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::stored(
            "secure_link",
            "1 if the link is good, 0 if it has expired; with secure_link_secret, the link itself.",
        ),
        VarDef::stored("secure_link_expires", "Until when the link holds, as the client sent it."),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let slots = ["secure_link", "secure_link_expires"].map(|name| cx.slot(name));
        let connection = raw.connection.take();
        let md5 = raw.md5.take();
        if let Some(secret) = raw.secret.take() {
            if connection.is_some() || md5.is_some() {
                return Err(ConfError::new(
                    "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"",
                ));
            }
            return Ok(Self { connection: None, md5: None, secret: Some(secret.into()), slots });
        }
        let mut compile = |word: Option<Word>, outer: Option<Option<Arc<Template>>>| match word {
            Some(word) => Ok(Some(Arc::new(cx.template(&word)?))),
            None => Ok(outer.flatten()),
        };
        let connection = compile(connection, outer.map(|o| o.connection.clone()))?;
        let md5 = compile(md5, outer.map(|o| o.md5.clone()))?;
        let secret = match (&connection, &md5) {
            (None, None) => outer.and_then(|outer| outer.secret.clone()),
            _ => None,
        };
        Ok(Self { connection, md5, secret, slots })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let [connection, expires] = self.slots;
        if let Some(secret) = self.secret.clone() {
            plan.compute(connection, Arc::new(move |r, out| by_secret(r, &secret, out)));
        } else if self.connection.is_some() && self.md5.is_some() {
            let settings = self.clone();
            plan.compute(
                connection,
                Arc::new(move |r, out| settings.check(r, out).unwrap_or(Value::Missing)),
            );
            let settings = self.clone();
            // DIFF(nginx): it does not have to be asked for after `$secure_link`.
            plan.compute(expires, Arc::new(move |r, out| settings.expires(r, out).unwrap_or(Value::Missing)));
        }
    }
}

impl SecureLink {
    /// `$secure_link`
    fn check(&self, r: &Request, out: &mut Vec<u8>) -> Option<Value> {
        let connection = self.connection.as_ref()?.value(r);
        let (encoded, until) = split(&connection);
        let until = match until {
            Some(text) => Some(seconds(text)?),
            None => None,
        };
        let hash = decode(encoded)?;
        let text = self.md5.as_ref()?.value(r);
        if !is_same(&hash, &md5(&[&text])) {
            return None;
        }
        let is_over = until.is_some_and(|until| until < tw_rt::clock::unix().secs);
        out.push(if is_over { b'0' } else { b'1' });
        Some(Value::Found)
    }

    /// `$secure_link_expires`
    fn expires(&self, r: &Request, out: &mut Vec<u8>) -> Option<Value> {
        let connection = self.connection.as_ref()?.value(r);
        let text = split(&connection).1.filter(|text| seconds(text).is_some())?;
        out.extend_from_slice(text);
        Some(Value::Found)
    }
}

/// `$secure_link` with `secure_link_secret`: the link, if its hash is good.
fn by_secret(r: &Request, secret: &[u8], out: &mut Vec<u8>) -> Value {
    match good_link(r.head.target(), secret) {
        Some(connection) => {
            out.extend_from_slice(connection);
            Value::Found
        }
        None => Value::Missing,
    }
}

/// The link in `/prefix/hash/link`.
fn good_link<'a>(uri: &'a [u8], secret: &[u8]) -> Option<&'a [u8]> {
    let mut parts = uri.get(1..)?.splitn(3, |&byte| byte == b'/');
    let (_, hash, connection) = (parts.next()?, parts.next()?, parts.next()?);
    if connection.is_empty() {
        return None;
    }
    is_same(&hex(hash)?, &md5(&[connection, secret])).then_some(connection)
}

/// The hash and the time of `hash,time`.
fn split(connection: &[u8]) -> (&[u8], Option<&[u8]>) {
    match connection.iter().position(|&byte| byte == b',') {
        Some(comma) => (&connection[..comma], Some(&connection[comma + 1..])),
        None => (connection, None),
    }
}

/// Seconds since 1970, above 0.
fn seconds(text: &[u8]) -> Option<i64> {
    tw_conf::units::number(text).and_then(|secs| i64::try_from(secs).ok()).filter(|secs| *secs > 0)
}

fn md5(texts: &[&[u8]]) -> Hash {
    let mut md5 = Md5::new();
    for text in texts {
        md5.update(text);
    }
    md5.finalize().into()
}

/// Reads base64 with the alphabet of URLs (RFC 4648 section 5), padded or not.
fn decode(text: &[u8]) -> Option<Hash> {
    let digits = text.iter().position(|&byte| byte == b'=').map_or(text, |end| &text[..end]);
    // 22 characters of six bits are 16 bytes and four unused bits.
    if text.len() > ENCODED_MAX || digits.len() != 22 {
        return None;
    }
    let mut hash = Vec::with_capacity(size_of::<Hash>());
    base64::decode(digits, Alphabet::Url, &mut hash).ok()?;
    hash.try_into().ok()
}

/// Reads 32 hexadecimal digits.
fn hex(text: &[u8]) -> Option<Hash> {
    if text.len() != 32 {
        return None;
    }
    let mut bits: u128 = 0;
    for byte in text {
        bits = bits << 4 | u128::from(char::from(*byte).to_digit(16)?);
    }
    Some(bits.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MD5 of `abc`, RFC 1321 appendix 5.
    const ABC: Hash = 0x9001_5098_3cd2_4fb0_d696_3f7d_28e1_7f72_u128.to_be_bytes();

    #[test]
    fn encoded_hashes() {
        assert_eq!(md5(&[b"a", b"bc"]), ABC);
        for (text, expected) in [
            ("kAFQmDzST7DWlj99KOF_cg==", Some(ABC)),
            ("kAFQmDzST7DWlj99KOF_cg", Some(ABC)),
            ("kAFQmDzST7DWlj99KOF_ch=x", Some(ABC)),
            ("kAFQmDzST7DWlj99KOF/cg==", None),
            ("kAFQmDzST7DWlj99KOF_c", None),
            ("kAFQmDzST7DWlj99KOF_cgA", None),
            ("kAFQmDzST7DWlj99KOF_cg===", None),
            ("", None),
        ] {
            assert_eq!(decode(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(hex(b"900150983cd24fb0D6963F7D28E17F72"), Some(ABC));
        for text in ["", "900150983cd24fb0d6963f7d28e17f7", "900150983cd24fb0d6963f7d28e17f7g"] {
            assert_eq!(hex(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn links_with_a_hash_in_their_path() {
        for (uri, expected) in [
            ("/p/900150983cd24fb0d6963f7d28e17f72/a", Some("a")),
            ("/p/900150983cd24fb0d6963f7d28e17f72/b", None),
            ("/p/900150983cd24fb0d6963f7d28e17f72/", None),
            ("/p/900150983cd24fb0d6963f7d28e17f72", None),
            ("/p/900150983cd24fb0d6963f7d28e17f7/a", None),
            ("/p", None),
            ("/", None),
            ("", None),
            ("//", None),
        ] {
            assert_eq!(good_link(uri.as_bytes(), b"bc"), expected.map(str::as_bytes), "{uri}");
        }
    }

    #[test]
    fn times_of_links() {
        for (connection, expected) in [
            ("h,12", (&b"h"[..], Some(&b"12"[..]))),
            ("h", (&b"h"[..], None)),
            (",", (&b""[..], Some(&b""[..]))),
            ("h,1,2", (&b"h"[..], Some(&b"1,2"[..]))),
        ] {
            assert_eq!(split(connection.as_bytes()), expected, "{connection}");
        }
        for (text, expected) in [
            ("12", Some(12)),
            ("0", None),
            ("-1", None),
            ("", None),
            ("1,2", None),
            ("9999999999999999999999", None),
        ] {
            assert_eq!(seconds(text.as_bytes()), expected, "{text}");
        }
    }
}
