//! Invariants for QPACK: instructions and field sections of any kind.
//!
//! The table keeps within its capacity, the result does not depend on how instructions are cut, no field is longer than the
//! section and the table make it, and fields that are encoded again are decoded to the same ones.

use std::ops::ControlFlow;

use tw_fields::encode_section;
use tw_http3::{DecodedSection, FIELD_CODING, QpackDecoder, QpackError};

/// Capacity of the table.
const CAPACITY: usize = 300;
/// Bit of the first byte of an operation that tells a section.
const SECTION: u8 = 1;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

pub(crate) fn check(data: &[u8]) {
    let whole = decode(data, usize::MAX);
    for size in [1, 3] {
        assert_eq!(decode(data, size), whole, "in pieces of {size}");
    }
}

/// Carries out operations: a byte that tells the kind, one with a length, so many bytes.
fn decode(mut data: &[u8], size: usize) -> Vec<Result<Fields, QpackError>> {
    let mut decoder = QpackDecoder::new(CAPACITY);
    let mut outcomes = Vec::new();
    while let Some((&[kind, len], rest)) = data.split_first_chunk() {
        let (bytes, rest) = rest.split_at(rest.len().min(len.into()));
        data = rest;
        let outcome = match kind & SECTION {
            0 => {
                let mut pieces = bytes.chunks(size.min(bytes.len().max(1)));
                pieces.try_for_each(|piece| decoder.receive(piece)).map(|()| Fields::new())
            }
            _ => section(&mut decoder, bytes),
        };
        let (table, allocated) = decoder.sizes();
        assert!(table <= CAPACITY && allocated <= 2 * CAPACITY + 17_000);
        let has_failed = outcome.is_err();
        outcomes.push(outcome);
        if has_failed {
            break;
        }
    }
    outcomes
}

fn section(decoder: &mut QpackDecoder, bytes: &[u8]) -> Result<Fields, QpackError> {
    let mut fields = Fields::new();
    let mut take = |name: &[u8], value: &[u8]| {
        fields.push((name.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    match decoder.decode(4, bytes, &mut take)? {
        DecodedSection::Complete => {}
        DecodedSection::Blocked(required) => {
            assert!(required > decoder.inserted() && fields.is_empty());
            return Ok(fields);
        }
    }
    let size: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(size <= bytes.len() * CAPACITY);
    let mut again = Fields::new();
    let encoded = encode_section(
        &FIELD_CODING,
        |writer| fields.iter().for_each(|(name, value)| writer.push(name, value)),
        <[u8]>::to_vec,
    );
    let decoded = QpackDecoder::new(0).decode(0, &encoded, &mut |name, value| {
        again.push((name.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    assert_eq!(decoded, Ok(DecodedSection::Complete));
    let lower = fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    assert_eq!(lower.collect::<Fields>(), again);
    Ok(fields)
}
