//! `gzip=level`: every batch of a log is one member of a gzip file, which `zcat` reads as one text.

use std::io;

use zlib_rs::{DeflateConfig, ReturnCode};

/// For a window of 32 KiB and the format of RFC 1952 instead of that of RFC 1950.
const WINDOW_BITS: i32 = 15 + 16;
/// Bytes that head and end of a member of RFC 1952 have more than those of RFC 1950.
const FRAME_SIZE: usize = 12;

/// Compresses one batch. `level`: 1 to 9. Takes some 10 ms per MiB: writer threads only.
pub(crate) fn member<'c>(level: u32, chunks: impl Iterator<Item = &'c [u8]>) -> io::Result<Vec<u8>> {
    let text = chunks.collect::<Vec<_>>().concat();
    let mut config = DeflateConfig::new(level.min(9) as i32);
    config.window_bits = WINDOW_BITS;
    let mut room = vec![0; zlib_rs::compress_bound(text.len()) + FRAME_SIZE];
    let (member, code) = zlib_rs::compress_slice(&mut room, &text, config);
    match code {
        ReturnCode::Ok => {
            let len = member.len();
            room.truncate(len);
            Ok(room)
        }
        code => Err(io::Error::other(format!("deflate() failed: {code:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of a member, and what follows it.
    fn unpacked(member: &[u8]) -> (Vec<u8>, &[u8]) {
        let mut inflate = zlib_rs::Inflate::new(true, 31);
        let mut text = vec![0; 1 << 20];
        let status = inflate.decompress(member, &mut text, zlib_rs::InflateFlush::Finish);
        assert_eq!(status, Ok(zlib_rs::Status::StreamEnd));
        text.truncate(inflate.total_out() as usize);
        (text, &member[inflate.total_in() as usize..])
    }

    #[test]
    fn consecutive_gzip_members_decompress_as_one_text() {
        let parts: [&[u8]; 2] = [b"one\n", &[b'x'; 100_000]];
        let mut file = member(1, parts.into_iter()).unwrap();
        assert!(file.len() < 1000);
        file.extend(member(9, [&b"two\n"[..]].into_iter()).unwrap());
        let (first, rest) = unpacked(&file);
        let (second, rest) = unpacked(rest);
        assert_eq!([first, second].concat(), [parts[0], parts[1], b"two\n"].concat());
        assert!(rest.is_empty());
    }

    #[test]
    fn incompressible_input_fits_the_buffer() {
        let mut state = 7_u64;
        let noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let noise: Vec<u8> = std::iter::repeat_with(noise).take(200_000).collect();
        for len in [0, 1, 100, 65_536, 200_000] {
            for level in 1..=9 {
                let file = member(level, [&noise[..len]].into_iter()).unwrap();
                assert_eq!(unpacked(&file).0, &noise[..len]);
            }
        }
    }
}
