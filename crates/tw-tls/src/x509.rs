//! Parser for certificates and revocation lists (RFC 5280), without judging them.
//!
//! X.509 of all three versions: what `openssl ca` signs without extensions is version 1, and so are old roots.

use crate::der::{
    self, BIT_STRING, BOOLEAN, INTEGER, Malformed, OCTET_STRING, OID, Reader, SEQUENCE, context, primitive,
};
use crate::time;

/// A certificate, as slices of its DER.
#[derive(Debug, Clone)]
pub(crate) struct Certificate<'a> {
    /// All of it.
    pub(crate) der: &'a [u8],
    /// Signed part and signature.
    pub(crate) signed: Signed<'a>,
    /// 1, 2 or 3.
    pub(crate) version: u8,
    /// The content of the INTEGER.
    pub(crate) serial: &'a [u8],
    pub(crate) issuer: &'a [u8],
    pub(crate) subject: &'a [u8],
    /// Seconds since 1970.
    pub(crate) not_before: i64,
    pub(crate) not_after: i64,
    pub(crate) key: SubjectPublicKeyInfo<'a>,
    pub(crate) extensions: Extensions<'a>,
}

/// Signed bytes with the signature.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signed<'a> {
    pub(crate) message: &'a [u8],
    /// The content of the AlgorithmIdentifier.
    pub(crate) algorithm: &'a [u8],
    pub(crate) signature: &'a [u8],
}

/// A SubjectPublicKeyInfo.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubjectPublicKeyInfo<'a> {
    pub(crate) whole: &'a [u8],
    /// The content of the AlgorithmIdentifier.
    pub(crate) algorithm: &'a [u8],
    pub(crate) bits: &'a [u8],
}

/// The extensions that something is decided by.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extensions<'a> {
    pub(crate) basic_constraints: Option<BasicConstraints>,
    /// The first bits of KeyUsage; bit 0 is the highest.
    pub(crate) key_usage: Option<u8>,
    /// The content of the SEQUENCE of ExtendedKeyUsage.
    pub(crate) extended_key_usage: Option<&'a [u8]>,
    /// The content of the SEQUENCE of SubjectAltName.
    pub(crate) names: Option<&'a [u8]>,
    pub(crate) subject_key: Option<&'a [u8]>,
    pub(crate) authority_key: Option<&'a [u8]>,
    /// AuthorityInfoAccess, as it is.
    pub(crate) authority_access: Option<&'a [u8]>,
    /// Presence of name constraints.
    pub(crate) name_constraints: NameConstraints,
    pub(crate) unknown_critical: UnknownCritical,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct BasicConstraints {
    pub(crate) is_ca: bool,
    pub(crate) path_len: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum NameConstraints {
    #[default]
    Absent,
    Present,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum UnknownCritical {
    #[default]
    Absent,
    Present,
}

/// KeyUsage: keyCertSign.
pub(crate) const KEY_CERT_SIGN: u8 = 0x80 >> 5;
/// KeyUsage: cRLSign.
pub(crate) const CRL_SIGN: u8 = 0x80 >> 6;

/// id-kp-serverAuth, id-kp-clientAuth, anyExtendedKeyUsage.
pub(crate) const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
pub(crate) const CLIENT_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
pub(crate) const ANY_USAGE: &[u8] = &[0x55, 0x1d, 0x25, 0x00];

impl<'a> Certificate<'a> {
    /// Takes a certificate apart.
    pub(crate) fn parse(der: &'a [u8]) -> Result<Self, Malformed> {
        let (signed, mut tbs) = signed(der)?;
        let version = match tbs.optional(context(0))? {
            None => 1,
            Some(version) => match der::number(Reader::new(version.content).expect(INTEGER)?.content)? {
                version @ 0..=2 => version as u8 + 1,
                _ => return Err(Malformed),
            },
        };
        let serial = tbs.expect(INTEGER)?.content;
        if serial.is_empty() || tbs.expect(SEQUENCE)?.content != signed.algorithm {
            return Err(Malformed);
        }
        let issuer = tbs.expect(SEQUENCE)?.whole;
        let mut validity = tbs.enter(SEQUENCE)?;
        let not_before = time::parse(validity.element()?)?;
        let not_after = time::parse(validity.element()?)?;
        validity.end()?;
        let subject = tbs.expect(SEQUENCE)?.whole;
        let key = tbs.expect(SEQUENCE)?;
        let mut parts = Reader::new(key.content);
        let key = SubjectPublicKeyInfo {
            whole: key.whole,
            algorithm: parts.expect(SEQUENCE)?.content,
            bits: der::bytes_of_bits(parts.expect(BIT_STRING)?.content)?,
        };
        parts.end()?;
        // issuerUniqueID and subjectUniqueID are not used.
        tbs.optional(primitive(1))?;
        tbs.optional(primitive(2))?;
        let extensions = match tbs.optional(context(3))? {
            Some(list) => Extensions::parse(list.content)?,
            None => Extensions::default(),
        };
        tbs.end()?;
        Ok(Self { der, signed, version, serial, issuer, subject, not_before, not_after, key, extensions })
    }

    /// Returns `true` if the certificate names itself as its issuer. The signature is not checked.
    pub(crate) fn is_self_issued(&self) -> bool {
        self.subject == self.issuer
            && match (self.extensions.authority_key, self.extensions.subject_key) {
                (Some(authority), Some(subject)) => authority == subject,
                _ => true,
            }
    }

    /// Returns `true` if the certificate names `other` as its issuer. The signature is not checked.
    pub(crate) fn names_as_issuer(&self, other: &Certificate<'_>) -> bool {
        self.issuer == other.subject
            && match (self.extensions.authority_key, other.extensions.subject_key) {
                (Some(authority), Some(subject)) => authority == subject,
                _ => true,
            }
    }
}

impl<'a> Extensions<'a> {
    fn parse(list: &'a [u8]) -> Result<Self, Malformed> {
        let mut extensions = Self::default();
        let mut list = der::only(list, SEQUENCE)?;
        // RFC 5280, section 4.2: "A certificate MUST NOT include more than one instance of a particular extension".
        let mut seen_values: Vec<&[u8]> = Vec::new();
        while !list.is_empty() {
            let extension = Extension::parse(&mut list)?;
            if seen_values.contains(&extension.id) || seen_values.len() == EXTENSIONS_MAX {
                return Err(Malformed);
            }
            seen_values.push(extension.id);
            extensions.take(extension)?;
        }
        Ok(extensions)
    }

    fn take(&mut self, Extension { id, is_critical, value }: Extension<'a>) -> Result<(), Malformed> {
        // id-ce is 2.5.29.
        match id {
            [0x55, 0x1d, 14] => self.subject_key = Some(whole(value, OCTET_STRING)?),
            [0x55, 0x1d, 15] => {
                let bits = whole(value, BIT_STRING)?;
                self.key_usage = Some(bits.get(1).copied().unwrap_or(0));
            }
            [0x55, 0x1d, 17] => self.names = Some(whole(value, SEQUENCE)?),
            [0x55, 0x1d, 19] => {
                let mut parts = der::only(value, SEQUENCE)?;
                let is_ca = parts.optional(BOOLEAN)?.is_some_and(|ca| ca.content == [0xff]);
                let path_len = parts.optional(INTEGER)?.map(|len| der::number(len.content)).transpose()?;
                parts.end()?;
                self.basic_constraints = Some(BasicConstraints { is_ca, path_len });
            }
            [0x55, 0x1d, 30] => self.name_constraints = NameConstraints::Present,
            [0x55, 0x1d, 35] => {
                let mut parts = der::only(value, SEQUENCE)?;
                self.authority_key = parts.optional(primitive(0))?.map(|key| key.content);
            }
            [0x55, 0x1d, 37] => self.extended_key_usage = Some(whole(value, SEQUENCE)?),
            // id-pe-authorityInfoAccess.
            [0x2b, 6, 1, 5, 5, 7, 1, 1] => self.authority_access = Some(value),
            // Distribution points and policies are known, but decide nothing, as in nginx.
            [0x55, 0x1d, 31 | 32 | 33 | 36 | 54] => {}
            _ if is_critical => self.unknown_critical = UnknownCritical::Present,
            _ => {}
        }
        Ok(())
    }

    /// Returns `true` if the certificate may be used for this purpose; without the extension it may.
    pub(crate) fn allows(&self, usage: &[u8]) -> bool {
        let Some(list) = self.extended_key_usage else { return true };
        let mut list = Reader::new(list);
        while let Ok(id) = list.expect(OID) {
            if id.content == usage || id.content == ANY_USAGE {
                return true;
            }
        }
        false
    }
}

/// More than any certificate has.
const EXTENSIONS_MAX: usize = 100;

struct Extension<'a> {
    id: &'a [u8],
    is_critical: bool,
    value: &'a [u8],
}

impl<'a> Extension<'a> {
    fn parse(list: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut parts = list.enter(SEQUENCE)?;
        let id = parts.expect(OID)?.content;
        let is_critical = parts.optional(BOOLEAN)?.is_some_and(|critical| critical.content != [0]);
        let value = parts.expect(OCTET_STRING)?.content;
        parts.end()?;
        Ok(Self { id, is_critical, value })
    }
}

/// A revocation list, as slices of its DER.
#[derive(Debug, Clone)]
pub(crate) struct RevocationList<'a> {
    pub(crate) signed: Signed<'a>,
    pub(crate) issuer: &'a [u8],
    pub(crate) this_update: i64,
    pub(crate) next_update: Option<i64>,
    /// Contents of the SEQUENCE of revoked certificates.
    revoked: &'a [u8],
    pub(crate) unknown_critical: UnknownCritical,
}

impl<'a> RevocationList<'a> {
    /// Takes a list apart.
    pub(crate) fn parse(der: &'a [u8]) -> Result<Self, Malformed> {
        let (signed, mut tbs) = signed(der)?;
        tbs.optional(INTEGER)?;
        if tbs.expect(SEQUENCE)?.content != signed.algorithm {
            return Err(Malformed);
        }
        let issuer = tbs.expect(SEQUENCE)?.whole;
        let this_update = time::parse(tbs.element()?)?;
        let next_update = match tbs.optional(der::UTC_TIME)? {
            Some(time) => Some(time),
            None => tbs.optional(der::GENERALIZED_TIME)?,
        };
        let next_update = next_update.map(time::parse).transpose()?;
        let revoked = tbs.optional(SEQUENCE)?.map(|list| list.content).unwrap_or_default();
        let mut unknown_critical = UnknownCritical::Absent;
        if let Some(list) = tbs.optional(context(0))? {
            let mut list = der::only(list.content, SEQUENCE)?;
            while !list.is_empty() {
                // Partial and delta lists are critical extensions, which are not supported.
                if Extension::parse(&mut list)?.is_critical {
                    unknown_critical = UnknownCritical::Present;
                }
            }
        }
        tbs.end()?;
        Ok(Self { signed, issuer, this_update, next_update, revoked, unknown_critical })
    }

    /// The serial numbers, as contents of INTEGERs.
    pub(crate) fn serials(&self) -> Result<Vec<&'a [u8]>, Malformed> {
        let mut list = Reader::new(self.revoked);
        let mut serials = Vec::new();
        while !list.is_empty() {
            serials.push(list.enter(SEQUENCE)?.expect(INTEGER)?.content);
        }
        Ok(serials)
    }
}

/// Common start of certificates and lists: the signed part, the algorithm and the signature.
fn signed(der: &[u8]) -> Result<(Signed<'_>, Reader<'_>), Malformed> {
    let mut parts = der::only(der, SEQUENCE)?;
    let tbs = parts.expect(SEQUENCE)?;
    let algorithm = parts.expect(SEQUENCE)?.content;
    let signature = der::bytes_of_bits(parts.expect(BIT_STRING)?.content)?;
    parts.end()?;
    Ok((Signed { message: tbs.whole, algorithm, signature }, Reader::new(tbs.content)))
}

/// The content of the one element that a value is.
fn whole(value: &[u8], tag: u8) -> Result<&[u8], Malformed> {
    let mut reader = Reader::new(value);
    let content = reader.expect(tag)?.content;
    reader.end()?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Authority, leaf};

    #[test]
    fn a_certificate() {
        let root = Authority::new("root");
        let cert = leaf("example.com", &root);
        let cert = Certificate::parse(cert.der()).unwrap();
        let issuer = Certificate::parse(root.der()).unwrap();
        assert_eq!(cert.version, 3);
        assert_eq!(cert.issuer, issuer.subject);
        assert!(cert.names_as_issuer(&issuer) && !issuer.names_as_issuer(&cert));
        assert!(issuer.is_self_issued() && !cert.is_self_issued());
        assert!(issuer.extensions.basic_constraints.unwrap().is_ca);
        assert!(cert.extensions.names.is_some());
        assert!(cert.not_before < cert.not_after);
    }

    #[test]
    fn truncated_or_modified_input_does_not_panic() {
        let root = Authority::new("root");
        let der = leaf("example.com", &root).der().to_vec();
        for end in 0..der.len() {
            assert!(Certificate::parse(&der[..end]).is_err());
        }
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] ^= 0x55;
            let _ = Certificate::parse(&changed);
            let _ = RevocationList::parse(&changed);
        }
    }

    #[test]
    fn a_revocation_list() {
        let root = Authority::new("root");
        let der = root.revoke(&[5, 300]);
        let list = RevocationList::parse(&der).unwrap();
        assert_eq!(list.serials().unwrap(), [&[5][..], &[1, 44]]);
        assert_eq!(list.issuer, Certificate::parse(root.der()).unwrap().subject);
        for end in 0..der.len() {
            assert!(RevocationList::parse(&der[..end]).is_err());
        }
    }
}
