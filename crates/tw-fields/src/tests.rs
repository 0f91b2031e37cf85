//! The Huffman code of RFC 7541, appendix B, and helpers of all tests.

use crate::{CodingError, huffman};

pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|digit| !digit.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn coded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    huffman::encode(&mut out, text.iter().copied());
    assert_eq!(out.len(), huffman::len(text.iter().copied()));
    out
}

fn decoded(text: &[u8]) -> Result<Vec<u8>, CodingError> {
    let mut out = Vec::new();
    huffman::decode(text, &mut out).map(|()| out)
}

/// Bits, written as digits, as octets.
fn bits(digits: &str) -> Vec<u8> {
    assert_eq!(digits.len() % 8, 0);
    let octets = digits.as_bytes().chunks(8).map(|octet| std::str::from_utf8(octet).unwrap());
    octets.map(|octet| u8::from_str_radix(octet, 2).unwrap()).collect()
}

#[test]
fn huffman_codes_of_appendix_b() {
    let cases = [
        (b'0', "00000111"),
        (b'a', "00011111"),
        (b' ', "01010011"),
        (b'_', "10001011"),
        (b':', "10111001"),
        (b'z', "11110111"),
        (b'X', "11111100"),
        (b'!', "1111111000111111"),
        (b'?', "1111111100111111"),
        (b'~', "1111111111101111"),
        (b'\\', "111111111111111000011111"),
        (0, "1111111111000111"),
        (0xff, "11111111111111111111101110111111"),
        (b'\n', "11111111111111111111111111110011"),
        (0x16, "11111111111111111111111111111011"),
    ];
    for (byte, code) in cases {
        assert_eq!(coded(&[byte]), bits(code), "{byte}");
    }
}

#[test]
fn huffman_takes_each_byte_at_each_place() {
    for byte in 0..=255 {
        for before in 0..12 {
            for behind in 0..12 {
                let text =
                    [&b"0aX?\x00a?0Z\x16x!"[..before], &[byte], &b"\x0d0aX?\x00a?0Z1x"[..behind]].concat();
                assert_eq!(decoded(&coded(&text)), Ok(text));
            }
        }
    }
    assert_eq!(coded(b""), b"");
    assert_eq!(decoded(b""), Ok(Vec::new()));
}

#[test]
fn huffman_takes_ones_as_padding() {
    let ones = |count: usize| "1".repeat(count);
    // 'X' has eight bits, '0' has five, '!' has ten.
    for (code, text) in [("11111100", "X"), ("00000", "0"), ("1111111000", "!"), ("", "")] {
        let behind = |bits| decoded(&self::bits(&format!("{code}{}", ones(bits))));
        let least = code.len().next_multiple_of(8) - code.len();
        assert_eq!(behind(least), Ok(text.as_bytes().to_vec()), "{text}");
        // A whole octet, and no bit more; one that is as long as EOS is EOS.
        let next = behind(least + 8);
        assert_eq!(next.is_ok(), least == 0, "{text}: {next:?}");
        for octets in 2..=9 {
            assert_eq!(behind(least + 8 * octets), Err(CodingError::Huffman), "{text}: {octets}");
        }
    }
}

#[test]
fn huffman_refuses_invalid_codes() {
    let eos = "1".repeat(30);
    let cases = [
        // A padding with a zero in it; codes that are cut.
        "00000110".to_string(),
        "1111110011111110".to_string(),
        "1111111111111110".to_string(),
        "11111111111111111111111111111110".to_string(),
        // EOS: alone, before a text, between texts.
        format!("{eos}00"),
        format!("{eos}11"),
        format!("{eos}0000011111"),
        format!("00000{eos}00011"),
        format!("0000000000{eos}"),
        format!("{}{eos}11", "11111100".repeat(4)),
    ];
    for digits in cases {
        assert_eq!(decoded(&bits(&digits)), Err(CodingError::Huffman), "{digits}");
    }
}
