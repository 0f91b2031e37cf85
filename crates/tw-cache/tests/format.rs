//! File of an entry: its bytes equal the golden ones, every kind of damage is found, and files of nginx are read.
//!
//! `UPDATE=1` writes the golden files anew. They change with the version of the format and never without it.

use std::path::PathBuf;

use bytes::Bytes;
use tw_cache::format::{
    BODY_BLOCK, BlockSums, BodySums, ETAG_MAX, EncodeError, FormatError, HEADER_UNIT, KEY_TEXT_MAX, Tags,
    WrittenBy, decode, encode, needed, nginx, patch, place,
};
use tw_cache::policy::{Duties, Lifetime, Response, Rules, StoreSettings, may_store, variant};
use tw_cache::{Key, Meta};
use tw_http::{Fields, HeaderName, Method, Name};

const KEY_TEXT: &[u8] = b"http://example.com/";

/// Response with only the mandatory parts.
fn plain() -> Meta {
    let mut fields = Fields::new();
    fields.append(HeaderName::ContentType, "text/plain");
    Meta {
        key: Key::of(KEY_TEXT),
        variant: None,
        key_text: Bytes::from_static(KEY_TEXT),
        lifetime: Lifetime {
            responded: 784_111_777,
            valid_until: 784_111_837,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            initial_age_s: 0,
            duties: Duties::NONE,
        },
        date: None,
        last_modified: None,
        etag: Bytes::new(),
        status: 200,
        status_line: Bytes::new(),
        fields,
        vary: Bytes::new(),
        tags: Tags::default(),
        sequence: 7,
        header_size: 512,
        body_len: Some(5),
        body_sum: Some(crc32fast::hash(b"hello")),
        writer: WrittenBy::Tailwater,
    }
}

/// A response with everything.
fn full() -> Meta {
    let mut meta = plain();
    for (name, value) in [
        ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("last-modified", "Sun, 06 Nov 1994 08:00:00 GMT"),
        ("ETag", "\"v1\""),
        ("Vary", "Accept-Encoding"),
        ("X-Empty", ""),
        ("X-Twice", "1"),
        ("x-twice", "2\t\u{e9}"),
    ] {
        meta.fields.append_copy(Name::Copy(name.as_bytes()), value.as_bytes());
    }
    meta.lifetime.stale_while_revalidate_s = 30;
    meta.lifetime.stale_if_error_s = u32::MAX;
    meta.lifetime.initial_age_s = 12;
    meta.lifetime.duties = Duties::NEVER_STALE | Duties::IMMUTABLE;
    meta.date = Some(784_111_777);
    meta.last_modified = Some(-1);
    meta.etag = Bytes::from_static(b"\"v1\"");
    meta.status = 404;
    meta.status_line = Bytes::from_static(b"404 Nothing Here");
    meta.vary = Bytes::from_static(b"Accept-Encoding");
    meta.variant = Some(meta.key.variant(b"accept-encoding:gzip\r\n"));
    meta.tags = Tags::of([&b"product-7"[..], b"news"]).expect("short tags");
    meta.sequence = 0x0102_0304_0506_0708;
    meta.body_len = Some(1 << 40);
    meta.body_sum = Some(0x0102_0304);
    meta.header_size = place(&meta).expect("a small header");
    meta
}

fn encoded(meta: &Meta) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(meta, &mut bytes).expect("a header with a place");
    assert_eq!(bytes.len(), meta.header_size as usize);
    bytes
}

fn file_size(meta: &Meta) -> u64 {
    meta.stored_len().expect("a complete body")
}

/// Everything that can be seen of it.
fn description(meta: &Meta) -> String {
    let fields: Vec<_> = meta
        .fields
        .iter()
        .map(|(name, value)| format!("{}: {}", name.escape_ascii(), value.escape_ascii()))
        .collect();
    let tags: Vec<_> = meta.tags.iter().map(|tag| tag.escape_ascii().to_string()).collect();
    let rest = Meta { fields: Fields::new(), ..meta.clone() };
    format!("{rest:?} {fields:?} {tags:?}")
}

fn read(bytes: &[u8], file_size: u64) -> Result<Meta, FormatError> {
    decode(&Bytes::copy_from_slice(bytes), file_size)
}

#[test]
fn golden_files() {
    for (name, meta) in [("plain", plain()), ("full", full())] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let bytes = encoded(&meta);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        let golden = std::fs::read(&path).unwrap();
        assert!(bytes == golden, "{name} is encoded as other bytes than {}", path.display());
        let again = read(&golden, file_size(&meta)).unwrap();
        assert_eq!(description(&again), description(&meta), "{name}");
        let used = needed(&golden).unwrap();
        assert_eq!(
            description(&read(&golden[..used], file_size(&meta)).unwrap()),
            description(&meta),
            "{name}"
        );
    }
}

#[test]
fn every_truncation_is_found() {
    let meta = full();
    let bytes = encoded(&meta);
    let used = needed(&bytes).unwrap();
    for len in 0..used {
        assert_eq!(read(&bytes[..len], file_size(&meta)).err(), Some(FormatError::Short), "{len}");
        assert!(read(&bytes[..len], len as u64).is_err(), "{len}");
    }
    for size in [0, 1, file_size(&meta) - 1, file_size(&meta) + 1, u64::MAX] {
        assert_eq!(read(&bytes, size).err(), Some(FormatError::Size), "{size}");
    }
}

#[test]
fn every_bit_that_flips_is_found() {
    let meta = full();
    let bytes = encoded(&meta);
    let used = needed(&bytes).unwrap();
    for bit in 0..used * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&flipped, file_size(&meta)).is_err(), "bit {bit}");
    }
    // Bytes behind the header are ignored: they may be left of a longer header.
    let mut other = bytes;
    other[used..].fill(0xff);
    assert_eq!(description(&read(&other, file_size(&meta)).unwrap()), description(&meta));
}

/// Writes another number over the header, with the checksum it would have.
fn forged(at: usize, number: &[u8]) -> Result<Meta, FormatError> {
    let meta = full();
    let mut bytes = encoded(&meta);
    let used = needed(&bytes).expect("a header");
    bytes[at..at + number.len()].copy_from_slice(number);
    let mut sum = crc32fast::Hasher::new();
    sum.update(&bytes[..20]);
    sum.update(&bytes[40..used]);
    bytes[20..24].copy_from_slice(&sum.finalize().to_le_bytes());
    read(&bytes, file_size(&meta))
}

#[test]
fn invalid_header_with_a_valid_checksum_is_refused() {
    assert!(forged(124, &200u16.to_le_bytes()).is_ok());
    let table: &[(usize, &[u8], FormatError)] = &[
        (0, b"\xf7twcachE", FormatError::Magic),
        (8, &[3, 0], FormatError::Version),
        (8, &[0, 0], FormatError::Version),
        (8, &[1, 0], FormatError::StateChecksum),
        (10, &[0x80], FormatError::Reserved),
        (11, &[0x80], FormatError::Reserved),
        (11, &[6], FormatError::Reserved),
        (11, &[5], FormatError::Reserved),
        (11, &[3], FormatError::Reserved),
        (12, &511u32.to_le_bytes(), FormatError::Length),
        (12, &0u32.to_le_bytes(), FormatError::Length),
        (12, &(1u32 << 31).to_le_bytes(), FormatError::Length),
        (16, &143u32.to_le_bytes(), FormatError::Length),
        (16, &u32::MAX.to_le_bytes(), FormatError::Length),
        (40, &[0; 16], FormatError::StateChecksum),
        (72, &[0; 8], FormatError::StateChecksum),
        (124, &304u16.to_le_bytes(), FormatError::Status),
        (124, &199u16.to_le_bytes(), FormatError::Status),
        (124, &1000u16.to_le_bytes(), FormatError::Status),
        (126, &u16::MAX.to_le_bytes(), FormatError::Length),
        (132, &u32::MAX.to_le_bytes(), FormatError::Length),
        (132, &18u32.to_le_bytes(), FormatError::Length),
        (136, &0u32.to_le_bytes(), FormatError::Length),
        (140, &u16::MAX.to_le_bytes(), FormatError::Length),
        (140, &7u16.to_le_bytes(), FormatError::Length),
        (142, &[1], FormatError::Reserved),
        (163, b"\n", FormatError::Field),
    ];
    for (at, number, expected) in table {
        assert_eq!(forged(*at, number).err(), Some(*expected), "{number:?} at {at}");
    }
}

#[test]
fn a_fill_ends_with_a_patch() {
    let meta = Meta { body_len: None, ..plain() };
    let mut bytes = encoded(&meta);
    assert_eq!(read(&bytes, 512 + 9).err(), Some(FormatError::Unfinished));
    let patch = patch(meta.key, meta.sequence, 9, 77);
    let at = patch.at as usize;
    bytes[at..at + patch.bytes.len()].copy_from_slice(&patch.bytes);
    let again = read(&bytes, 512 + 9).unwrap();
    assert_eq!((again.body_len, again.body_sum, again.stored_len()), (Some(9), Some(77), Some(521)));
    assert_eq!(bytes, encoded(&Meta { body_len: Some(9), body_sum: Some(77), ..meta.clone() }));

    // The end of another fill is none of this one.
    let other = tw_cache::format::patch(meta.key, meta.sequence + 1, 9, 77);
    bytes[at..at + other.bytes.len()].copy_from_slice(&other.bytes);
    assert_eq!(read(&bytes, 512 + 9).err(), Some(FormatError::StateChecksum));
}

/// A whole file with this body.
fn file(mut meta: Meta, body: &[u8]) -> Vec<u8> {
    let mut sums = BodySums::default();
    sums.push(body);
    let sums = sums.finish();
    (meta.body_len, meta.body_sum) = (Some(body.len() as u64), Some(sums.sum));
    let file = [encoded(&meta).as_slice(), body, &sums.table].concat();
    assert_eq!(meta.stored_len(), Some(file.len() as u64));
    file
}

/// Reads a whole file and compares all its checksums; returns the length of the body.
fn verified(file: &[u8]) -> Result<usize, FormatError> {
    let meta = read(file, file.len() as u64)?;
    let table = meta.table_at().map_or(0..0, |at| at.start as usize..at.end as usize);
    let sums = BlockSums::read(&meta, &file[table])?.expect("a file of version 2");
    let start = meta.header_size as usize;
    let body = &file[start..start + meta.body_len.expect("a complete body") as usize];
    let is_whole =
        body.chunks(BODY_BLOCK as usize).enumerate().all(|(nth, block)| sums.matches(nth as u64, block));
    if is_whole { Ok(body.len()) } else { Err(FormatError::Body) }
}

fn long_body(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn every_bit_that_flips_in_a_file_is_found() {
    let body = long_body(2 * BODY_BLOCK as usize + 100);
    for body in [&b"hello"[..], &body] {
        let good = file(plain(), body);
        assert_eq!(verified(&good), Ok(body.len()));
        let used = needed(&good).unwrap();
        let start = 512;
        let end = 512 + body.len();
        // All bytes of a small file are flipped; in a longer one those at the edges of blocks, and in the table.
        let is_near =
            |at: usize| body.len() < 100 || (at - start + 2) % BODY_BLOCK as usize <= 4 || at + 2 > end;
        let places = (0..used).chain((start..end).filter(|at| is_near(*at))).chain(end..good.len());
        let mut flips = 0;
        for at in places {
            for bit in 0..8 {
                let mut flipped = good.clone();
                flipped[at] ^= 1 << bit;
                let expected = match at {
                    _ if at >= end => Some(FormatError::Table),
                    _ if at >= start => Some(FormatError::Body),
                    _ => None,
                };
                let format_error = verified(&flipped).expect_err("a flipped bit");
                assert!(expected.is_none_or(|expected| expected == format_error), "{at}: {format_error}");
                flips += 1;
            }
        }
        assert!(flips > 8 * used);
        for len in [0, 1, start, end - 1, good.len() - 1] {
            assert!(verified(&good[..len]).is_err(), "{len}");
        }
    }
}

#[test]
fn blocks_and_tables_belong_to_their_places() {
    let block = BODY_BLOCK as usize;
    let body = long_body(3 * block + 5);
    let good = file(plain(), &body);
    let mut swapped = good.clone();
    swapped[512..512 + block].copy_from_slice(&good[512 + block..512 + 2 * block]);
    assert_eq!(verified(&swapped), Err(FormatError::Body));
    // The table of another body of the same length.
    let other = file(plain(), &vec![b'x'; body.len()]);
    let mut mixed = good.clone();
    mixed[512 + body.len()..].copy_from_slice(&other[512 + body.len()..]);
    assert_eq!(verified(&mixed), Err(FormatError::Table));
    // The state of another body.
    let mut mixed = good;
    mixed[36..40].copy_from_slice(&other[36..40]);
    assert_eq!(verified(&mixed), Err(FormatError::StateChecksum));
}

#[test]
fn files_of_version_1_are_read_and_updated() {
    for (name, mut meta) in [("plain-1", plain()), ("full-1", full())] {
        meta.body_sum = None;
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let golden = std::fs::read(path).unwrap();
        let again = read(&golden, file_size(&meta)).unwrap();
        assert_eq!(description(&again), description(&meta), "{name}");
        assert_eq!((again.table_at(), BlockSums::read(&again, b"")), (None, Ok(None)));
        let body_len = again.body_len.unwrap();
        assert_eq!(again.stored_len(), Some(u64::from(again.header_size) + body_len));
        // A 304 does not make checksums of a body that it does not read.
        let mut validated = again;
        validated.lifetime.valid_until += 60;
        let updated = encoded(&validated);
        assert_eq!(updated[8..10], [1, 0]);
        assert_eq!(
            description(&read(&updated, file_size(&meta)).unwrap()),
            description(&validated),
            "{name}"
        );
    }
}

#[test]
fn a_304_overwrites_the_header_or_needs_a_new_file() {
    let mut meta = plain();
    meta.header_size = place(&meta).unwrap();
    assert_eq!(meta.header_size, HEADER_UNIT);
    let old = encoded(&meta);
    meta.lifetime.valid_until += 60;
    meta.fields.append(HeaderName::Date, "Sun, 06 Nov 1994 08:49:37 GMT");
    let new = encoded(&meta);
    assert_eq!(new.len(), old.len());
    assert_eq!(description(&read(&new, file_size(&meta)).unwrap()), description(&meta));

    meta.fields.append("X-Long", Bytes::from(vec![b'a'; 400]));
    let mut out = b"x".to_vec();
    assert_eq!(encode(&meta, &mut out), Err(EncodeError::NoRoom));
    assert_eq!(out, b"x");
    assert_eq!(place(&meta), Ok(2 * HEADER_UNIT));
    assert_eq!(encode(&Meta { writer: WrittenBy::Nginx, ..plain() }, &mut out), Err(EncodeError::NoRoom));
}

#[test]
fn oversized_metadata_is_refused() {
    let with = |change: &dyn Fn(&mut Meta)| {
        let mut meta = plain();
        change(&mut meta);
        place(&meta)
    };
    let long = |len| Bytes::from(vec![b'a'; len]);
    assert!(with(&|meta| meta.key_text = long(KEY_TEXT_MAX)).is_ok());
    assert_eq!(with(&|meta| meta.key_text = long(KEY_TEXT_MAX + 1)), Err(EncodeError::TooLong));
    assert_eq!(with(&|meta| meta.etag = long(ETAG_MAX + 1)), Err(EncodeError::TooLong));
    assert_eq!(with(&|meta| meta.fields.append("X", long(1 << 20))), Err(EncodeError::TooLong));
    assert_eq!(with(&|meta| meta.fields.append("X", "a\r\nb")), Err(EncodeError::Fields));
    assert_eq!(with(&|meta| meta.fields.append("X Y", "a")), Err(EncodeError::Fields));
    assert_eq!(with(&|meta| (0..1000).for_each(|_| meta.fields.append("X", "a"))), Err(EncodeError::Fields));
    assert_eq!(with(&|meta| meta.status = 304), Err(EncodeError::Status));
    assert_eq!(with(&|meta| meta.status_line = Bytes::from_static(b"200 a\nb")), Err(EncodeError::Status));
}

/// A file of nginx, made by its layout.
fn of_nginx(key: &[u8], vary: &[u8], head: &[u8], body: &[u8]) -> Vec<u8> {
    let head_start = 336 + 6 + key.len() + 1;
    let mut file = vec![0; 336];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &5u64.to_le_bytes());
    put(8, &784_111_837i64.to_le_bytes());
    put(16, &30i64.to_le_bytes());
    put(24, &i64::MAX.to_le_bytes());
    put(32, &(-1i64).to_le_bytes());
    put(40, &784_111_777i64.to_le_bytes());
    put(48, &crc32fast::hash(key).to_le_bytes());
    put(54, &(head_start as u16).to_le_bytes());
    put(56, &((head_start + head.len()) as u16).to_le_bytes());
    put(58, &[4]);
    put(59, b"\"v1\"");
    put(187, &[vary.len() as u8]);
    put(188, vary);
    let mut request = Fields::new();
    request.append("Accept-Encoding", "gzip,  br");
    put(316, &variant(Key::of(key), vary, &(Method::Get, &request), &Rules::NGINX).0);
    for part in [b"\nKEY: ", key, b"\n", head, body] {
        file.extend_from_slice(part);
    }
    file
}

const HEAD: &[u8] =
    b"HTTP/1.1 200 Fine\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nTransfer-Encoding: chunked\r\n\
    Connection: close, X-Hop\r\nX-Hop: 1\r\nETag: \"v1\"\r\nX-a: b\r\n\r\n";

#[test]
fn files_of_nginx_are_read() {
    let file = of_nginx(KEY_TEXT, b"Accept-Encoding", HEAD, b"hello");
    assert!(nginx::is_nginx(&file) && !nginx::is_nginx(&encoded(&plain())));
    let start = nginx::needed(&file).unwrap();
    assert_eq!(&file[start..], b"hello");
    let meta = nginx::decode(&file[..start], file.len() as u64).unwrap();
    assert_eq!((meta.key, &meta.key_text[..]), (Key::of(KEY_TEXT), KEY_TEXT));
    assert_eq!(meta.variant, Some(Key::of(KEY_TEXT).variant(b"accept-encoding:gzip,br\r\n")));
    assert_eq!(
        (meta.status, &meta.status_line[..], &meta.vary[..]),
        (200, &b"200 Fine"[..], &b"Accept-Encoding"[..])
    );
    let lifetime = Lifetime {
        responded: 784_111_777,
        valid_until: 784_111_837,
        stale_while_revalidate_s: 30,
        stale_if_error_s: u32::MAX,
        initial_age_s: 0,
        duties: Duties::NONE,
    };
    assert_eq!(meta.lifetime, lifetime);
    assert_eq!((meta.date, meta.last_modified, &meta.etag[..]), (Some(784_111_777), None, &b"\"v1\""[..]));
    assert_eq!((meta.body_len, meta.header_size as usize, meta.writer), (Some(5), start, WrittenBy::Nginx));
    let names: Vec<_> = meta.fields.iter().map(|(name, _)| str::from_utf8(name).unwrap()).collect();
    assert_eq!(names, ["Date", "ETag", "X-a"]);

    // Moved into a file of ours.
    let mut ours = Meta { writer: WrittenBy::Tailwater, ..meta };
    ours.header_size = place(&ours).unwrap();
    assert_eq!(description(&read(&encoded(&ours), file_size(&ours)).unwrap()), description(&ours));
}

/// Two variants of one response, as nginx 1.22.1 has written them. The second one is named by the key of its variant.
#[test]
fn files_that_nginx_has_written_are_read() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, accepts) in [("nginx-1.22-gzip-br", "gzip,  br"), ("nginx-1.22-br", "br")] {
        let file = std::fs::read(folder.join(name)).unwrap();
        let start = nginx::needed(&file).unwrap();
        assert_eq!(&file[start..], b"hello\n");
        let meta = nginx::decode(&file[..start], file.len() as u64).unwrap();
        assert_eq!((&meta.key_text[..], meta.key), (&b"/a"[..], Key::of(b"/a")));
        let mut request = Fields::new();
        request.append("accept-encoding", accepts);
        let expected = variant(meta.key, &meta.vary, &(Method::Get, &request), &Rules::NGINX);
        assert_eq!(meta.variant, Some(expected), "{name}");
        assert_eq!((&meta.etag[..], &meta.vary[..]), (&b"\"v1\""[..], &b"Accept-Encoding"[..]));
        assert_eq!((meta.status, &meta.status_line[..]), (200, &b"200 OK"[..]));
        assert_eq!(meta.lifetime.valid_until - meta.lifetime.responded, 1000);
        assert_eq!((meta.lifetime.stale_while_revalidate_s, meta.lifetime.stale_if_error_s), (30, 30));
        assert_eq!((meta.date, meta.last_modified), (Some(meta.lifetime.responded), None));
        let expected = may_store(
            &(Method::Get, &request),
            &Response { status: 200, fields: &meta.fields, request_time: 0, is_slice: false },
            meta.lifetime.responded,
            &Rules::NGINX,
            &StoreSettings::default(),
        );
        assert_eq!(expected, Ok(meta.lifetime), "{name}");
    }
    let br = Key::of(b"/a").variant(b"accept-encoding:br\r\n");
    assert_eq!(&br.hex(), b"8ba8bb5a09a87f36add9fd0f95402f23");
}

#[test]
fn damaged_nginx_files_are_refused() {
    let good = of_nginx(KEY_TEXT, b"", HEAD, b"hello");
    let start = nginx::needed(&good).unwrap();
    assert_eq!(nginx::decode(&good, good.len() as u64).unwrap().variant, None);
    for len in 0..start {
        assert_eq!(nginx::decode(&good[..len], good.len() as u64).err(), Some(FormatError::Short), "{len}");
    }
    assert_eq!(nginx::decode(&good, start as u64 - 1).err(), Some(FormatError::Size));
    let table: &[(usize, &[u8], FormatError)] = &[
        (0, &[4], FormatError::Magic),
        (48, &[0; 4], FormatError::KeyText),
        (54, &[0; 2], FormatError::Length),
        (54, &[87, 1], FormatError::KeyText),
        (56, &[0; 2], FormatError::Length),
        (58, &[129], FormatError::Length),
        (59, b"\n", FormatError::Field),
        (187, &[129], FormatError::Length),
        (336, b"x", FormatError::KeyText),
        (343, b"x", FormatError::KeyText),
    ];
    for (at, bytes, expected) in table {
        let mut file = good.clone();
        file[*at..*at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(nginx::decode(&file, file.len() as u64).err(), Some(*expected), "{bytes:?} at {at}");
    }
    for (head, expected) in [
        (&b"Status: 200 OK\r\n\r\n"[..], FormatError::Head),
        (b"\x01\x06\0\x01\0\x20\0\0Status: 200 OK\r\n\r\n", FormatError::Head),
        (b"HTTP/1.1 200 OK\r\n", FormatError::Head),
        (b"HTTP/1.1 200 OK\r\n\r\nx", FormatError::Head),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", FormatError::Status),
    ] {
        let file = of_nginx(KEY_TEXT, b"", head, b"");
        assert_eq!(nginx::decode(&file, file.len() as u64).err(), Some(expected), "{}", head.escape_ascii());
    }
}
