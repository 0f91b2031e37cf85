//! Files that nginx has written (`ngx_http_file_cache_header_t`, version 5, as it lies in memory on x86-64 and other
//! machines with 64 bits and little end first), so that its cache can be taken over.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | version: 5 |
//! | 8 | 8 | valid until; -1 in times means that there is none |
//! | 16, 24 | 8, 8 | seconds after that: while updating, if the origin fails |
//! | 32, 40 | 8, 8 | `Last-Modified`; when it was stored |
//! | 48 | 4 | CRC-32 of the key |
//! | 52, 54, 56 | 2, 2, 2 | milliseconds of an error; where the head of the response begins; where the body does |
//! | 58 | 1 + 128 | entity tag |
//! | 187 | 1 + 128 | `Vary` |
//! | 316 | 16 | variant: the MD5 that [`variant`](crate::policy::variant) makes |
//! | 332 | 4 | nothing |
//! | 336 | 6 | a line end and `KEY: ` |
//! | 342 | | the key, and a line end |
//! | | | the head of the response as the origin sent it |
//! | | | the body, without chunks |

use bytes::Bytes;
use tw_http::{Fields, HeaderName, Name, OriginHead, OriginLimits, Progress, date};

use super::layout::{is_field, is_status};
use super::{FormatError, Meta, Tags, WrittenBy};
use crate::Key;
use crate::policy::{self, Duties, IgnoredFields, Lifetime, NGINX_VARY_MAX, Rules};

/// `NGX_HTTP_CACHE_VERSION`
const VERSION: u64 = 5;

/// `sizeof(ngx_http_file_cache_header_t)`
const FIXED: usize = 336;

/// Room for an entity tag: `NGX_HTTP_CACHE_ETAG_LEN`.
const ETAG_MAX: usize = 128;

const KEY_MARK: &[u8] = b"\nKEY: ";

/// Returns `true` if a file begins like one of nginx's.
#[must_use]
pub fn is_nginx(input: &[u8]) -> bool {
    input.first_chunk() == Some(&VERSION.to_le_bytes())
}

/// Number of bytes from the start of such a file that [`decode`] needs; at most 64 KiB. `input` has at least the
/// first 336.
///
/// # Errors
/// The file is not one of nginx's.
pub fn needed(input: &[u8]) -> Result<usize, FormatError> {
    Header::of(input).map(|header| header.body_start)
}

/// Reads the part before the body; `file_size` is that of the whole file. Connection-specific fields are left out.
/// Cost: one MD5, and a copy of the fields; it is for taking a cache over, not for hits.
///
/// # Errors
/// The first fault found; [`FormatError::Head`] for a response that is not HTTP.
pub fn decode(input: &[u8], file_size: u64) -> Result<Meta, FormatError> {
    let header = Header::of(input)?;
    let input = input.get(..header.body_start).ok_or(FormatError::Short)?;
    let body_len = file_size.checked_sub(header.body_start as u64).ok_or(FormatError::Size)?;
    let (before, head) = input.split_at_checked(header.head_start).ok_or(FormatError::Length)?;
    let key_text = before
        .get(FIXED..)
        .and_then(|text| text.strip_prefix(KEY_MARK)?.strip_suffix(b"\n"))
        .ok_or(FormatError::KeyText)?;
    if crc32fast::hash(key_text) != u32::from_le_bytes(header.at(48)) {
        return Err(FormatError::KeyText);
    }
    let etag = header.text(58, ETAG_MAX)?;
    let vary = header.text(187, NGINX_VARY_MAX)?;
    let (status, status_line, fields) = response(head)?;
    let time = |at| Some(i64::from_le_bytes(header.at(at))).filter(|&time| time != -1);
    let seconds = |at| u32::try_from(i64::from_le_bytes(header.at(at)).max(0)).unwrap_or(u32::MAX);
    Ok(Meta {
        key: Key::of(key_text),
        variant: (!vary.is_empty()).then(|| Key(header.at(316))),
        key_text: Bytes::copy_from_slice(key_text),
        lifetime: Lifetime {
            responded: i64::from_le_bytes(header.at(40)),
            valid_until: i64::from_le_bytes(header.at(8)),
            stale_while_revalidate_s: seconds(16),
            stale_if_error_s: seconds(24),
            initial_age_s: 0,
            duties: Duties::NONE,
        },
        date: fields.get_known(HeaderName::Date).and_then(date::parse),
        last_modified: time(32),
        etag,
        status,
        status_line,
        fields,
        vary,
        tags: Tags::default(),
        sequence: 0,
        header_size: u32::try_from(header.body_start).unwrap_or(u32::MAX),
        body_len: Some(body_len),
        body_sum: None,
        writer: WrittenBy::Nginx,
    })
}

/// The head as the origin sent it.
fn response(head: &[u8]) -> Result<(u16, Bytes, Fields), FormatError> {
    let mut origin = OriginHead::new();
    origin.push(head);
    let limits = OriginLimits::of_size(head.len());
    loop {
        if origin.parse(&limits) != Ok(Progress::Complete) {
            return Err(FormatError::Head);
        }
        if !origin.is_interim() {
            break;
        }
        origin.next_response();
    }
    if !origin.rest().is_empty() {
        return Err(FormatError::Head);
    }
    if !is_status(origin.status()) {
        return Err(FormatError::Status);
    }
    let mut fields = Fields::new();
    for field in origin.fields() {
        if !is_field(field.name, field.value) {
            return Err(FormatError::Field);
        }
        fields.append_copy(Name::Copy(field.name), field.value);
    }
    policy::exclude(&mut fields, &Rules::NGINX, IgnoredFields::NONE);
    Ok((origin.status(), Bytes::copy_from_slice(origin.status_line()), fields))
}

struct Header<'a> {
    bytes: &'a [u8; FIXED],
    head_start: usize,
    body_start: usize,
}

impl<'a> Header<'a> {
    fn of(input: &'a [u8]) -> Result<Self, FormatError> {
        if !is_nginx(input) {
            let is_short = VERSION.to_le_bytes().starts_with(input);
            return Err(if is_short { FormatError::Short } else { FormatError::Magic });
        }
        let bytes = input.first_chunk().ok_or(FormatError::Short)?;
        let mut all = Self { bytes, head_start: 0, body_start: 0 };
        all.head_start = usize::from(u16::from_le_bytes(all.at(54)));
        all.body_start = usize::from(u16::from_le_bytes(all.at(56)));
        let is_order = FIXED + KEY_MARK.len() < all.head_start && all.head_start < all.body_start;
        if is_order { Ok(all) } else { Err(FormatError::Length) }
    }

    fn at<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    /// A byte with a length, and room for the text.
    fn text(&self, at: usize, max: usize) -> Result<Bytes, FormatError> {
        let [len] = self.at(at);
        let text = self.bytes.get(at + 1..).and_then(|rest| rest.get(..usize::from(len)));
        let text = text.filter(|text| text.len() <= max).ok_or(FormatError::Length)?;
        if is_field(b"x", text) { Ok(Bytes::copy_from_slice(text)) } else { Err(FormatError::Field) }
    }
}
