//! DER (X.690), as far as certificates, revocation lists and keys need it: elements with short tags and definite
//! lengths.

/// Malformed DER, or an unexpected element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const NULL: u8 = 0x05;
pub(crate) const OID: u8 = 0x06;
pub(crate) const UTF8_STRING: u8 = 0x0c;
pub(crate) const UTC_TIME: u8 = 0x17;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const UNIVERSAL_STRING: u8 = 0x1c;
pub(crate) const BMP_STRING: u8 = 0x1e;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// `[n]`, constructed.
pub(crate) const fn context(n: u8) -> u8 {
    0xa0 | n
}

/// `[n]`, primitive.
pub(crate) const fn primitive(n: u8) -> u8 {
    0x80 | n
}

/// One element.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    /// With its tag and its length.
    pub(crate) whole: &'a [u8],
    pub(crate) content: &'a [u8],
}

/// Reads one element after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next element.
    pub(crate) fn element(&mut self) -> Result<Element<'a>, Malformed> {
        let (&[tag, first], mut after) = self.rest.split_first_chunk::<2>().ok_or(Malformed)?;
        // Tags from 31 on have more bytes; nothing that is read here has one.
        if tag & 0x1f == 0x1f {
            return Err(Malformed);
        }
        let size = if first < 0x80 {
            usize::from(first)
        } else {
            let count = usize::from(first & 0x7f);
            let (digits, rest) = after.split_at_checked(count).ok_or(Malformed)?;
            // Four bytes are 4 GB; none at all is the indefinite length, which DER does not have.
            if !(1..=4).contains(&count) || digits.first() == Some(&0) {
                return Err(Malformed);
            }
            after = rest;
            let size = digits.iter().fold(0usize, |size, digit| size << 8 | usize::from(*digit));
            if size < 0x80 {
                return Err(Malformed);
            }
            size
        };
        let (content, rest) = after.split_at_checked(size).ok_or(Malformed)?;
        let (whole, _) = self.rest.split_at_checked(self.rest.len() - rest.len()).ok_or(Malformed)?;
        self.rest = rest;
        Ok(Element { tag, whole, content })
    }

    /// The next element, which has this tag.
    pub(crate) fn expect(&mut self, tag: u8) -> Result<Element<'a>, Malformed> {
        self.element().and_then(|element| if element.tag == tag { Ok(element) } else { Err(Malformed) })
    }

    /// The next element, if it has this tag.
    pub(crate) fn optional(&mut self, tag: u8) -> Result<Option<Element<'a>>, Malformed> {
        if self.rest.first() == Some(&tag) { self.element().map(Some) } else { Ok(None) }
    }

    /// Contents of the next element, which must have this tag.
    pub(crate) fn enter(&mut self, tag: u8) -> Result<Reader<'a>, Malformed> {
        self.expect(tag).map(|element| Reader::new(element.content))
    }

    /// Checks that nothing follows.
    pub(crate) fn end(&self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// Contents of the only element in these bytes.
pub(crate) fn only(bytes: &[u8], tag: u8) -> Result<Reader<'_>, Malformed> {
    let mut reader = Reader::new(bytes);
    let inside = reader.enter(tag)?;
    reader.end()?;
    Ok(inside)
}

/// A whole number that is not negative and fits.
pub(crate) fn number(content: &[u8]) -> Result<u32, Malformed> {
    let digits = match content {
        [] => return Err(Malformed),
        [first, ..] if *first >= 0x80 => return Err(Malformed),
        [0, digits @ ..] => digits,
        digits => digits,
    };
    if digits.len() > 4 {
        return Err(Malformed);
    }
    Ok(digits.iter().fold(0, |number, digit| number << 8 | u32::from(*digit)))
}

/// The bytes of a BIT STRING without unused bits.
pub(crate) fn bytes_of_bits(content: &[u8]) -> Result<&[u8], Malformed> {
    match content {
        [0, bytes @ ..] => Ok(bytes),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements() {
        let bytes = [0x30, 0x06, 0x02, 0x01, 0x05, 0x04, 0x01, 0xaa];
        let mut inside = only(&bytes, SEQUENCE).unwrap();
        assert!(inside.optional(OID).unwrap().is_none());
        assert_eq!(number(inside.expect(INTEGER).unwrap().content), Ok(5));
        assert_eq!(inside.expect(OCTET_STRING).unwrap().whole, [0x04, 0x01, 0xaa]);
        assert!(inside.is_empty() && inside.element().is_err());
    }

    #[test]
    fn long_lengths() {
        let mut bytes = vec![0x04, 0x81, 0x80];
        bytes.extend([7; 128]);
        assert_eq!(Reader::new(&bytes).element().unwrap().content.len(), 128);
    }

    #[test]
    fn invalid_der_is_refused() {
        for bytes in [
            &[][..],
            &[0x30],
            &[0x30, 0x01],
            &[0x30, 0x80, 0x00, 0x00],
            &[0x04, 0x81, 0x01, 0xaa],
            &[0x04, 0x82, 0x00, 0x80],
            &[0x04, 0x85, 1, 1, 1, 1, 1],
            &[0x04, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x1f, 0x81, 0x01, 0x00],
        ] {
            assert!(Reader::new(bytes).element().is_err(), "{bytes:x?}");
        }
        assert!(only(&[0x04, 0x00, 0x00], OCTET_STRING).is_err());
        assert!(number(&[]).is_err() && number(&[0x80]).is_err() && number(&[1, 0, 0, 0, 0]).is_err());
    }
}
