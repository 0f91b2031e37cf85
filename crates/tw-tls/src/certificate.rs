//! Certificate fields, as nginx's variables have them (`$ssl_client_s_dn` and its neighbours).

mod algorithms;

use std::fmt::Write;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::pki_types::CertificateDer;

use crate::der::{BMP_STRING, Element, OID, Reader, SEQUENCE, SET, UNIVERSAL_STRING, UTF8_STRING};
use crate::x509::Certificate;
use crate::{pem, time};

const DAY: i64 = 24 * 60 * 60;

/// Fields of one certificate, formatted on access.
#[derive(Debug, Clone)]
pub struct CertificateFields<'a>(Certificate<'a>);

impl<'a> CertificateFields<'a> {
    /// Parses a certificate; `None` if it is malformed.
    pub fn of(der: &'a CertificateDer<'_>) -> Option<Self> {
        Certificate::parse(der).ok().map(Self)
    }

    /// `$ssl_client_s_dn`: `CN=client,O=Example` (RFC 2253).
    pub fn subject(&self) -> String {
        rfc_2253(self.0.subject)
    }

    /// First common name of the subject.
    pub fn common_name(&self) -> Option<String> {
        let mut all = attributes(self.0.subject).into_iter().flatten();
        all.find(|attribute| short_name(attribute.id) == Some("CN")).and_then(|name| text(name.value))
    }

    /// OpenSSL's name of the algorithm that the certificate is signed with: `ecdsa-with-SHA256`; `None` for an unknown one.
    pub fn signature_algorithm(&self) -> Option<&'static str> {
        algorithms::signature_name(self.0.signed.algorithm)
    }

    /// Kind of the key and its bits: `RSA2048`, `EC256`; `None` for an unknown one.
    pub fn key_algorithm(&self) -> Option<String> {
        algorithms::key_name(&self.0.key)
    }

    /// `$ssl_client_i_dn`.
    pub fn issuer(&self) -> String {
        rfc_2253(self.0.issuer)
    }

    /// `$ssl_client_s_dn_legacy`: `/O=Example/CN=client`.
    pub fn subject_legacy(&self) -> String {
        one_line(self.0.subject)
    }

    /// `$ssl_client_i_dn_legacy`.
    pub fn issuer_legacy(&self) -> String {
        one_line(self.0.issuer)
    }

    /// `$ssl_client_serial`, in upper case.
    pub fn serial(&self) -> String {
        // A leading zero byte only marks the number as not negative.
        let digits = match self.0.serial {
            [0, digits @ ..] if !digits.is_empty() => digits,
            digits => digits,
        };
        hex(digits).to_ascii_uppercase()
    }

    /// `$ssl_client_fingerprint`: SHA-1 of all of it, in lower case.
    pub fn fingerprint(&self) -> String {
        hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, self.0.der).as_ref())
    }

    /// `$ssl_client_v_start`: `Nov 23 15:00:00 2026 GMT`.
    pub fn not_before(&self) -> String {
        time::text(self.0.not_before)
    }

    /// `$ssl_client_v_end`.
    pub fn not_after(&self) -> String {
        time::text(self.0.not_after)
    }

    /// `$ssl_client_v_remain`: whole days until it ends; `now` is in seconds since 1970.
    pub fn days_left(&self, now: u64) -> u64 {
        let remaining = self.0.not_after.saturating_sub(i64::try_from(now).unwrap_or(i64::MAX));
        u64::try_from(remaining / DAY).unwrap_or(0)
    }

    /// End of validity, in seconds since 1970; 0 for earlier times.
    pub fn ends_at(&self) -> u64 {
        u64::try_from(self.0.not_after).unwrap_or(0)
    }

    /// Start of validity, in seconds since 1970; 0 for earlier times.
    pub fn begins_at(&self) -> u64 {
        u64::try_from(self.0.not_before).unwrap_or(0)
    }

    /// Serial number as encoded, with the leading zero byte of a positive number.
    pub fn serial_bytes(&self) -> &'a [u8] {
        self.0.serial
    }

    /// Key identifier of the issuer (RFC 5280, section 4.2.1.1).
    pub fn authority_key(&self) -> Option<&'a [u8]> {
        self.0.extensions.authority_key
    }

    /// `$ssl_client_raw_cert`: PEM.
    pub fn pem(&self) -> String {
        pem::encode("CERTIFICATE", self.0.der)
    }

    /// `$ssl_client_cert`: PEM with a tab in front of every line but the first, for the value of a header field.
    pub fn pem_tabbed(&self) -> String {
        self.pem().trim_end().replace('\n', "\n\t")
    }

    /// `$ssl_client_escaped_cert`: PEM as a component of a URL.
    pub fn pem_escaped(&self) -> String {
        let mut out = String::new();
        for byte in self.pem().bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    out.push(char::from(byte))
                }
                _ => push(&mut out, format_args!("%{byte:02X}")),
            }
        }
        out
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    bytes.iter().for_each(|byte| push(&mut out, format_args!("{byte:02x}")));
    out
}

fn push(out: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = out.write_fmt(what);
}

/// One attribute of a name.
struct Attribute<'a> {
    /// The content of the OID.
    id: &'a [u8],
    value: Element<'a>,
}

/// Attributes of a name: sets of them, most of which have one. A malformed one ends the list.
fn attributes(name: &[u8]) -> Vec<Vec<Attribute<'_>>> {
    let mut sets = Reader::new(name).enter(SEQUENCE).unwrap_or(Reader::new(&[]));
    let mut found_attributes = Vec::new();
    while let Ok(mut set) = sets.enter(SET) {
        let mut attributes = Vec::new();
        while let Ok(mut parts) = set.enter(SEQUENCE)
            && let (Ok(id), Ok(value)) = (parts.expect(OID), parts.element())
        {
            attributes.push(Attribute { id: id.content, value });
        }
        found_attributes.push(attributes);
    }
    found_attributes
}

/// The last set first, and in it the last attribute, with commas between sets and plus signs within.
fn rfc_2253(name: &[u8]) -> String {
    let mut out = String::new();
    for (at, set) in attributes(name).iter().rev().enumerate() {
        if at > 0 {
            out.push(',');
        }
        for (at, attribute) in set.iter().rev().enumerate() {
            if at > 0 {
                out.push('+');
            }
            match (short_name(attribute.id), text(attribute.value)) {
                (Some(name), Some(value)) => {
                    push(&mut out, format_args!("{name}="));
                    escape(&value, &mut out);
                }
                // "the AttributeValue is encoded as … '#' followed by the hexadecimal representation" of its BER.
                (name, _) => {
                    let name = name.map_or_else(|| dotted(attribute.id), str::to_owned);
                    push(
                        &mut out,
                        format_args!("{name}=#{}", hex(attribute.value.whole).to_ascii_uppercase()),
                    );
                }
            }
        }
    }
    out
}

/// Escapes a value by RFC 2253, section 2.4, and, as OpenSSL does, bytes that are not ASCII.
fn escape(value: &str, out: &mut String) {
    let last = value.len().saturating_sub(1);
    for (at, byte) in value.bytes().enumerate() {
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                push(out, format_args!("\\{}", char::from(byte)))
            }
            b'#' if at == 0 => out.push_str("\\#"),
            b' ' if at == 0 || at == last => out.push_str("\\ "),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => push(out, format_args!("\\{byte:02X}")),
        }
    }
}

/// OpenSSL's old form (`X509_NAME_oneline`): bytes as they are in the certificate.
fn one_line(name: &[u8]) -> String {
    let mut out = String::new();
    for set in attributes(name) {
        for (at, attribute) in set.iter().enumerate() {
            let name = short_name(attribute.id).map_or_else(|| dotted(attribute.id), str::to_owned);
            push(&mut out, format_args!("{}{name}=", if at == 0 { '/' } else { '+' }));
            for byte in attribute.value.content {
                match byte {
                    // These bytes are escaped, so that a value cannot look like another attribute.
                    b'/' | b'+' => push(&mut out, format_args!("\\{}", char::from(*byte))),
                    b' '..=b'~' => out.push(char::from(*byte)),
                    _ => push(&mut out, format_args!("\\x{byte:02X}")),
                }
            }
        }
    }
    out
}

/// Text of a string of any type used in names; `None` for other types.
fn text(value: Element<'_>) -> Option<String> {
    /// NumericString, PrintableString, TeletexString, IA5String, VisibleString: bytes are letters.
    const LATIN: [u8; 5] = [0x12, 0x13, 0x14, 0x16, 0x1a];
    match value.tag {
        UTF8_STRING => str::from_utf8(value.content).ok().map(str::to_owned),
        BMP_STRING => {
            let (units, rest) = value.content.as_chunks::<2>();
            let units = units.iter().map(|unit| u16::from_be_bytes(*unit));
            if rest.is_empty() { char::decode_utf16(units).collect::<Result<_, _>>().ok() } else { None }
        }
        UNIVERSAL_STRING => {
            let (units, rest) = value.content.as_chunks::<4>();
            let units = units.iter().map(|unit| char::from_u32(u32::from_be_bytes(*unit)));
            if rest.is_empty() { units.collect() } else { None }
        }
        tag if LATIN.contains(&tag) => Some(value.content.iter().map(|byte| char::from(*byte)).collect()),
        _ => None,
    }
}

/// OpenSSL's short name of an attribute.
fn short_name(id: &[u8]) -> Option<&'static str> {
    Some(match id {
        [0x55, 0x04, last] => match last {
            3 => "CN",
            4 => "SN",
            5 => "serialNumber",
            6 => "C",
            7 => "L",
            8 => "ST",
            9 => "street",
            10 => "O",
            11 => "OU",
            12 => "title",
            13 => "description",
            15 => "businessCategory",
            17 => "postalCode",
            41 => "name",
            42 => "GN",
            43 => "initials",
            44 => "generationQualifier",
            45 => "x500UniqueIdentifier",
            46 => "dnQualifier",
            65 => "pseudonym",
            97 => "organizationIdentifier",
            _ => return None,
        },
        // 1.2.840.113549.1.9
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 1] => "emailAddress",
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 2] => "unstructuredName",
        // 0.9.2342.19200300.100.1
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 1] => "UID",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 0x01, 25] => "DC",
        // 1.3.6.1.4.1.311.60.2.1
        [0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x3c, 0x02, 0x01, 1] => "jurisdictionL",
        [0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x3c, 0x02, 0x01, 2] => "jurisdictionST",
        [0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x3c, 0x02, 0x01, 3] => "jurisdictionC",
        _ => return None,
    })
}

/// Formats an identifier as `1.2.840.113549`; a number too large for any real one ends it.
fn dotted(id: &[u8]) -> String {
    let mut out = String::new();
    let mut arc: u64 = 0;
    for byte in id {
        let Some(next) = arc.checked_mul(128) else { break };
        arc = next | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        match (out.is_empty(), arc) {
            // The first two numbers are one.
            (true, arc) => {
                let first = (arc / 40).min(2);
                push(&mut out, format_args!("{first}.{}", arc - first * 40));
            }
            (false, arc) => push(&mut out, format_args!(".{arc}")),
        }
        arc = 0;
    }
    out
}

#[cfg(test)]
mod tests {
    use rcgen::{DnType, DnValue, SerialNumber};

    use super::*;
    use crate::testing::{Authority, NOW, ecdsa_key, rsa_key, wrap};

    fn certificate() -> CertificateDer<'static> {
        let root = Authority::new("root");
        let leaf = root.sign("client", ecdsa_key(), |params| {
            let mut name = rcgen::DistinguishedName::new();
            name.push(DnType::CountryName, DnValue::PrintableString("DE".try_into().unwrap()));
            name.push(DnType::OrganizationName, " A, \"B\" + <C>;\\ ");
            name.push(DnType::CommonName, "#J\u{fc}rgen=1");
            name.push(DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]), "a@b.c");
            name.push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 99_999]), "x");
            params.distinguished_name = name;
            params.serial_number = Some(SerialNumber::from_slice(&[0x8a, 0x0b, 0xff]));
        });
        CertificateDer::from(leaf.der().to_vec())
    }

    #[test]
    fn names() {
        let der = certificate();
        let facts = CertificateFields::of(&der).unwrap();
        let expected = "1.3.6.1.4.1.99999=#0C0178,emailAddress=a@b.c,CN=\\#J\\C3\\BCrgen=1,O=\\ A\\, \\\"B\\\" \\+ \\<C\\>\\;\\\\\\ ,C=DE";
        assert_eq!(facts.subject(), expected);
        let expected =
            "/C=DE/O= A, \"B\" \\+ <C>;\\ /CN=#J\\xC3\\xBCrgen=1/emailAddress=a@b.c/1.3.6.1.4.1.99999=x";
        assert_eq!(facts.subject_legacy(), expected);
        assert_eq!((facts.issuer().as_str(), facts.issuer_legacy().as_str()), ("CN=root", "/CN=root"));
    }

    #[test]
    fn sets_of_several_attributes() {
        let attribute = |id: &[u8], value: &str| {
            wrap(SEQUENCE, &[wrap(OID, id), wrap(UTF8_STRING, value.as_bytes())].concat())
        };
        let country = attribute(&[0x55, 4, 6], "DE");
        let organization = attribute(&[0x55, 4, 10], "a/b");
        let name = attribute(&[0x55, 4, 3], "c+d");
        let sets = [wrap(SET, &country), wrap(SET, &[organization, name].concat())].concat();
        let name = wrap(SEQUENCE, &sets);
        // The output of `openssl x509 -subject -nameopt`: RFC2253, then compat.
        assert_eq!(rfc_2253(&name), "CN=c\\+d+O=a/b,C=DE");
        assert_eq!(one_line(&name), "/C=DE/O=a\\/b+CN=c\\+d");
        for end in 0..name.len() {
            let _ = (rfc_2253(&name[..end]), one_line(&name[..end]));
        }
    }

    #[test]
    fn numbers_and_times() {
        let der = certificate();
        let facts = CertificateFields::of(&der).unwrap();
        assert_eq!(facts.serial(), "8A0BFF");
        assert_eq!(facts.fingerprint().len(), 40);
        assert_eq!(facts.not_before(), "Jan  1 00:00:00 2020 GMT");
        assert_eq!(facts.not_after(), "Jan  1 00:00:00 2030 GMT");
        // The time from 2026-11-23 to 2030-01-01.
        assert_eq!((facts.days_left(NOW), facts.days_left(NOW + 1)), (1135, 1134));
        assert_eq!((facts.days_left(facts.ends_at() + 1), facts.days_left(u64::MAX)), (0, 0));
    }

    #[test]
    fn algorithms_have_the_names_of_openssl() {
        let root = Authority::new("root");
        for (key, expected) in [(ecdsa_key(), "EC256"), (rsa_key(), "RSA2048")] {
            let leaf = root.sign("client, of many", key, |_| {});
            let der = CertificateDer::from(leaf.der());
            let fields = CertificateFields::of(&der).unwrap();
            assert_eq!(fields.common_name().as_deref(), Some("client, of many"));
            assert_eq!(fields.signature_algorithm(), Some("ecdsa-with-SHA256"));
            assert_eq!(fields.key_algorithm().as_deref(), Some(expected));
        }
    }

    #[test]
    fn texts() {
        let der = certificate();
        let facts = CertificateFields::of(&der).unwrap();
        let pem = facts.pem();
        assert!(
            pem.starts_with("-----BEGIN CERTIFICATE-----\nMII")
                && pem.ends_with("\n-----END CERTIFICATE-----\n")
        );
        let tabbed = facts.pem_tabbed();
        assert!(
            tabbed.ends_with("\n\t-----END CERTIFICATE-----")
                && tabbed.lines().skip(1).all(|line| line.starts_with('\t'))
        );
        let escaped = facts.pem_escaped();
        assert!(
            escaped.starts_with("-----BEGIN%20CERTIFICATE-----%0AMII")
                && escaped.ends_with("CERTIFICATE-----%0A")
        );
        assert!(!escaped.contains(['+', '/', '=', '\n']));
    }

    #[test]
    fn strings_of_every_type() {
        let text = |tag, content: &[u8]| text(Element { tag, whole: content, content });
        assert_eq!(text(BMP_STRING, &[0, b'a', 0x20, 0xac]).as_deref(), Some("a\u{20ac}"));
        assert_eq!(text(UNIVERSAL_STRING, &[0, 1, 0xf6, 0]).as_deref(), Some("\u{1f600}"));
        assert_eq!(text(0x14, &[0xfc]).as_deref(), Some("\u{fc}"));
        for (tag, content) in
            [(UTF8_STRING, &[0xff][..]), (BMP_STRING, &[0]), (BMP_STRING, &[0xd8, 0]), (0x03, &[0])]
        {
            assert_eq!(text(tag, content), None);
        }
    }

    #[test]
    fn modified_input_does_not_panic() {
        let der = certificate().to_vec();
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] = changed[at].wrapping_add(1);
            let changed = CertificateDer::from(changed);
            if let Some(facts) = CertificateFields::of(&changed) {
                let _ = (facts.subject(), facts.subject_legacy(), facts.serial(), facts.not_after());
            }
        }
        assert_eq!(dotted(&[0xff; 40]), "");
    }
}
