//! Invariants for any bytes of an origin as a response head: no panic, equal results however the bytes are split, no
//! line end in a field, and fields that read equal in a request.

use bytes::Bytes;
use tw_http::{
    HeadLimits, Method, OriginHead, OriginLimits, Progress, RequestHead, RequestWriter, ResponseFraming,
    Version, hop,
};

/// Longest input that is split at every byte; longer ones are split at some.
const SPLIT_EVERYWHERE_MAX: usize = 200;

pub(crate) fn check(data: &[u8]) {
    for limits in [OriginLimits::of_size(4096), OriginLimits { head_size: 40, fields_count: 2 }] {
        let whole = outcome(&[data], &limits);
        let step = if data.len() <= SPLIT_EVERYWHERE_MAX { 1 } else { data.len() / 16 };
        for at in (0..data.len()).step_by(step) {
            let (first, second) = data.split_at(at);
            assert_eq!(outcome(&[first, second], &limits), whole, "split at {at}");
        }
        let bytes: Vec<&[u8]> = data.chunks(1).collect();
        assert_eq!(outcome(&bytes, &limits), whole, "byte by byte");
        assert_eq!(fed(data, &limits), whole, "fed");
    }
    assert!(hop::elements(data).all(|element| !element.is_empty() && !element.contains(&b',')));
}

/// Everything that can be seen of the responses in the pieces, as text.
fn outcome(pieces: &[&[u8]], limits: &OriginLimits) -> String {
    let mut description = String::new();
    let mut head = OriginHead::new();
    for piece in pieces {
        head.push(piece);
        loop {
            match head.parse(limits) {
                Ok(Progress::NeedMore) => break,
                Ok(Progress::Complete) => {
                    description.push_str(&describe(&head, limits));
                    head.next_response();
                }
                Err(error) => return format!("{description}{error:?} {}", head.error_text(error)),
            }
        }
    }
    description
}

/// Result of taking the heads out of the input.
fn fed(data: &[u8], limits: &OriginLimits) -> String {
    let mut description = String::new();
    let mut head = OriginHead::new();
    let mut input = Bytes::copy_from_slice(data);
    loop {
        match head.feed(&mut input, limits) {
            Ok(Progress::NeedMore) => return description,
            Ok(Progress::Complete) => {
                assert!(head.rest().is_empty());
                description.push_str(&describe(&head, limits));
                head.next_response();
            }
            Err(error) => {
                assert!(data.ends_with(&[head.rest(), &input].concat()));
                return format!("{description}{error:?} {}", head.error_text(error));
            }
        }
    }
}

fn describe(head: &OriginHead, limits: &OriginLimits) -> String {
    assert!((100..=999).contains(&head.status()) && head.version() >= Version::HTTP_10);
    assert!(head.head_len() <= limits.head_size && head.field_count() <= limits.fields_count);
    let is_clean = |bytes: &[u8]| !bytes.iter().any(|&byte| byte < b' ' && byte != b'\t' || byte == 0x7f);
    assert!(is_clean(head.status_line()));
    for field in head.fields() {
        assert!(is_clean(field.value) && !field.name.is_empty());
        assert!(head.field_all(field.name).any(|one| one == field.value));
    }
    let methods = [Method::Get, Method::Head, Method::Connect];
    for method in methods {
        let framing = head.framing(method);
        let ends = !matches!(framing, ResponseFraming::Close | ResponseFraming::Tunnel);
        assert!(ends || !head.keeps_alive(method));
        assert!(method != Method::Head || matches!(framing, ResponseFraming::None | ResponseFraming::Tunnel));
    }
    written_again(head);

    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let fields: Vec<_> = head.fields().map(|field| text(field.name) + ": " + &text(field.value)).collect();
    let duplicates: Vec<_> = head.duplicates().map(|duplicate| duplicate.to_string()).collect();
    format!(
        "{} {:?} {} | {:?} {:?} {:?} {} | {fields:?} {duplicates:?}\n",
        text(head.status_line()),
        head.version(),
        head.head_len(),
        methods.map(|method| head.framing(method)),
        methods.map(|method| head.keeps_alive(method)),
        head.content_length(),
        head.is_interim(),
    )
}

/// Fields that are written to an origin are read there as they were meant.
fn written_again(head: &OriginHead) {
    let mut out = Vec::new();
    let Ok(mut writer) = RequestWriter::begin(&mut out, b"PUT", b"/", Version::HTTP_11) else {
        unreachable!()
    };
    let mut meant = vec![(b"Host".to_vec(), b"a".to_vec())];
    assert!(writer.field(b"Host", b"a").is_ok());
    for field in head.fields() {
        if writer.field(field.name, field.value).is_ok() {
            meant.push((field.name.to_vec(), field.value.to_vec()));
        }
    }
    let framing = writer.end();

    let mut request = RequestHead::new();
    request.push(&out);
    let limits = HeadLimits {
        client_header_buffer_size: 1 << 20,
        max_headers: usize::MAX,
        ignore_invalid_headers: false,
        underscores_in_headers: true,
        ..HeadLimits::default()
    };
    match request.parse(&limits) {
        Ok(Progress::Complete) => {
            let read: Vec<_> =
                request.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            assert_eq!(read, meant);
            assert_eq!((request.framing(), request.rest()), (framing, &b""[..]));
        }
        // Fields that a request has once.
        Err(error) => assert!(matches!(error, tw_http::HeadError::DuplicateHeader(_)), "{error:?}"),
        Ok(Progress::NeedMore) => panic!("a whole head is not complete"),
    }
}
