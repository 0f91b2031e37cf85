//! Invariants for any bytes of a client as a request head: no panic, equal results however the bytes are split, and a
//! normal path.

use tw_http::{Escape, HeadLimits, Progress, RequestHead, target};

/// Longest input that is split at every byte; longer ones are split at some.
const SPLIT_EVERYWHERE_MAX: usize = 200;

pub(crate) fn check(data: &[u8]) {
    let tight = HeadLimits {
        client_header_buffer_size: 24,
        large_buffers_count: 2,
        large_buffer_size: 40,
        max_headers: 3,
        ignore_invalid_headers: false,
        underscores_in_headers: true,
        merge_slashes: false,
        allow_connect: true,
    };
    for limits in [HeadLimits::default(), tight] {
        let whole = outcome(&[data], &limits);
        let step = if data.len() <= SPLIT_EVERYWHERE_MAX { 1 } else { data.len() / 16 };
        for at in (0..data.len()).step_by(step) {
            let (first, second) = data.split_at(at);
            assert_eq!(outcome(&[first, second], &limits), whole, "split at {at}");
        }
        let bytes: Vec<&[u8]> = data.chunks(1).collect();
        assert_eq!(outcome(&bytes, &limits), whole, "byte by byte");
    }
    normalisation(data);
}

/// Everything that can be seen of the requests in the pieces, as text.
fn outcome(pieces: &[&[u8]], limits: &HeadLimits) -> String {
    let mut description = String::new();
    let mut head = RequestHead::new();
    for piece in pieces {
        head.push(piece);
        loop {
            match head.parse(limits) {
                Ok(Progress::NeedMore) => break,
                Ok(Progress::Complete) => {
                    description.push_str(&describe(&head));
                    head.next_request();
                }
                Err(error) => {
                    let line = head.request_line().escape_ascii();
                    assert!(matches!(error.status(), 400 | 405 | 414 | 494 | 501 | 505));
                    // The request line of a bad request is what arrived of it so far: not the same for all splits.
                    assert!(line.count() <= head.request_line().len() * 4);
                    return format!("{description}{error:?}");
                }
            }
        }
    }
    description
}

fn describe(head: &RequestHead) -> String {
    assert!(head.path().starts_with(b"/"));
    assert!(head.path().ends_with(head.exten()));
    assert!(head.host().is_none_or(|host| !host.is_empty() && !host.iter().any(u8::is_ascii_uppercase)));
    for (name, value) in head.fields() {
        assert!(head.field_all(name).any(|one| one == value));
        assert_eq!(
            head.field_all(name).next(),
            str::from_utf8(name).ok().map_or(head.field_all(name).next(), |name| head.field(name))
        );
    }
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let fields: Vec<_> = head.fields().map(|(name, value)| text(name) + ": " + &text(value)).collect();
    let ignored: Vec<_> = head.ignored_lines().map(text).collect();
    format!(
        "{} | {} {} ? {} . {} {:?} | {:?} {:?} {:?} {:?} | {:?} {} {} {} | {fields:?} {ignored:?}\n",
        text(head.request_line()),
        text(head.method_bytes()),
        text(head.path()),
        text(head.args()),
        text(head.exten()),
        head.scheme().map(text),
        text(head.target()),
        head.host().map(text),
        head.host_port(),
        text(head.protocol()),
        head.framing(),
        head.keep_alive(),
        head.expect_continue(),
        head.head_len(),
    )
}

/// A normalised path stays as it is when it is escaped and normalised again.
fn normalisation(data: &[u8]) {
    for merge_slashes in [true, false] {
        let mut path = Vec::new();
        let Ok(parts) = target::normalize(data, merge_slashes, &mut path) else { continue };
        assert!(parts.exten.end <= path.len() && parts.args.end <= data.len());
        let scanned = target::scan(data);
        if scanned.is_normal {
            assert_eq!(&data[..scanned.path_len], path);
            assert_eq!(scanned.parts, parts);
        }
        if path.starts_with(b"/") {
            let (mut escaped, mut again) = (Vec::new(), Vec::new());
            Escape::Uri.push(&path, &mut escaped);
            assert!(target::normalize(&escaped, merge_slashes, &mut again).is_ok());
            assert_eq!(again, path);
        }
    }
}
