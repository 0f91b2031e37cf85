//! Decoding and encoding of pictures, by the `image` crate: pure Rust, no files.

use std::fmt;
use std::io::Cursor;

use image::codecs::gif::{GifDecoder, GifEncoder};
use image::codecs::jpeg::{JpegDecoder, JpegEncoder};
use image::codecs::png::{CompressionType, FilterType, PngDecoder, PngEncoder};
use image::codecs::webp::{WebPDecoder, WebPEncoder};
use image::{ColorType, ExtendedColorType, ImageDecoder, ImageEncoder, ImageError, Limits};

use super::format::{PictureFormat, SCANS_MAX, scans, webp_frame_fits};
use super::picture::{PIXEL_LEN, Picture};

/// Bytes of memory that a decoder may take for each pixel beside the result: 16 bits for each of four colours, or the
/// coefficients and lines of a JPEG file.
const DECODER_BYTES: u64 = 12;
/// Bytes that a decoder may take however small the picture is: tables, profiles of colours.
const DECODER_MIN: u64 = 4 << 20;
/// Quality of the choice of 256 colours for a GIF, from 1 (best, slow) to 30.
const GIF_SPEED: i32 = 10;

/// Bytes of memory that work on so many pixels takes: the decoder's, the picture, and a second one that is made of it.
pub(super) fn memory(pixels: u64) -> u64 {
    pixels.saturating_mul(DECODER_BYTES + PIXEL_LEN as u64 * 2).saturating_add(DECODER_MIN)
}

/// Reason why a picture was not decoded or encoded.
#[derive(Debug)]
pub(super) enum CodecError {
    /// More pixels than are allowed.
    TooManyPixels,
    /// More than [`SCANS_MAX`] scans of a JPEG file.
    TooManyScans,
    /// A frame of a WebP file whose size is not the one that the file announces.
    OtherSize,
    /// Error of the codec.
    Image(ImageError),
}

impl From<ImageError> for CodecError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyPixels => f.write_str("too many pixels"),
            Self::TooManyScans => f.write_str("too many scans"),
            Self::OtherSize => f.write_str("a frame has another size"),
            Self::Image(error) => write!(f, "{error}"),
        }
    }
}

/// Decodes the first picture of a file, of at most so many pixels. Cost: some 10 ns a pixel.
pub(super) fn decode(format: PictureFormat, file: &[u8], pixels_max: u64) -> Result<Picture, CodecError> {
    let file_reader = Cursor::new(file);
    match format {
        PictureFormat::Jpeg if scans(file) > SCANS_MAX => Err(CodecError::TooManyScans),
        PictureFormat::Jpeg => read(JpegDecoder::new(file_reader)?, pixels_max),
        PictureFormat::Gif => read(GifDecoder::new(file_reader)?, pixels_max),
        PictureFormat::Png => {
            let mut limits = Limits::no_limits();
            limits.max_alloc = Some(decoder_memory(pixels_max));
            read(PngDecoder::with_limits(file_reader, limits)?, pixels_max)
        }
        PictureFormat::WebP => {
            let decoder = WebPDecoder::new(file_reader)?;
            if !webp_frame_fits(file, decoder.dimensions()) {
                return Err(CodecError::OtherSize);
            }
            read(decoder, pixels_max)
        }
    }
}

fn decoder_memory(pixels: u64) -> u64 {
    pixels.saturating_mul(DECODER_BYTES).saturating_add(DECODER_MIN)
}

fn read(mut decoder: impl ImageDecoder, pixels_max: u64) -> Result<Picture, CodecError> {
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > pixels_max {
        return Err(CodecError::TooManyPixels);
    }
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(decoder_memory(pixels));
    decoder.set_limits(limits)?;
    let color = decoder.color_type();
    let size = decoder.total_bytes();
    // The decoder needs at most eight bytes for each pixel.
    let mut samples = vec![0; usize::try_from(size).map_err(|_| CodecError::TooManyPixels)?];
    decoder.read_image(&mut samples)?;
    Ok(Picture { width, height, pixels: rgba(color, samples) })
}

/// Samples of a decoder as red, green, blue and alpha.
fn rgba(color: ColorType, samples: Vec<u8>) -> Vec<u8> {
    if color == ColorType::Rgba8 {
        return samples;
    }
    let channels = usize::from(color.channel_count());
    let has_alpha = color.has_alpha();
    let sample_len = usize::from(color.bytes_per_pixel()) / channels;
    // The more significant byte of each sample.
    let high = if cfg!(target_endian = "little") { sample_len - 1 } else { 0 };
    let mut out = Vec::with_capacity(samples.len() / (channels * sample_len) * PIXEL_LEN);
    for pixel in samples.chunks_exact(channels * sample_len) {
        let sample = |n: usize| pixel.get(n * sample_len + high).copied().unwrap_or(0);
        let alpha = if has_alpha { sample(channels - 1) } else { u8::MAX };
        out.extend(match channels {
            1 | 2 => [sample(0), sample(0), sample(0), alpha],
            _ => [sample(0), sample(1), sample(2), alpha],
        });
    }
    out
}

/// Encodes a picture; `quality` is for JPEG, from 1 to 100.
pub(super) fn encode(format: PictureFormat, picture: Picture, quality: u8) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::new();
    let Picture { width, height, mut pixels } = picture;
    match format {
        PictureFormat::Jpeg => {
            let pixels = rgb(&pixels);
            JpegEncoder::new_with_quality(&mut out, quality.clamp(1, 100)).encode(
                &pixels,
                width,
                height,
                ExtendedColorType::Rgb8,
            )?;
        }
        PictureFormat::Gif => {
            // A pixel of a GIF is transparent or not.
            for alpha in pixels.iter_mut().skip(PIXEL_LEN - 1).step_by(PIXEL_LEN) {
                *alpha = if *alpha < 128 { 0 } else { u8::MAX };
            }
            let mut encoder = GifEncoder::new_with_speed(&mut out, GIF_SPEED);
            encoder.encode(&pixels, width, height, ExtendedColorType::Rgba8)?;
        }
        // DIFF(nginx): a palette becomes true colour.
        PictureFormat::Png => {
            let (pixels, color) = opaque_or_not(width, height, pixels);
            PngEncoder::new_with_quality(&mut out, CompressionType::Default, FilterType::Adaptive)
                .write_image(&pixels, width, height, color)?;
        }
        PictureFormat::WebP => {
            let (pixels, color) = opaque_or_not(width, height, pixels);
            WebPEncoder::new_lossless(&mut out).encode(&pixels, width, height, color)?;
        }
    }
    Ok(out)
}

/// Pixels without alpha if all of them are opaque.
fn opaque_or_not(width: u32, height: u32, pixels: Vec<u8>) -> (Vec<u8>, ExtendedColorType) {
    let picture = Picture { width, height, pixels };
    if picture.is_opaque() {
        (rgb(&picture.pixels), ExtendedColorType::Rgb8)
    } else {
        (picture.pixels, ExtendedColorType::Rgba8)
    }
}

fn rgb(pixels: &[u8]) -> Vec<u8> {
    let (pixels, _) = pixels.as_chunks::<PIXEL_LEN>();
    pixels.iter().flat_map(|[red, green, blue, _]| [*red, *green, *blue]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [PictureFormat; 4] =
        [PictureFormat::Jpeg, PictureFormat::Gif, PictureFormat::Png, PictureFormat::WebP];

    fn two_colours(width: u32, height: u32) -> Picture {
        let pixels = (0..width * height)
            .flat_map(|n| if n % width < width / 2 { [200, 30, 30, 255] } else { [20, 20, 220, 255] })
            .collect();
        Picture { width, height, pixels }
    }

    #[test]
    fn pictures_survive_their_codec() {
        for format in ALL {
            let picture = two_colours(32, 16);
            let file = encode(format, picture.clone(), 90).unwrap();
            assert_eq!(PictureFormat::of(&file), Some(format));
            let header = format.header(&file).unwrap();
            assert_eq!((header.width, header.height), (32, 16), "{format:?}");
            let decoded = decode(format, &file, 512).unwrap();
            let close = |a: &u8, b: &u8| a.abs_diff(*b) < 12;
            assert!(picture.pixels.iter().zip(&decoded.pixels).all(|(a, b)| close(a, b)), "{format:?}");
            assert!(matches!(decode(format, &file, 511), Err(CodecError::TooManyPixels)), "{format:?}");
        }
    }

    #[test]
    fn transparency_is_kept() {
        let pixels = vec![10, 20, 30, 0, 200, 100, 50, 255];
        for format in [PictureFormat::Gif, PictureFormat::Png, PictureFormat::WebP] {
            let picture = Picture { width: 2, height: 1, pixels: pixels.clone() };
            let decoded = decode(format, &encode(format, picture, 90).unwrap(), 2).unwrap();
            assert_eq!((decoded.pixels[3], decoded.pixels[7]), (0, 255), "{format:?}");
        }
    }

    #[test]
    fn broken_files_are_errors() {
        for format in ALL {
            let file = encode(format, two_colours(20, 20), 50).unwrap();
            for at in 16..file.len().min(200) {
                let mut broken = file.clone();
                broken[at] ^= 0xff;
                let _ = decode(format, &broken, 1 << 16);
                let _ = decode(format, &file[..at], 1 << 16);
            }
        }
    }

    #[test]
    fn claimed_size_is_refused_before_memory_is_taken() {
        let mut png = encode(PictureFormat::Png, two_colours(2, 2), 50).unwrap();
        png[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
        assert!(decode(PictureFormat::Png, &png, 1 << 20).is_err());
        let gif = b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\0\0\0\0\xff\xff\xff\xff\0\x02\x02\x44\x01\0;";
        assert!(matches!(decode(PictureFormat::Gif, gif, 1 << 20), Err(CodecError::TooManyPixels)));
        let mut scans = encode(PictureFormat::Jpeg, two_colours(8, 8), 50).unwrap();
        scans.extend_from_slice(&[0xff, 0xda].repeat(SCANS_MAX));
        assert!(matches!(decode(PictureFormat::Jpeg, &scans, 100), Err(CodecError::TooManyScans)));
    }

    /// A WebP file with these chunks behind the header of an extended one, whose canvas has 2 × 1 pixels.
    fn extended_webp(flags: u8, chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
        let mut file = b"RIFF\0\x10\0\0WEBPVP8X\x0a\0\0\0".to_vec();
        file.extend([flags, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
        file.extend(riff(chunks));
        file
    }

    fn riff(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
        let chunk = |(name, content): &(&[u8; 4], Vec<u8>)| {
            let padding = vec![0; content.len() % 2];
            [&name[..], &(content.len() as u32).to_le_bytes(), content, &padding].concat()
        };
        chunks.iter().flat_map(chunk).collect()
    }

    /// Beginning of a lossy frame.
    fn frame(width: u16, height: u16) -> Vec<u8> {
        let [width, height] = [width.to_le_bytes(), height.to_le_bytes()];
        [&[0x10, 0, 0, 0x9d, 0x01, 0x2a], &width[..], &height, &[0; 20]].concat()
    }

    #[test]
    fn frame_of_another_size_is_refused_before_memory_is_taken() {
        let animated = |chunks: &[(&[u8; 4], Vec<u8>)]| {
            let header = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0];
            let chunks = [(b"ANIM", vec![0; 6]), (b"ANMF", [&header[..], &riff(chunks)].concat())];
            extended_webp(2, &chunks)
        };
        let alpha = (b"ALPH", vec![0; 3]);
        for (file, fits) in [
            (extended_webp(0, &[(b"VP8 ", frame(2, 1))]), true),
            (extended_webp(0, &[(b"VP8 ", frame(16_383, 16_383))]), false),
            (animated(&[(b"VP8 ", frame(2, 1))]), true),
            (animated(&[(b"VP8 ", frame(16_383, 1))]), false),
            (animated(&[alpha.clone(), (b"VP8 ", frame(2, 1))]), true),
            // The frame has more pixels than its alpha channel.
            (animated(&[alpha.clone(), (b"VP8 ", frame(3, 3))]), false),
            (animated(&[alpha.clone(), (b"VP8L", frame(3, 3))]), false),
        ] {
            let refused = matches!(decode(PictureFormat::WebP, &file, 100), Err(CodecError::OtherSize));
            assert_eq!(refused, !fits, "{file:?}");
        }
    }

    #[test]
    fn samples_become_four_bytes() {
        let sixteen = |values: &[u16]| values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        for (color, samples, expected) in [
            (ColorType::L8, vec![7], [7, 7, 7, 255]),
            (ColorType::La8, vec![7, 9], [7, 7, 7, 9]),
            (ColorType::Rgb8, vec![1, 2, 3], [1, 2, 3, 255]),
            (ColorType::L16, sixteen(&[0x0701]), [7, 7, 7, 255]),
            (ColorType::Rgba16, sixteen(&[0x0100, 0x0200, 0x0300, 0x0400]), [1, 2, 3, 4]),
        ] {
            assert_eq!(rgba(color, samples), expected, "{color:?}");
        }
    }
}
