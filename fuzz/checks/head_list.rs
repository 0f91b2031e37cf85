//! Invariants for any fields received as a list (HTTP/2): no panic, every field reads as it was sent, and the target
//! means the same as in HTTP/1.
//!
//! Lines of the input: method, `:path`, `:authority` (`-` for none), then names and values with a colon between them.

use tw_http::{Content, HeadLimits, Progress, PseudoFields, RequestHead, Version};

pub(crate) fn check(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let (method, target, authority) = (next(), next(), next());
    let authority = (authority != b"-").then_some(authority);
    let tight = HeadLimits {
        large_buffers_count: 2,
        large_buffer_size: 40,
        max_headers: 3,
        ignore_invalid_headers: false,
        underscores_in_headers: true,
        merge_slashes: false,
        ..HeadLimits::default()
    };
    let fields: Vec<(&[u8], &[u8])> = lines
        .map(|line| {
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            (&line[..colon], line.get(colon + 1..).unwrap_or_default())
        })
        .collect();
    for limits in [HeadLimits::default(), tight] {
        for content in [Content::None, Content::Follows] {
            one(
                &PseudoFields { method, target, authority, version: Version::HTTP_2 },
                &fields,
                content,
                &limits,
            );
        }
    }
}

fn one(pseudo: &PseudoFields<'_>, fields: &[(&[u8], &[u8])], content: Content, limits: &HeadLimits) {
    let mut head = RequestHead::new();
    let built = head.begin_list(pseudo, limits).and_then(|()| {
        fields.iter().try_for_each(|(name, value)| head.push_listed(name, value, limits))?;
        head.end_list(content, limits)
    });
    let pairs: Vec<_> = head.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    if let Err(error) = built {
        assert!(!head.error_text(error).to_string().is_empty());
        return;
    }
    assert_eq!(head.read_len(), head.head_len());
    assert!(head.rest().is_empty() && head.path().starts_with(b"/"));
    for (name, value) in &pairs {
        let is_sent = |(sent, what): &(&[u8], &[u8])| *sent == &name[..] && what.trim_ascii() == &value[..];
        let is_joined = name == b"cookie" || name == b"host";
        assert!(is_joined || fields.iter().any(is_sent), "{name:?}: {value:?}");
    }
    let mut copy = RequestHead::new();
    copy.copy_head(&head);
    assert_eq!((copy.path(), copy.args(), copy.host()), (head.path(), head.args(), head.host()));
    let mut line = [pseudo.method, b" ", pseudo.target, b" HTTP/1.1\r\nHost: "].concat();
    line.extend_from_slice(head.host().unwrap_or_default());
    line.extend_from_slice(b"\r\n\r\n");
    let mut other = RequestHead::new();
    other.push(&line);
    if let Ok(Progress::Complete) =
        other.parse(&HeadLimits { merge_slashes: limits.merge_slashes, ..HeadLimits::default() })
    {
        assert_eq!((other.path(), other.args(), other.host()), (head.path(), head.args(), head.host()));
    }
}
