//! Invariants for any value of `Range`, of a conditional field or of a date: no panic, ranges inside the
//! representation, a multipart body of the announced length.

use tw_http::condition::if_range_holds;
use tw_http::{
    ByteRange, Conditions, IfModifiedSince, MaxRanges, Multipart, Precedence, RangeOutcome, Validators, date,
    range,
};

const LENGTHS: [u64; 7] = [0, 1, 36, 10_000, 1 << 40, i64::MAX as u64, u64::MAX];

pub(crate) fn check(data: &[u8]) {
    let mut ranges = Vec::new();
    for length in LENGTHS {
        for max in [MaxRanges::Unlimited, MaxRanges::At(0), MaxRanges::At(1), MaxRanges::At(3)] {
            match range::parse(data, length, max, &mut ranges) {
                RangeOutcome::Whole | RangeOutcome::NotSatisfiable => {}
                RangeOutcome::Single(range) => inside(range, length),
                RangeOutcome::Multiple => {
                    assert!(ranges.len() > 1);
                    assert!(!matches!(max, MaxRanges::At(max) if ranges.len() > max as usize));
                    ranges.iter().for_each(|&range| inside(range, length));
                    assert!(ranges.iter().map(ByteRange::len).sum::<u64>() <= length);
                    multipart(&ranges, length);
                }
            }
        }
    }
    conditions(data);
}

fn inside(range: ByteRange, length: u64) {
    assert!(range.start < range.end && range.end <= length);
}

fn multipart(ranges: &[ByteRange], length: u64) {
    let multipart = Multipart::new(length, b"text/plain; charset=utf-8", length);
    let mut heads = Vec::new();
    for &range in ranges {
        multipart.push_part_head(range, &mut heads);
    }
    multipart.push_end(&mut heads);
    let data: u64 = ranges.iter().map(ByteRange::len).sum();
    assert_eq!(multipart.body_len(ranges), data.saturating_add(heads.len() as u64));
}

fn conditions(data: &[u8]) {
    if let Some(seconds) = date::parse(data)
        && seconds >= 0
    {
        assert_eq!(date::parse(&date::format(seconds)), Some(seconds));
    }

    let response = Validators { etag: Some(b"\"6553f100-24\""), last_modified: Some(1_700_000_000) };
    let all = Conditions {
        if_match: Some(data),
        if_none_match: Some(data),
        if_modified_since: Some(data),
        if_unmodified_since: Some(data),
    };
    all.evaluate(&response, IfModifiedSince::Before, Precedence::Rfc9110);
    let tags = Conditions { if_none_match: Some(data), ..Conditions::default() };
    let tagged = Validators { etag: Some(data), last_modified: None };
    tags.evaluate(&tagged, IfModifiedSince::Exact, Precedence::Nginx);
    if_range_holds(data, &response);
}
