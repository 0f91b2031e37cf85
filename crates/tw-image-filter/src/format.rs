//! Kinds of pictures, and their sizes, read from their headers without decoding anything.

use super::orientation::Orientation;

/// Bytes at the beginning of a body that tell its kind; nginx takes nothing shorter for a picture.
pub(super) const SIGNATURE_LEN: usize = 16;
/// Part of a JPEG file that fields of applications (EXIF) may take before the file is written anew without them: a 20th.
const APPLICATION_PART: usize = 20;
/// Scans of a JPEG file. Encoders write about 10; each scan costs a pass over all blocks of the picture.
pub(super) const SCANS_MAX: usize = 100;

/// Segments of a JPEG file and bytes between them, or chunks of another file, that are looked at in search of its size and
/// orientation.
pub(super) const STEPS_MAX: usize = 4096;

/// Kind of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PictureFormat {
    Jpeg,
    Gif,
    Png,
    WebP,
}

/// Facts of the header of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PictureHeader {
    pub(super) width: u32,
    pub(super) height: u32,
    /// Set if the picture is written anew even if it is small enough.
    pub(super) has_long_fields: bool,
}

impl PictureHeader {
    fn new(width: u32, height: u32) -> Option<Self> {
        (width > 0 && height > 0).then_some(Self { width, height, has_long_fields: false })
    }

    /// The header with the sides of the picture as it is shown.
    pub(super) fn shown(self, orientation: Orientation) -> Self {
        let (width, height) = orientation.sides((self.width, self.height));
        Self { width, height, ..self }
    }

    /// Number of its pixels.
    pub(super) fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

impl PictureFormat {
    /// Kind of a body that begins with these bytes.
    pub(super) fn of(begin: &[u8]) -> Option<Self> {
        let begin: &[u8; SIGNATURE_LEN] = begin.first_chunk()?;
        match begin {
            [0xff, 0xd8, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            _ => None,
        }
    }

    /// Media type.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Png => "image/png",
            Self::WebP => "image/webp",
        }
    }

    /// Word for it in the JSON of `image_filter size`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Gif => "gif",
            Self::Png => "png",
            Self::WebP => "webp",
        }
    }

    /// Reads the header of a whole picture.
    pub(super) fn header(self, bytes: &[u8]) -> Option<PictureHeader> {
        let at = |at: usize| bytes.get(at).copied().map(u32::from);
        match self {
            Self::Jpeg => jpeg_header(bytes),
            Self::Gif => PictureHeader::new(at(6)? | at(7)? << 8, at(8)? | at(9)? << 8),
            Self::Png => PictureHeader::new(
                u32::from_be_bytes(*bytes.get(16..)?.first_chunk()?),
                u32::from_be_bytes(*bytes.get(20..)?.first_chunk()?),
            ),
            Self::WebP => match bytes.get(12..16)? {
                b"VP8 " => {
                    PictureHeader::new((at(26)? | at(27)? << 8) & 0x3fff, (at(28)? | at(29)? << 8) & 0x3fff)
                }
                b"VP8L" if at(20)? == 0x2f => {
                    let packed = u32::from_le_bytes(*bytes.get(21..)?.first_chunk()?);
                    PictureHeader::new((packed & 0x3fff) + 1, (packed >> 14 & 0x3fff) + 1)
                }
                b"VP8X" => PictureHeader::new(
                    (at(24)? | at(25)? << 8 | at(26)? << 16) + 1,
                    (at(27)? | at(28)? << 8 | at(29)? << 16) + 1,
                ),
                _ => None,
            },
        }
    }

    /// Returns true if the colours of a picture come from a palette.
    pub(super) fn has_palette(self, bytes: &[u8]) -> bool {
        match self {
            Self::Gif => true,
            // The type of colours in IHDR.
            Self::Png => bytes.get(25) == Some(&3),
            Self::Jpeg | Self::WebP => false,
        }
    }
}

/// Segment of a JPEG file.
pub(super) struct JpegSegment<'f> {
    pub(super) marker: u8,
    /// Bytes of its content and of this number.
    pub(super) len: usize,
    /// The file from the marker on.
    pub(super) rest: &'f [u8],
}

/// Segments of a JPEG file.
pub(super) fn jpeg_segments(bytes: &[u8]) -> impl Iterator<Item = JpegSegment<'_>> {
    let mut at = 2;
    let mut steps = 0;
    std::iter::from_fn(move || {
        while steps < STEPS_MAX {
            steps += 1;
            let rest = bytes.get(at..)?;
            let marker = match *rest.first_chunk()? {
                [0xff, marker] if marker != 0xff => marker,
                _ => {
                    at += 1;
                    continue;
                }
            };
            let len = usize::from(u16::from_be_bytes(*rest.get(2..)?.first_chunk()?));
            at += 2 + len;
            return Some(JpegSegment { marker, len, rest });
        }
        None
    })
}

/// Walks over the segments of a JPEG file up to its frame header.
fn jpeg_header(bytes: &[u8]) -> Option<PictureHeader> {
    let mut fields = 0;
    for JpegSegment { marker, len, rest } in jpeg_segments(bytes) {
        match marker {
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                let height = u16::from_be_bytes(*rest.get(5..)?.first_chunk()?);
                let width = u16::from_be_bytes(*rest.get(7..)?.first_chunk()?);
                let header = PictureHeader::new(width.into(), height.into())?;
                let has_long_fields = bytes.len() / APPLICATION_PART < fields;
                return Some(PictureHeader { has_long_fields, ..header });
            }
            0xe1..=0xef => fields += len,
            _ => {}
        }
    }
    None
}

/// Number of scans of a JPEG file. Within the data of a scan, no marker follows 0xff.
pub(super) fn scans(bytes: &[u8]) -> usize {
    bytes.windows(2).filter(|pair| *pair == [0xff, 0xda]).count()
}

/// Returns true if the lossy frame of a WebP file that is decoded has the size that the file announces for it. The decoder
/// takes memory by the size of the frame itself.
pub(super) fn webp_frame_fits(file: &[u8], canvas: (u32, u32)) -> bool {
    if file.get(12..16) != Some(b"VP8X") {
        // The only frame has the size of the file.
        return true;
    }
    let has_size = |frame: &[u8], size: (u32, u32)| vp8_size(frame) == Some(size);
    let mut is_first_animated = true;
    webp_chunks(file.get(12..).unwrap_or_default()).all(|(name, content)| match &name {
        b"VP8 " => has_size(content, canvas),
        b"ANMF" if std::mem::take(&mut is_first_animated) => {
            let Some((fields, frame)) = content.split_at_checked(16) else { return false };
            let side =
                |at: usize| fields[at..at + 3].iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte)) + 1;
            let size = (side(6), side(9));
            let mut chunks = webp_chunks(frame);
            match (chunks.next(), chunks.next()) {
                (Some((name, _)), _) if name == *b"VP8L" => true,
                (Some((name, frame)), _) if name == *b"VP8 " => has_size(frame, size),
                // The frame follows its alpha channel.
                (Some((name, _)), Some((behind, frame))) if name == *b"ALPH" => {
                    behind == *b"VP8 " && has_size(frame, size)
                }
                _ => false,
            }
        }
        _ => true,
    })
}

/// Chunks of a RIFF file: name and content, which may be cut off.
pub(super) fn webp_chunks(mut rest: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (head, behind) = rest.split_first_chunk::<8>()?;
        let [name @ .., a, b, c, d] = *head;
        let size = u32::from_le_bytes([a, b, c, d]) as usize;
        rest = behind.get(size.next_multiple_of(2)..).unwrap_or_default();
        Some((name, behind.get(..size).unwrap_or(behind)))
    })
}

/// Width and height of a key frame (RFC 6386 section 9.1).
fn vp8_size(frame: &[u8]) -> Option<(u32, u32)> {
    let [tag, _, _, 0x9d, 0x01, 0x2a, width @ .., c, d] = *frame.first_chunk::<10>()? else { return None };
    let side = |bytes: [u8; 2]| u32::from(u16::from_le_bytes(bytes) & 0x3fff);
    (tag & 1 == 0).then_some((side(width), side([c, d])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JPEG segments: marker and content.
    fn jpeg(segments: &[(u8, &[u8])]) -> Vec<u8> {
        let mut out = vec![0xff, 0xd8];
        for (marker, content) in segments {
            out.extend_from_slice(&[0xff, *marker]);
            out.extend_from_slice(&(content.len() as u16 + 2).to_be_bytes());
            out.extend_from_slice(content);
        }
        out
    }

    fn webp(rest: &[u8]) -> Vec<u8> {
        [b"RIFF\0\0\0\0WEBP", rest].concat()
    }

    #[test]
    fn signatures() {
        for (begin, expected) in [
            (&b"\xff\xd8\xff\xe0............"[..], Some(PictureFormat::Jpeg)),
            (b"GIF89a..........", Some(PictureFormat::Gif)),
            (b"GIF87a..........", Some(PictureFormat::Gif)),
            (b"GIF88a..........", None),
            (b"GIF89a.........", None),
            (b"\x89PNG\r\n\x1a\n........", Some(PictureFormat::Png)),
            (b"RIFF....WEBPVP8 ", Some(PictureFormat::WebP)),
            (b"RIFF....WAVEfmt ", None),
            (b"<html><body></body>", None),
            (b"", None),
        ] {
            assert_eq!(PictureFormat::of(begin), expected, "{begin:?}");
        }
    }

    #[test]
    fn sizes_are_read_from_headers() {
        let frame = [8, 0, 20, 1, 4, 3];
        let long = [0; 1000];
        for (format, bytes, expected) in [
            (PictureFormat::Jpeg, jpeg(&[(0xe0, b"JFIF"), (0xdb, b"q"), (0xc2, &frame)]), Some((260, 20))),
            (PictureFormat::Jpeg, jpeg(&[(0xe1, &long), (0xc0, &frame)]), Some((260, 20))),
            (PictureFormat::Jpeg, jpeg(&[(0xc4, &frame)]), None),
            (PictureFormat::Jpeg, jpeg(&[(0xc0, &frame[..4])]), None),
            (PictureFormat::Jpeg, vec![0xff; 40], None),
            (PictureFormat::Jpeg, jpeg(&[(0xc0, &[8, 0, 0, 0, 0, 0])]), None),
            (PictureFormat::Gif, b"GIF89a\x01\x02\x03\x00".to_vec(), Some((513, 3))),
            (PictureFormat::Gif, b"GIF89a\x01\x02\x03".to_vec(), None),
            (
                PictureFormat::Png,
                b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\x01\0\0\0\0\0\x09".to_vec(),
                Some((65_536, 9)),
            ),
            (PictureFormat::Png, b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\x01\0\0".to_vec(), None),
            (PictureFormat::WebP, webp(b"VP8 \0\0\0\0\0\0\0\x9d\x01\x2a\x10\x40\x20\x00"), Some((16, 32))),
            (PictureFormat::WebP, webp(b"VP8L\0\0\0\0\x2f\x0f\xc0\x07\0"), Some((16, 32))),
            (PictureFormat::WebP, webp(b"VP8L\0\0\0\0\x2e\x0f\xc0\x07\0"), None),
            (PictureFormat::WebP, webp(b"VP8X\0\0\0\0\0\0\0\0\xff\x03\0\x02\0\0"), Some((1024, 3))),
            (PictureFormat::WebP, webp(b"ALPH"), None),
        ] {
            let entry = format.header(&bytes).map(|header| (header.width, header.height));
            assert_eq!(entry, expected, "{format:?} {bytes:?}");
            for end in 0..bytes.len() {
                // A cut one never panics.
                let _ = format.header(&bytes[..end]);
            }
        }
    }

    #[test]
    fn search_for_a_size_ends() {
        let frame = [8, 0, 20, 0, 30, 3];
        for (junk, expected) in [(10, true), (STEPS_MAX, false)] {
            let file = [&[0xff, 0xd8][..], &vec![0xff; junk], &jpeg(&[(0xc0, &frame)])[2..]].concat();
            assert_eq!(PictureFormat::Jpeg.header(&file).is_some(), expected, "{junk}");
        }
    }

    #[test]
    fn long_fields_of_applications_are_noticed() {
        let frame = [8, 0, 20, 0, 30, 3];
        for (fields, expected) in [(4_usize, false), (300, false), (1000, true)] {
            let file = [jpeg(&[(0xe1, &vec![0; fields]), (0xc0, &frame)]), vec![0; 7000]].concat();
            assert_eq!(PictureFormat::Jpeg.header(&file).unwrap().has_long_fields, expected, "{fields}");
        }
    }

    #[test]
    fn scans_are_counted() {
        let file = jpeg(&[(0xda, b"a"), (0xda, b"\xff\x00\xff\xd0")]);
        assert_eq!(scans(&file), 2);
    }
}
