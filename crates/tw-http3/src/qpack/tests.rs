//! The examples of RFC 9204, appendix B; each rule of the decoder; splits; random input.

use std::ops::ControlFlow;

use tw_fields::encode_section;

use super::decoder_stream::DecoderStream;
use super::{DecodedSection, Decoder, Error, FIELD_CODING, statics};
use crate::config::{DECODER_OUT_MAX, INSTRUCTION_MAX, TABLE_CAPACITY};

type List = Vec<(Vec<u8>, Vec<u8>)>;

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn list(fields: &[(&str, &str)]) -> List {
    fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

/// Fields of a section, or the number of insertions that it waits for.
fn decode(decoder: &mut Decoder, stream: u64, section: &[u8]) -> Result<Result<List, u64>, Error> {
    let mut list = List::new();
    let decoded = decoder.decode(stream, section, &mut |name, value| {
        list.push((name.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(match decoded {
        DecodedSection::Complete => Ok(list),
        DecodedSection::Blocked(required) => Err(required),
    })
}

fn take_out(decoder: &mut Decoder) -> Vec<u8> {
    let out = decoder.out().to_vec();
    decoder.consume(out.len());
    out
}

fn encode(list: &List) -> Vec<u8> {
    let write = |fields: &mut tw_fields::FieldWriter<'_>| {
        list.iter().for_each(|(name, value)| fields.push(name, value));
    };
    encode_section(&FIELD_CODING, write, <[u8]>::to_vec)
}

/// Numbers that look random and are the same each time (xorshift64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// Encoder streams of appendix B in their order.
const INSERTS_B2: &str =
    "3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468";
const INSERT_B3: &str = "4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565";
const DUPLICATE_B4: &str = "02";
const INSERT_B5: &str = "810d 6375 7374 6f6d 2d76 616c 7565 32";

#[test]
fn examples_of_appendix_b() {
    let mut decoder = Decoder::new(220);
    let section = hex("0000 510b 2f69 6e64 6578 2e68 746d 6c");
    assert_eq!(decode(&mut decoder, 0, &section), Ok(Ok(list(&[(":path", "/index.html")]))));
    assert!(decoder.out().is_empty(), "a section without references is not acknowledged");

    let section = hex("0381 10 11");
    assert_eq!(decode(&mut decoder, 4, &section), Ok(Err(2)), "the section is blocked");
    decoder.receive(&hex(INSERTS_B2)).unwrap();
    assert_eq!((decoder.sizes().0, take_out(&mut decoder)), (106, hex("02")));
    let expected = list(&[(":authority", "www.example.com"), (":path", "/sample/path")]);
    assert_eq!(decode(&mut decoder, 4, &section), Ok(Ok(expected)));
    assert_eq!(take_out(&mut decoder), hex("84"));

    decoder.receive(&hex(INSERT_B3)).unwrap();
    assert_eq!((decoder.sizes().0, take_out(&mut decoder)), (160, hex("01")));

    decoder.receive(&hex(DUPLICATE_B4)).unwrap();
    assert_eq!((decoder.sizes().0, decoder.inserted()), (217, 4));
    let section = hex("0500 80 c1 81");
    let expected = list(&[(":authority", "www.example.com"), (":path", "/"), ("custom-key", "custom-value")]);
    assert_eq!(decode(&mut decoder, 8, &section), Ok(Ok(expected)));
    take_out(&mut decoder);
    decoder.cancel(8);
    assert_eq!(take_out(&mut decoder), hex("48"));

    decoder.receive(&hex(INSERT_B5)).unwrap();
    assert_eq!((decoder.sizes().0, decoder.inserted()), (215, 5));
    let expected = list(&[("custom-key", "custom-value2")]);
    assert_eq!(decode(&mut decoder, 12, &hex("0600 80")), Ok(Ok(expected)));
    assert!(decode(&mut decoder, 12, &hex("0600 84")).is_err(), "the oldest entry was evicted");
}

#[test]
fn encoder_stream_is_read_in_any_split() {
    let all = [INSERTS_B2, INSERT_B3, DUPLICATE_B4, INSERT_B5].map(hex).concat();
    for size in 1..=all.len() {
        let mut decoder = Decoder::new(220);
        all.chunks(size).for_each(|piece| decoder.receive(piece).unwrap());
        assert_eq!((decoder.sizes().0, decoder.inserted()), (215, 5), "in pieces of {size}");
        let increments: u64 = take_out(&mut decoder).iter().map(|octet| u64::from(*octet)).sum();
        assert_eq!(increments, 5);
        let expected = list(&[("custom-key", "custom-value2"), (":authority", "www.example.com")]);
        assert_eq!(decode(&mut decoder, 0, &hex("0600 80 81")), Ok(Ok(expected)));
    }
}

/// A decoder whose table has the entries `a: b` and `c: d`.
fn decoder_with_entries() -> Decoder {
    let mut decoder = Decoder::new(TABLE_CAPACITY);
    decoder.receive(&hex("3fa901 4161 0162 4163 0164")).unwrap();
    decoder
}

#[test]
fn field_lines_of_each_kind() {
    let mut decoder = decoder_with_entries();
    for (section, fields) in [
        // Base 2: relative 0 and 1, the static table.
        ("0300 80 81 d1", &[("c", "d"), ("a", "b"), (":method", "GET")][..]),
        // Base 0: behind the base 0 and 1.
        ("0381 10 11", &[("a", "b"), ("c", "d")]),
        // Names: relative, static, behind the base, literal; never indexed and not.
        ("0300 40 0178", &[("c", "x")]),
        ("0300 61 0178", &[("a", "x")]),
        ("0000 51 022f78", &[(":path", "/x")]),
        ("0000 71 022f78", &[(":path", "/x")]),
        ("0381 00 0178", &[("a", "x")]),
        ("0381 09 0178", &[("c", "x")]),
        ("0000 2161 0162", &[("a", "b")]),
        ("0000 3161 0162", &[("a", "b")]),
        // Names and values in the Huffman code: 'a' and 'X'.
        ("0000 291f 81fc", &[("a", "X")]),
        // The base may be beyond all insertions.
        ("0305 85", &[("c", "d")]),
        // Both lines refer to the one entry that is required.
        ("0200 80 80", &[("a", "b"), ("a", "b")]),
        ("0000", &[]),
    ] {
        assert_eq!(decode(&mut decoder, 0, &hex(section)), Ok(Ok(list(fields))), "{section}");
    }
}

#[test]
fn sections_that_break_a_rule() {
    for section in [
        // Cut in the prefix, in a line, in a text.
        "",
        "00",
        "03",
        "0000 40",
        "0000 51",
        "0000 51 02",
        "0000 21",
        "0000 2161",
        "0000 ff",
        // Insert counts that are none: beyond the range; too long.
        "ff 8201 00",
        "ffffffffffffffffffffff 00",
        // A base before the first entry.
        "0382",
        "0080",
        // References beyond the required insert count, or to entries that do not exist.
        "0200 81",
        "0000 80",
        "0300 82",
        "0381 12",
        "0381 0a 0178",
        "0300 42 0178",
        "0201 80",
        // The static table.
        "0000 ff24",
        "0000 5f55 0178",
        // Texts.
        "0000 2161 8106",
        "0000 2906 0162",
    ] {
        let decoded = decode(&mut decoder_with_entries(), 0, &hex(section));
        assert!(
            matches!(decoded, Err(Error::Section(words)) if words.starts_with("sent ")),
            "{section}: {decoded:?}"
        );
    }
}

#[test]
fn instructions_that_break_a_rule() {
    for stream in [
        // A capacity above the limit; before a capacity nothing fits.
        "3fe2 1f",
        "3f ffffffffffffffffff7f",
        "4161 0162",
        // Entries that are larger than the table.
        "3f02 4161 0162",
        "3fe11f 5f ffffffffffff7f",
        // Indices beyond both tables.
        "3fe11f 00",
        "3fe11f 80 00",
        "3fe11f ff24 00",
        "3fe11f 4161 0162 01",
        // Texts.
        "3fe11f 6106 00",
        "3fe11f 4161 8106",
    ] {
        let received = Decoder::new(TABLE_CAPACITY).receive(&hex(stream));
        assert!(
            matches!(received, Err(Error::EncoderStream(words)) if words.starts_with("sent ")),
            "{stream}: {received:?}"
        );
    }
}

#[test]
fn capacity_of_zero_frees_the_table() {
    let mut decoder = decoder_with_entries();
    assert_eq!(decoder.sizes().0, 68);
    decoder.receive(&hex("20")).unwrap();
    assert_eq!(decoder.sizes(), (0, 0));
    assert!(decode(&mut decoder, 0, &hex("0200 80")).is_err(), "the entry is gone");
}

#[test]
fn instructions_have_a_limit() {
    let mut decoder = Decoder::new(TABLE_CAPACITY);
    decoder.receive(&hex("3fe11f")).unwrap();
    // A name of 2^30 bytes that never ends.
    decoder.receive(&hex("5f e1ffffff03")).unwrap();
    let mut received = 0;
    let error = loop {
        match decoder.receive(&[b'a'; 100]) {
            Ok(()) => received += 100,
            Err(error) => break error,
        }
        assert!(received < 2 * INSTRUCTION_MAX);
    };
    assert_eq!(error, Error::EncoderStream("sent too long instruction on qpack encoder stream"));
    assert!(received + 200 > INSTRUCTION_MAX);
}

#[test]
fn acknowledgements_have_a_limit() {
    let mut decoder = decoder_with_entries();
    let error = (0..).find_map(|_| decode(&mut decoder, 1 << 40, &hex("0200 80")).err());
    assert!(matches!(error, Some(Error::Excessive(_))));
    assert!(take_out(&mut decoder).len() < DECODER_OUT_MAX + 20);
}

#[test]
fn insert_count_wraps() {
    // Room for three entries: the encoded count wraps at six.
    let mut decoder = Decoder::new(100);
    decoder.receive(&hex("3f45")).unwrap();
    for count in 1_u64..1000 {
        decoder.receive(&hex("4161 0162")).unwrap();
        let section = [(count % 6 + 1) as u8, 0, 0x80];
        assert_eq!(decode(&mut decoder, 0, &section), Ok(Ok(list(&[("a", "b")]))), "{count}");
        let later = [((count + 3) % 6 + 1) as u8, 0, 0x80];
        assert_eq!(decode(&mut decoder, 0, &later), Ok(Err(count + 3)), "{count}");
        take_out(&mut decoder);
    }
}

#[test]
fn fields_are_not_decoded_after_a_break() {
    let mut decoder = Decoder::new(TABLE_CAPACITY);
    let mut calls = 0;
    let section = hex("0000 d1 d1 ff ff");
    let decoded = decoder.decode(0, &section, &mut |_, _| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert_eq!((decoded, calls), (Ok(DecodedSection::Complete), 1));
}

#[test]
fn longest_text_is_counted() {
    let mut decoder = Decoder::new(TABLE_CAPACITY);
    for (section, longest) in [("0000 d1", 0), ("0000 2361 6263 0162", 3), ("0000 51 022f78 51 012f", 2)] {
        decode(&mut decoder, 0, &hex(section)).unwrap().unwrap();
        assert_eq!(decoder.longest(), longest, "{section}");
    }
}

#[test]
fn static_entries_are_found() {
    let mut index = 0;
    while let Some((name, value)) = statics::entry(index) {
        let first = statics::find(name).unwrap();
        assert_eq!(statics::entry(first).unwrap().0, name, "{index}");
        assert_eq!(statics::find(&name.to_ascii_uppercase()), Some(first));
        assert_eq!(statics::find_value(first, value), Some(index));
        for cut in 0..name.len() {
            let entry = statics::find(&name[..cut]).and_then(statics::entry);
            assert!(entry.is_none_or(|(candidate, _)| candidate == &name[..cut]));
        }
        index += 1;
    }
    assert_eq!(index, 99);
    assert_eq!(statics::find_value(statics::STATUS, b"201"), None);
}

#[test]
fn fields_are_written_in_the_shortest_way() {
    for (name, value, section) in [
        (":method", "GET", "0000 d1"),
        (":status", "500", "0000 ff08"),
        ("Content-Type", "text/plain", "0000 f5"),
        (":path", "/x", "0000 51 022f78"),
        // Fields with secret values.
        ("cookie", "", "0000 75 00"),
        ("Authorization", "x", "0000 7f45 0178"),
        ("X", "", "0000 2178 00"),
    ] {
        assert_eq!(encode(&list(&[(name, value)])), hex(section), "{name}: {value}");
    }
    for status in 100..1000 {
        let section = encode_section(&FIELD_CODING, |fields| fields.status(status), <[u8]>::to_vec);
        let expected = list(&[(":status", &status.to_string())]);
        assert_eq!(decode(&mut Decoder::new(0), 0, &section), Ok(Ok(expected)));
    }
}

#[test]
fn random_sections_round_trip() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut decoder = Decoder::new(TABLE_CAPACITY);
    for _ in 0..2000 {
        let mut expected = List::new();
        for _ in 0..random.below(20) {
            let name_len = random.below(40);
            let value_len = random.below(200);
            let (mut name, value) = match random.below(3) {
                0 => {
                    let (name, value) = statics::entry(random.below(99)).unwrap();
                    (name.to_vec(), value.to_vec())
                }
                1 => (random.bytes(name_len), random.bytes(value_len)),
                _ => {
                    let letters = |bytes: Vec<u8>| bytes.iter().map(|byte| b' ' + byte % 95).collect();
                    (letters(random.bytes(name_len)), letters(random.bytes(value_len)))
                }
            };
            name.make_ascii_lowercase();
            expected.push((name, value));
        }
        assert_eq!(decode(&mut decoder, 0, &encode(&expected)), Ok(Ok(expected)));
    }
    assert_eq!(decoder.sizes(), (0, 0), "nothing was inserted");
}

#[test]
fn random_input_never_panics() {
    let mut random = Random(0xdead_beef_cafe_f00d);
    for _ in 0..50_000 {
        let mut decoder = Decoder::new(random.below(300));
        for _ in 0..4 {
            let len = random.below(60);
            let mut bytes = random.bytes(len);
            // Small integers, so that more of it makes sense.
            for octet in &mut bytes {
                if random.below(3) == 0 {
                    *octet &= 0xc7;
                }
            }
            let mut text_len = 0;
            let section = decoder.decode(4, &bytes, &mut |name, value| {
                text_len += name.len() + value.len();
                ControlFlow::Continue(())
            });
            assert!(text_len <= bytes.len() * 300);
            let received = decoder.receive(&bytes);
            assert!(decoder.sizes().0 <= 300);
            if section.is_err() && received.is_err() {
                break;
            }
        }
    }
}

#[test]
fn decoder_stream_accepts_cancellations_only() {
    let receive = |bytes: &str| {
        let mut stream = DecoderStream::default();
        hex(bytes).chunks(1).try_for_each(|piece| stream.receive(piece))
    };
    for bytes in ["", "40", "48 7f00 7fff03 7fffffffffffffff7f", "44 7f"] {
        assert_eq!(receive(bytes), Ok(()), "{bytes}");
    }
    for bytes in ["80", "84", "ff00", "00", "01", "3f00", "40 01", "7fffffffffffffffffff7f"] {
        assert!(matches!(receive(bytes), Err(Error::DecoderStream(_))), "{bytes}");
    }
}
