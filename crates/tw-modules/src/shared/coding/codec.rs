//! Content codings, and the encoder of each.

use super::encoder::{CodecError, Encoder};
use super::encoder_memory::Memory;
use super::{brotli, brotli::BrotliEncoder, deflate, deflate::GzipEncoder, zstd, zstd::ZstdEncoder};

/// A content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coding {
    /// gzip
    Gzip,
    /// br
    Brotli,
    /// zstd
    Zstd,
}

impl Coding {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 3] = [Self::Gzip, Self::Brotli, Self::Zstd];

    /// The word of `Content-Encoding`.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

/// Bytes of input that an encoder may keep and work on later.
pub(super) const HELD_MAX: usize = 256 << 10;

/// Encoder and its settings. Encoders of equal specs are interchangeable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spec {
    /// gzip
    Gzip {
        /// 1 to 9, as `gzip_comp_level` counts.
        level: u8,
        /// Base-2 logarithm of the window, 9 to 15.
        window_bits: u8,
        /// Memory level, 1 to 9: memory for symbols not yet written.
        mem_level: u8,
    },
    /// br
    Brotli {
        /// 0 to 11.
        quality: u8,
        /// Base-2 logarithm of the window, 10 to 24.
        window_bits: u8,
    },
    /// zstd
    Zstd {
        /// -131072 to 22, without 0.
        level: i32,
    },
}

impl Spec {
    /// Content coding that it produces.
    pub(crate) const fn coding(self) -> Coding {
        match self {
            Self::Gzip { .. } => Coding::Gzip,
            Self::Brotli { .. } => Coding::Brotli,
            Self::Zstd { .. } => Coding::Zstd,
        }
    }

    /// Memory of an encoder for a body of this length, if that is known: upper bounds, up to twice what it really takes.
    pub(crate) fn memory(self, length: Option<u64>) -> Memory {
        match self {
            Self::Gzip { window_bits, mem_level, .. } => deflate::memory(window_bits, mem_level),
            Self::Brotli { quality, window_bits } => brotli::memory(quality, window_bits, length),
            Self::Zstd { level } => zstd::memory(level, length),
        }
    }

    /// Nanoseconds that a byte of input takes.
    ///
    /// Measured with 100 KiB of C source on a virtual machine of 2026 at some 3 GHz, best of ten, rounded up. Twice as much
    /// on a slow machine does no harm: what is compared with it is a millisecond.
    pub(crate) fn cost_ns(self) -> u64 {
        const GZIP: [u64; 9] = [5, 5, 7, 8, 9, 14, 21, 41, 41];
        const BROTLI: [u64; 12] = [4, 5, 10, 10, 14, 21, 24, 36, 43, 63, 650, 1700];
        const ZSTD: [u64; 22] =
            [2, 3, 3, 3, 8, 11, 13, 14, 18, 21, 49, 64, 77, 111, 135, 229, 286, 286, 566, 574, 574, 574];
        let at = |list: &[u64], index: usize| list.get(index).or(list.last()).copied().unwrap_or(1);
        match self {
            Self::Gzip { level, .. } => at(&GZIP, usize::from(level.saturating_sub(1))),
            Self::Brotli { quality, .. } => at(&BROTLI, usize::from(quality)),
            Self::Zstd { level } => at(&ZSTD, usize::try_from(level - 1).unwrap_or(0)),
        }
    }

    /// Returns `true` if it buffers input and works on it later, a block at a time.
    pub(crate) const fn is_lazy(self) -> bool {
        !matches!(self, Self::Gzip { .. })
    }

    /// A new encoder for a body of this length, if that is known.
    pub(crate) fn encoder(self, length: Option<u64>) -> Result<Box<dyn Encoder>, CodecError> {
        Ok(match self {
            Self::Gzip { level, window_bits, mem_level } => {
                Box::new(GzipEncoder::new(level, window_bits, mem_level))
            }
            Self::Brotli { quality, window_bits } => {
                Box::new(BrotliEncoder::new(quality, window_bits, length))
            }
            Self::Zstd { level } => Box::new(ZstdEncoder::new(level, length)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use tw_rt::CountingHeap;

    use super::*;

    const SPECS: [Spec; 9] = [
        Spec::Gzip { level: 1, window_bits: 15, mem_level: 8 },
        Spec::Gzip { level: 6, window_bits: 15, mem_level: 8 },
        Spec::Gzip { level: 9, window_bits: 9, mem_level: 1 },
        Spec::Brotli { quality: 0, window_bits: 10 },
        Spec::Brotli { quality: 6, window_bits: 19 },
        Spec::Brotli { quality: 11, window_bits: 24 },
        Spec::Zstd { level: -5 },
        Spec::Zstd { level: 1 },
        Spec::Zstd { level: 22 },
    ];

    /// Text that compresses as source does, with no period.
    fn text(len: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut out = Vec::with_capacity(len + 16);
        while out.len() < len {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let words: [&[u8]; 8] = [b"let ", b"r.out", b" = ", b";\n", b"body", b"(", b")", b"Some"];
            out.extend_from_slice(words[(state >> 24) as usize % 8]);
            if state >> 30 == 0 {
                out.push((state >> 16) as u8);
            }
        }
        out.truncate(len);
        out
    }

    fn decode(spec: Spec, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match spec {
            Spec::Gzip { .. } => {
                let mut inflate = zlib_rs::Inflate::new(true, 31);
                let mut buf = vec![0; 4 << 20];
                let status = inflate.decompress(bytes, &mut buf, zlib_rs::InflateFlush::NoFlush).unwrap();
                assert_eq!(inflate.total_in(), bytes.len() as u64);
                assert!(matches!(status, zlib_rs::Status::StreamEnd | zlib_rs::Status::Ok), "{status:?}");
                out.extend_from_slice(&buf[..inflate.total_out() as usize]);
            }
            Spec::Brotli { .. } => {
                // A stream that was only flushed ends too early for the decoder; what it had decoded counts.
                let _ = ::brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out);
            }
            Spec::Zstd { .. } => {
                let mut decoder = zstd_safe::DCtx::create();
                let mut buf = vec![0; 4 << 20];
                let mut output = zstd_safe::OutBuffer::around(&mut buf[..]);
                let mut input = zstd_safe::InBuffer::around(bytes);
                while input.pos() < bytes.len() {
                    decoder.decompress_stream(&mut output, &mut input).unwrap();
                }
                out.extend_from_slice(output.as_slice());
            }
        }
        out
    }

    #[test]
    fn bodies_round_trip() {
        for spec in SPECS {
            for len in [0, 1, 100, 9_000, 300_000] {
                if spec.cost_ns() > 500 && len > 10_000 {
                    continue;
                }
                let text = text(len);
                for (length, piece) in [(Some(len as u64), usize::MAX), (None, 1), (None, 65_536)] {
                    if piece == 1 && len > 1000 {
                        continue;
                    }
                    let mut encoder = spec.encoder(length).unwrap();
                    // The second time it is one that was used before.
                    for _ in 0..2 {
                        let mut out = b"before".to_vec();
                        encoder.reset(length).unwrap();
                        for piece in text.chunks(piece.min(len.max(1))) {
                            encoder.feed(piece, &mut out).unwrap();
                        }
                        encoder.finish(&mut out).unwrap();
                        assert!(out.starts_with(b"before"));
                        assert!(decode(spec, &out[6..]) == text, "{spec:?} {len} {piece}");
                        assert!(len < 1000 || out.len() < len / 4 * 3, "{spec:?} {len}: {}", out.len());
                    }
                }
            }
        }
    }

    #[test]
    fn flushed_output_can_be_decoded() {
        for spec in SPECS {
            let mut encoder = spec.encoder(None).unwrap();
            encoder.reset(None).unwrap();
            let mut out = Vec::new();
            encoder.feed(b"first, ", &mut out).unwrap();
            encoder.flush(&mut out).unwrap();
            encoder.flush(&mut out).unwrap();
            assert_eq!(decode(spec, &out), b"first, ", "{spec:?}");
            encoder.feed(b"second", &mut out).unwrap();
            encoder.flush(&mut out).unwrap();
            encoder.finish(&mut out).unwrap();
            assert_eq!(decode(spec, &out), b"first, second", "{spec:?}");
        }
    }

    #[test]
    fn random_bytes_grow_little() {
        let mut state = 7_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .take(50_000)
        .collect();
        for spec in SPECS {
            let mut encoder = spec.encoder(None).unwrap();
            encoder.reset(None).unwrap();
            let mut out = Vec::new();
            encoder.feed(&noise, &mut out).unwrap();
            encoder.finish(&mut out).unwrap();
            assert!(out.len() < noise.len() + noise.len() / 20, "{spec:?} {}", out.len());
            assert!(decode(spec, &out) == noise, "{spec:?}");
        }
    }

    #[test]
    fn no_level_takes_all_memory() {
        for (level, length) in
            [(1, None), (8, None), (8, Some(1 << 40)), (22, None), (22, Some(1 << 40)), (22, Some(1 << 20))]
        {
            let mut encoder = Spec::Zstd { level }.encoder(length).unwrap();
            encoder.feed(b"x", &mut Vec::new()).unwrap();
            let size = encoder.size();
            assert!(size <= 20 << 20, "{level} {length:?}: {size}");
        }
    }

    /// Bytes that do not compress.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 7_u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    /// Checks the allocations of an encoder for `body`, piece by piece, against the estimate.
    fn check_memory(spec: Spec, length: Option<u64>, body: &[u8]) {
        // Room of its own for the output, which is on another account.
        let mut out = Vec::with_capacity(body.len() + (2 << 20));
        let mut kept = 0;
        let expected = spec.memory(length);
        let mut count = |what: &str, (peak, more): (isize, isize)| {
            let most = (kept + peak) as u64;
            assert!(most <= expected.peak, "{spec:?} {length:?}, {what}: {most} at most, not {expected:?}");
            kept += more;
            assert!(kept as u64 <= expected.peak);
            kept as u64
        };
        let (encoder, new) = CountingHeap::measure(|| spec.encoder(length).unwrap());
        let mut encoder = encoder;
        count("made", (new.peak, new.kept));
        for piece in body.chunks(100_000) {
            let ((), fed) = CountingHeap::measure(|| {
                encoder.feed(piece, &mut out).unwrap();
                encoder.rest();
            });
            let now = count("fed", (fed.peak, fed.kept));
            assert!(now <= expected.kept, "{spec:?} {length:?}: {now} kept, not {expected:?}");
        }
        let ((), ended) = CountingHeap::measure(|| encoder.finish(&mut out).unwrap());
        count("finished", (ended.peak, ended.kept));
        assert!(out.capacity() == body.len() + (2 << 20), "the output had its room");
    }

    #[test]
    fn encoder_memory_stays_within_its_estimate() {
        let gzip = [(6, 15, 8), (9, 9, 1)].map(|(level, window_bits, mem_level)| Spec::Gzip {
            level,
            window_bits,
            mem_level,
        });
        let brotli = (0..=11)
            .flat_map(|quality| [10, 19, 22].map(|window_bits| Spec::Brotli { quality, window_bits }));
        let zstd = [-5, 1, 2, 3, 4, 6, 8, 9, 12, 22].map(|level| Spec::Zstd { level });
        const LONG: usize = 1_200_000;
        let bodies = [noise(LONG), text(LONG)];
        for spec in gzip.into_iter().chain(brotli).chain(zstd) {
            for body in &bodies {
                let most = if spec.cost_ns() > 100 { 100_000 } else { LONG };
                for (len, is_known) in [(1000, true), (100_000, true), (LONG, true), (LONG, false)] {
                    let len = len.min(most);
                    check_memory(spec, is_known.then_some(len as u64), &body[..len]);
                }
            }
        }
    }

    #[test]
    fn a_body_of_unknown_length_begins_with_a_small_encoder() {
        for (spec, max) in [
            (Spec::Brotli { quality: 6, window_bits: 24 }, 6 << 20),
            (Spec::Brotli { quality: 11, window_bits: 24 }, 8 << 20),
            (Spec::Zstd { level: 3 }, 3 << 20),
            (Spec::Zstd { level: 22 }, 11 << 20),
        ] {
            let mut encoder = spec.encoder(None).unwrap();
            encoder.feed(&text(100_000), &mut Vec::new()).unwrap();
            encoder.rest();
            assert!(encoder.size() <= max, "{spec:?}: {}", encoder.size());
        }
    }

    #[test]
    fn a_short_body_takes_little() {
        for (spec, length, max) in [
            (Spec::Brotli { quality: 6, window_bits: 19 }, 10_000, 4 << 20),
            (Spec::Brotli { quality: 6, window_bits: 24 }, 300_000, 6 << 20),
            (Spec::Brotli { quality: 11, window_bits: 24 }, 60_000, 4 << 20),
            (Spec::Zstd { level: 22 }, 60_000, 4 << 20),
        ] {
            let mut encoder = spec.encoder(Some(length as u64)).unwrap();
            encoder.feed(&text(length), &mut Vec::new()).unwrap();
            encoder.rest();
            assert!(encoder.size() <= max, "{spec:?}: {}", encoder.size());
        }
    }

    #[test]
    fn higher_levels_cost_more() {
        let cost = |level| Spec::Zstd { level }.cost_ns();
        assert!(cost(-3) <= cost(1) && cost(1) < cost(9) && cost(9) < cost(19));
        assert_eq!(Spec::Gzip { level: 9, window_bits: 15, mem_level: 8 }.cost_ns(), 41);
    }
}
