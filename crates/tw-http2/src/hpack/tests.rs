//! The examples of RFC 7541, appendix C; each rule of the decoder; random blocks and lists.

use std::ops::ControlFlow;

use tw_fields::integer;

use super::{Decoder, Error, encode, statics};

/// SETTINGS_HEADER_TABLE_SIZE when nothing is said of it.
const TABLE_SIZE: usize = 4096;

type List = Vec<(Vec<u8>, Vec<u8>)>;

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<List, Error> {
    let mut list = List::new();
    decoder.decode(block, &mut |name, value| {
        list.push((name.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(list)
}

fn decode_alone(block: &[u8]) -> Result<List, Error> {
    decode(&mut Decoder::new(TABLE_SIZE), block)
}

fn list(fields: &[(&str, &str)]) -> List {
    fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

fn encode(list: &List) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in list {
        encode::field(&mut block, name, value);
    }
    block
}

fn encode_one(name: &str, value: &str) -> Vec<u8> {
    encode(&list(&[(name, value)]))
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

#[test]
fn fields_of_appendix_c2() {
    let cases = [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            ("custom-key", "custom-header"),
            55,
        ),
        ("040c 2f73 616d 706c 652f 7061 7468", (":path", "/sample/path"), 0),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", ("password", "secret"), 0),
        ("82", (":method", "GET"), 0),
    ];
    for (block, field, size) in cases {
        let mut decoder = Decoder::new(TABLE_SIZE);
        assert_eq!(decode(&mut decoder, &hex(block)), Ok(list(&[field])));
        assert_eq!(decoder.sizes().0, size);
    }
}

/// Blocks of one connection: octets, the fields they stand for, the size of the table behind them.
type Exchange<'a> = [(&'a str, &'a [(&'a str, &'a str)], usize); 3];

fn check_exchange(table_size: usize, blocks: Exchange<'_>) {
    let mut decoder = Decoder::new(table_size);
    for (block, fields, size) in blocks {
        assert_eq!(decode(&mut decoder, &hex(block)), Ok(list(fields)));
        assert_eq!(decoder.sizes().0, size);
    }
}

const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "www.example.com"),
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
];

#[test]
fn requests_of_appendix_c3() {
    let [first, second, third] = REQUESTS;
    check_exchange(
        TABLE_SIZE,
        [
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", first, 57),
            ("8286 84be 5808 6e6f 2d63 6163 6865", second, 110),
            ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", third, 164),
        ],
    );
}

#[test]
fn requests_of_appendix_c4() {
    let [first, second, third] = REQUESTS;
    check_exchange(
        TABLE_SIZE,
        [
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", first, 57),
            ("8286 84be 5886 a8eb 1064 9cbf", second, 110),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", third, 164),
        ],
    );
}

const RESPONSES: [&[(&str, &str)]; 3] = [
    &[
        (":status", "302"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "307"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ],
    &[
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
];

#[test]
fn responses_of_appendix_c5_evict() {
    let [first, second, third] = RESPONSES;
    check_exchange(
        256,
        [
            (
                "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
                 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70
                 6c65 2e63 6f6d",
                first,
                222,
            ),
            ("4803 3330 37c1 c0bf", second, 222),
            (
                "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
                 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
                 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e
                 3d31",
                third,
                215,
            ),
        ],
    );
}

#[test]
fn responses_of_appendix_c6_evict() {
    let [first, second, third] = RESPONSES;
    check_exchange(
        256,
        [
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
                 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                first,
                222,
            ),
            ("4883 640e ffc1 c0bf", second, 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
                 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
                 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                third,
                215,
            ),
        ],
    );
}

#[test]
fn static_entries_are_found() {
    for index in 1..=statics::ENTRIES {
        let (name, value) = statics::entry(index).unwrap();
        let first = statics::find(name).unwrap();
        assert_eq!(statics::entry(first).unwrap().0, name);
        assert!(first <= index);
        assert_eq!(statics::find(&name.to_ascii_uppercase()), Some(first));
        assert_eq!(statics::find_value(first, value), Some(index));
        assert_eq!(statics::find_value(first, b"another"), None);

        let block = [0x80 | index as u8];
        assert_eq!(decode_alone(&block), Ok(vec![(name.to_vec(), value.to_vec())]));
        if !statics::is_secret(first) {
            assert_eq!(encode(&vec![(name.to_vec(), value.to_vec())]), block);
        }
    }
    assert_eq!(statics::ENTRIES, 61);
    assert_eq!(statics::entry(0), None);
    assert_eq!(statics::entry(62), None);
    for name in
        ["", "a", "agE ", "ago", "aga", "x-age", ":statuc", ":statu", "hose", "content-typo", "bxpect"]
    {
        assert_eq!(statics::find(name.as_bytes()), None, "{name}");
    }
}

#[test]
fn fields_are_written_in_the_shortest_way() {
    let cases = [
        (":status", "200", "88"),
        (":method", "GET", "82"),
        (":method", "POST", "83"),
        (":method", "PUT", "0203 5055 54"),
        (":path", "/", "84"),
        (":path", "/sample/path", "0489 6103 a6ba 0ac5 634c ff"),
        (":scheme", "https", "87"),
        ("age", "", "95"),
        ("vary", "", "bb"),
        ("Vary", "", "bb"),
        ("accept-encoding", "gzip, deflate", "90"),
        ("cache-control", "no-cache", "0f09 86a8 eb10 649c bf"),
        ("Cache-Control", "no-cache", "0f09 86a8 eb10 649c bf"),
        // The code would be as long, or longer.
        ("server", "\"\"", "0f27 0222 22"),
        ("etag", "{}", "0f13 027b 7d"),
        ("custom-key", "custom-value", "0088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf"),
        ("CUSTOM-Key", "custom-value", "0088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf"),
        ("x-\u{e9}", "", "0004 782d c3a9 00"),
        ("X-\u{e9}", "", "0004 782d c3a9 00"),
        ("", "", "0000 00"),
    ];
    for (name, value, octets) in cases {
        assert_eq!(encode_one(name, value), hex(octets), "{name}: {value}");
    }
}

#[test]
fn secrets_are_never_indexed() {
    for name in ["authorization", "cookie", "proxy-authorization", "Authorization", "COOKIE"] {
        for value in ["a=b", ""] {
            let block = encode_one(name, value);
            assert_eq!(block[0], 0x1f, "{name}");
            assert_eq!(decode_alone(&block), Ok(list(&[(&name.to_ascii_lowercase(), value)])));
        }
    }
}

#[test]
fn each_status_is_written() {
    for status in 100..=999 {
        let mut block = Vec::new();
        encode::status(&mut block, status);
        assert_eq!(decode_alone(&block), Ok(list(&[(":status", &status.to_string())])));
        assert_eq!(block, encode_one(":status", &status.to_string()));
        assert_eq!(block.len() == 1, [200, 204, 206, 304, 400, 404, 500].contains(&status));
    }
}

#[test]
fn size_updates_are_written() {
    for (size, octets) in [(0, "20"), (30, "3e"), (31, "3f00"), (4096, "3fe11f")] {
        let mut block = Vec::new();
        encode::size_update(&mut block, size);
        assert_eq!(block, hex(octets));
        assert_eq!(decode_alone(&block), Ok(List::new()));
    }
}

#[test]
fn blocks_that_break_a_rule() {
    let cases = [
        // Indices.
        ("80", Error::IndexZero),
        ("be", Error::Index),
        ("ff80ffffff07", Error::Index),
        ("7f00 0161", Error::Index),
        ("0f2f 0161", Error::Index),
        ("1f2f 0161", Error::Index),
        ("4001 6101 62 bf", Error::Index),
        // Blocks that are cut.
        ("ff", Error::Short),
        ("40", Error::Short),
        ("41", Error::Short),
        ("0001 61", Error::Short),
        ("0002 61", Error::Short),
        ("0082 1f", Error::Short),
        ("0001 6102 62", Error::Short),
        ("0001 617f", Error::Short),
        ("3f", Error::Short),
        ("007f 80ff ffff 0761", Error::Short),
        // Integers that are too large.
        ("ffff ffff ffff 7f", Error::Integer),
        ("007f 81ff ffff 0761", Error::Integer),
        ("3fff ffff ffff ff", Error::Integer),
        // Size updates: too large, too late, too many.
        ("3fe2 1f", Error::TableSize),
        ("8220", Error::LateTableSize),
        ("2020 8220", Error::LateTableSize),
        ("2020 20", Error::LateTableSize),
        // Texts.
        ("0081 0001 62", Error::Huffman),
        ("0084 ffff ffff 0162", Error::Huffman),
        ("0001 6181 06", Error::Huffman),
    ];
    for (block, error) in cases {
        assert_eq!(decode_alone(&hex(block)), Err(error), "{block}");
        assert!(error.words().starts_with("sent "));
    }
}

#[test]
fn size_updates_evict() {
    let mut decoder = Decoder::new(TABLE_SIZE);
    assert_eq!(decoder.sizes(), (0, 0));
    decode(&mut decoder, &hex("4001 6101 62 4001 6301 64 4001 6501 66")).unwrap();
    assert_eq!(decoder.sizes().0, 3 * 34);

    // A size of 68 keeps two entries; and they stay when the table may be larger again.
    assert_eq!(decode(&mut decoder, &hex("3f25 3fe11f be bf")), Ok(list(&[("e", "f"), ("c", "d")])));
    assert_eq!(decoder.sizes().0, 2 * 34);
    assert_eq!(decode(&mut decoder, &hex("c0")), Err(Error::Index));

    // A size of 0 evicts all entries and frees their memory.
    assert_eq!(decode(&mut decoder, &hex("20")), Ok(List::new()));
    assert_eq!(decoder.sizes(), (0, 0));
    assert_eq!(decode(&mut decoder, &hex("4001 6101 62")), Ok(list(&[("a", "b")])));
    assert_eq!(decoder.sizes(), (0, 0));
}

#[test]
fn oversized_field_empties_the_table() {
    let mut decoder = Decoder::new(100);
    decode(&mut decoder, &hex("4001 6101 62")).unwrap();
    assert_eq!(decoder.sizes().0, 34);

    // The field has the name of the entry that it evicts.
    let block = [&hex("7e 44")[..], &[b'x'; 0x44]].concat();
    let expected = vec![(b"a".to_vec(), vec![b'x'; 0x44])];
    assert_eq!(decode(&mut decoder, &block), Ok(expected));
    assert_eq!(decoder.sizes(), (0, 0));

    // With one byte less the field fits, as the only entry.
    let block = [&hex("4001 6101 62 7e 43")[..], &[b'x'; 0x43], &hex("be")[..]].concat();
    let large = (b"a".to_vec(), vec![b'x'; 0x43]);
    assert_eq!(decode(&mut decoder, &block), Ok(vec![(b"a".to_vec(), b"b".to_vec()), large.clone(), large]));
    assert_eq!(decoder.sizes().0, 100);
}

#[test]
fn tables_stay_in_sync_when_fields_are_skipped() {
    let mut decoder = Decoder::new(TABLE_SIZE);
    let mut calls = 0;
    let block = hex("4001 6101 62 82 4001 6301 64");
    let result = decoder.decode(&block, &mut |_, _| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert_eq!((result, calls), (Ok(()), 1));
    assert_eq!(decode(&mut decoder, &hex("be bf")), Ok(list(&[("c", "d"), ("a", "b")])));
}

/// The table against the plainest one: a list whose oldest entries go.
#[test]
fn table_matches_simple_model() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for limit in [64, 200, 1000, TABLE_SIZE] {
        let mut decoder = Decoder::new(limit);
        let mut plain = List::new();
        let size =
            |plain: &List| plain.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>();
        for _ in 0..2000 {
            let name_len = random.below(20);
            let value_len = if random.below(20) == 0 { random.below(limit) } else { random.below(60) };
            let name = random.bytes(name_len);
            let value = random.bytes(value_len);
            let mut block = vec![0x40];
            integer::encode(&mut block, 0, 7, name.len());
            block.extend_from_slice(&name);
            integer::encode(&mut block, 0, 7, value.len());
            block.extend_from_slice(&value);
            assert_eq!(decode(&mut decoder, &block), Ok(vec![(name.clone(), value.clone())]));

            plain.insert(0, (name, value));
            while size(&plain) > limit {
                plain.pop();
            }
            let mut block = Vec::new();
            for place in 0..plain.len() {
                integer::encode(&mut block, 0x80, 7, statics::ENTRIES + 1 + place);
            }
            assert_eq!(decode(&mut decoder, &block), Ok(plain.clone()));
            assert_eq!(decoder.sizes().0, size(&plain));
            assert!(decoder.sizes().1 <= 2 * limit + 1024, "{:?}", decoder.sizes());
        }
    }
}

#[test]
fn random_sections_round_trip() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut decoder = Decoder::new(TABLE_SIZE);
    for _ in 0..2000 {
        let mut expected = List::new();
        for _ in 0..random.below(20) {
            let name_len = random.below(40);
            let value_len = random.below(200);
            let name = match random.below(3) {
                0 => statics::entry(1 + random.below(statics::ENTRIES)).unwrap().0.to_vec(),
                1 => random.bytes(name_len),
                _ => random.bytes(name_len).iter().map(|byte| b'a' + byte % 26).collect(),
            };
            let value = match random.below(2) {
                0 => random.bytes(value_len),
                _ => random.bytes(value_len).iter().map(|byte| b' ' + byte % 95).collect(),
            };
            expected.push((name, value));
        }
        let block = encode(&expected);
        for (name, _) in &mut expected {
            name.make_ascii_lowercase();
        }
        assert_eq!(decode(&mut decoder, &block), Ok(expected));
    }
    // Nothing was indexed.
    assert_eq!(decoder.sizes(), (0, 0));
}

#[test]
fn random_blocks_never_panic() {
    let mut random = Random(0xdead_beef_cafe_f00d);
    for _ in 0..50_000 {
        let mut decoder = Decoder::new(random.below(300));
        for _ in 0..4 {
            let len = random.below(80);
            let mut block = random.bytes(len);
            // Small integers, so that more of it is fields.
            for octet in &mut block {
                if random.below(3) == 0 {
                    *octet &= 0xc7;
                }
            }
            let mut bytes = 0;
            let result = decoder.decode(&block, &mut |name, value| {
                bytes += name.len() + value.len();
                ControlFlow::Continue(())
            });
            assert!(bytes <= block.len() * 300);
            assert!(decoder.sizes().0 <= 300);
            if result.is_err() {
                break;
            }
        }
    }
}

#[test]
fn truncated_block_is_short_or_a_shorter_section() {
    let whole = hex("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff 4003 6162 6302 6465 0f2d 0161");
    let fields = decode_alone(&whole).unwrap();
    for cut in 0..whole.len() {
        match decode_alone(&whole[..cut]) {
            Ok(some) => assert_eq!(some, fields[..some.len()]),
            Err(error) => assert_eq!(error, Error::Short, "{cut}"),
        }
    }
}
