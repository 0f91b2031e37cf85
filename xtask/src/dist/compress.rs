//! gzip and zstd of whole files, and digests, the same bytes for the same input.

use std::fmt::Write;

use sha2::Digest;
use zlib_rs::{DeflateConfig, ReturnCode};

/// Effort of compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// As small as it gets: seconds for a release binary.
    Best,
    /// As fast as it gets, for tests.
    #[cfg(test)]
    Least,
}

/// Window of 32 KiB, and the format of RFC 1952 instead of that of RFC 1950.
const GZIP_WINDOW_BITS: i32 = 15 + 16;
/// Bytes that the head and the end of RFC 1952 have more than those of RFC 1950.
const GZIP_FRAME_SIZE: usize = 12;

impl Effort {
    fn gzip_level(self) -> i32 {
        match self {
            Self::Best => 9,
            #[cfg(test)]
            Self::Least => 1,
        }
    }

    fn zstd_level(self) -> i32 {
        match self {
            Self::Best => 19,
            #[cfg(test)]
            Self::Least => 1,
        }
    }

    /// Compresses with gzip, without a name and a time.
    pub(super) fn gzip(self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut config = DeflateConfig::new(self.gzip_level());
        config.window_bits = GZIP_WINDOW_BITS;
        let mut out = vec![0; zlib_rs::compress_bound(bytes.len()) + GZIP_FRAME_SIZE];
        let (packed, code) = zlib_rs::compress_slice(&mut out, bytes, config);
        let len = packed.len();
        match code {
            ReturnCode::Ok => {
                out.truncate(len);
                Ok(out)
            }
            code => Err(format!("gzip: {code:?}")),
        }
    }

    /// Compresses with zstd.
    pub(super) fn zstd(self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
        zstd_safe::compress(&mut out, bytes, self.zstd_level())
            .map_err(|code| format!("zstd: {}", zstd_safe::get_error_name(code)))?;
        Ok(out)
    }
}

/// Bytes in hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// SHA-256 in hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

/// SHA-1 in hexadecimal digits.
pub(super) fn sha1(bytes: &[u8]) -> String {
    hex(&sha1::Sha1::digest(bytes))
}

/// MD5.
pub(super) fn md5(bytes: &[u8]) -> [u8; 16] {
    md5::Md5::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standards() {
        assert_eq!(hex(&md5(b"abc")), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(sha1(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(sha256(b"abc").starts_with("ba7816bf8f01cfea"));
    }

    #[test]
    fn compressed_bytes_decompress_to_the_input() {
        let text = "the same line\n".repeat(10_000);
        let gzip = Effort::Best.gzip(text.as_bytes()).unwrap();
        let mut inflate = zlib_rs::Inflate::new(true, 31);
        let mut out = vec![0; text.len() + 1];
        inflate.decompress(&gzip, &mut out, zlib_rs::InflateFlush::Finish).unwrap();
        assert_eq!(&out[..inflate.total_out() as usize], text.as_bytes());
        let zstd = Effort::Best.zstd(text.as_bytes()).unwrap();
        let mut out = Vec::with_capacity(text.len());
        zstd_safe::decompress(&mut out, &zstd).unwrap();
        assert!(out == text.as_bytes() && zstd.len() < 1000);
    }
}
