//! `gzip=level`: every batch of a log is one member of a gzip file, which `zcat` reads as one text.

use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Compresses one batch. `level`: 1 to 9. Takes some 10 ms per MiB: writer threads only.
pub(crate) fn member<'c>(level: u32, chunks: impl Iterator<Item = &'c [u8]>) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    for chunk in chunks {
        encoder.write_all(chunk)?;
    }
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn members_after_each_other_are_one_text() {
        let parts: [&[u8]; 2] = [b"one\n", &[b'x'; 100_000]];
        let mut file = member(1, parts.into_iter()).unwrap();
        assert!(file.len() < 1000);
        file.extend(member(9, [&b"two\n"[..]].into_iter()).unwrap());
        let mut text = Vec::new();
        flate2::read::MultiGzDecoder::new(&file[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, [parts[0], parts[1], b"two\n"].concat());
    }
}
