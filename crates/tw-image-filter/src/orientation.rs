//! Orientation of a picture: how its stored rows and columns are shown, as the EXIF data of its file says.
//!
//! ```text
//! 1 upright    2 mirrored    3 upside down    4 upside down, mirrored
//! 8 on its right side        6 on its left side        5, 7 the same, mirrored
//! ```

use super::format::{PictureFormat, STEPS_MAX, jpeg_segments, webp_chunks};

/// Tag of the orientation in the first directory of EXIF data.
const TAG: u16 = 0x0112;
/// Type of a 16-bit number in EXIF data.
const SHORT: u16 = 3;
/// Bytes of an entry of a directory.
const ENTRY_LEN: usize = 12;
/// Begin of EXIF data in a JPEG file.
const EXIF: &[u8] = b"Exif\0\0";
/// Marker of the first scan of a JPEG file.
const START_OF_SCAN: u8 = 0xda;

/// Orientation with EXIF's number of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Orientation {
    Upright = 1,
    Mirrored = 2,
    Turned180 = 3,
    MirroredTurned180 = 4,
    /// Rows are columns.
    Transposed = 5,
    /// The first row is shown on the right side.
    Turned90 = 6,
    /// Rows are columns from the right, and columns are rows from below.
    Transversed = 7,
    /// The first row is shown on the left side, from below.
    Turned270 = 8,
}

impl Orientation {
    /// Orientation of a file; upright if nothing else is said.
    pub(super) fn of(format: PictureFormat, file: &[u8]) -> Self {
        let tiff = match format {
            PictureFormat::Jpeg => jpeg_exif(file),
            PictureFormat::Png => png_exif(file),
            PictureFormat::WebP => webp_exif(file),
            PictureFormat::Gif => None,
        };
        tiff.and_then(number).and_then(Self::of_number).unwrap_or(Self::Upright)
    }

    fn of_number(number: u16) -> Option<Self> {
        [
            Self::Upright,
            Self::Mirrored,
            Self::Turned180,
            Self::MirroredTurned180,
            Self::Transposed,
            Self::Turned90,
            Self::Transversed,
            Self::Turned270,
        ]
        .into_iter()
        .find(|one| *one as u16 == number)
    }

    /// Width and height as shown of a picture that is stored with these, and the other way round.
    pub(super) fn sides<T>(self, (width, height): (T, T)) -> (T, T) {
        match self {
            Self::Upright | Self::Mirrored | Self::Turned180 | Self::MirroredTurned180 => (width, height),
            Self::Transposed | Self::Turned90 | Self::Transversed | Self::Turned270 => (height, width),
        }
    }

    /// Column and row, as stored, of the pixel that is shown at `(x, y)` of a picture stored with these sides.
    pub(super) fn stored(self, (x, y): (usize, usize), (width, height): (usize, usize)) -> (usize, usize) {
        match self {
            Self::Upright => (x, y),
            Self::Mirrored => (width - 1 - x, y),
            Self::Turned180 => (width - 1 - x, height - 1 - y),
            Self::MirroredTurned180 => (x, height - 1 - y),
            Self::Transposed => (y, x),
            Self::Turned90 => (y, height - 1 - x),
            Self::Transversed => (width - 1 - y, height - 1 - x),
            Self::Turned270 => (width - 1 - y, x),
        }
    }
}

/// EXIF data of a JPEG file, in front of its first scan.
fn jpeg_exif(file: &[u8]) -> Option<&[u8]> {
    jpeg_segments(file).take_while(|segment| segment.marker != START_OF_SCAN).find_map(|segment| {
        let content = segment.rest.get(4..2 + segment.len).filter(|_| segment.marker == 0xe1)?;
        content.strip_prefix(EXIF)
    })
}

/// EXIF data of a PNG file: its `eXIf` chunk.
fn png_exif(file: &[u8]) -> Option<&[u8]> {
    let mut rest = file.get(8..)?;
    for _ in 0..STEPS_MAX {
        let (len, behind) = rest.split_first_chunk::<4>()?;
        let len = u32::from_be_bytes(*len) as usize;
        let (name, content) = behind.split_first_chunk::<4>()?;
        if name == b"eXIf" {
            return content.get(..len);
        }
        // A checksum follows.
        rest = content.get(len..)?.get(4..)?;
    }
    None
}

/// EXIF data of a WebP file: its `EXIF` chunk, which some encoders begin as in a JPEG file.
fn webp_exif(file: &[u8]) -> Option<&[u8]> {
    let mut chunks = webp_chunks(file.get(12..)?).take(STEPS_MAX);
    let (_, content) = chunks.find(|(name, _)| name == b"EXIF")?;
    Some(content.strip_prefix(EXIF).unwrap_or(content))
}

/// Number of the orientation in EXIF data, a TIFF file without pictures.
fn number(tiff: &[u8]) -> Option<u16> {
    let is_little_endian = match tiff.first_chunk::<4>()? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = *tiff.get(at..)?.first_chunk()?;
        Some(if is_little_endian { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let offset = *tiff.get(4..)?.first_chunk()?;
    let offset = if is_little_endian { u32::from_le_bytes(offset) } else { u32::from_be_bytes(offset) };
    let directory = offset as usize;
    let entries = tiff.get(directory..)?.get(2..)?.len() / ENTRY_LEN;
    let entries = entries.min(short(directory)?.into());
    let mut places = (0..entries).map(|nth| directory + 2 + nth * ENTRY_LEN);
    let entry = places.find(|at| short(*at) == Some(TAG))?;
    short(entry + 8).filter(|_| short(entry + 2) == Some(SHORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EXIF data with this orientation behind another entry.
    fn exif(is_little_endian: bool, kind: u16, number: u16) -> Vec<u8> {
        let short = |n: u16| if is_little_endian { n.to_le_bytes() } else { n.to_be_bytes() }.to_vec();
        let long = |n: u32| if is_little_endian { n.to_le_bytes() } else { n.to_be_bytes() }.to_vec();
        let entry =
            |tag, kind, value: &[u8]| [&short(tag)[..], &short(kind), &long(1), value, &[0; 2]].concat();
        let begin: &[u8] = if is_little_endian { b"II" } else { b"MM" };
        [
            begin,
            &short(42),
            &long(8),
            &short(2),
            &entry(0x0100, 3, &short(7)),
            &entry(TAG, kind, &short(number)),
            &long(0),
        ]
        .concat()
    }

    fn chunk(name: &[u8; 4], content: &[u8], is_png: bool) -> Vec<u8> {
        let len = content.len() as u32;
        if is_png {
            [&len.to_be_bytes()[..], name, content, &[0; 4]].concat()
        } else {
            [&name[..], &len.to_le_bytes(), content, &vec![0; content.len() % 2]].concat()
        }
    }

    fn files(exif: &[u8]) -> [(PictureFormat, Vec<u8>); 4] {
        let segment = |marker: u8, content: &[u8]| {
            [&[0xff, marker][..], &(content.len() as u16 + 2).to_be_bytes(), content].concat()
        };
        let app1 = segment(0xe1, &[EXIF, exif].concat());
        let jpeg = [&[0xff, 0xd8][..], &segment(0xe0, b"JFIF"), &segment(0xe1, b"http://ns"), &app1].concat();
        let png = [&b"\x89PNG\r\n\x1a\n"[..], &chunk(b"IHDR", &[0; 13], true), &chunk(b"eXIf", exif, true)]
            .concat();
        let webp = |exif: &[u8]| {
            let chunks = [chunk(b"VP8X", &[0; 10], false), chunk(b"EXIF", exif, false)].concat();
            [&b"RIFF\0\0\0\0WEBP"[..], &chunks].concat()
        };
        let prefixed = webp(&[EXIF, exif].concat());
        [
            (PictureFormat::Jpeg, jpeg),
            (PictureFormat::Png, png),
            (PictureFormat::WebP, webp(exif)),
            (PictureFormat::WebP, prefixed),
        ]
    }

    #[test]
    fn orientation_is_read_from_every_format() {
        for is_little_endian in [true, false] {
            for number in 1..=8 {
                for (format, file) in files(&exif(is_little_endian, SHORT, number)) {
                    assert_eq!(Orientation::of(format, &file) as u16, number, "{format:?}");
                    for end in 0..file.len() {
                        // A cut one never panics.
                        let _ = Orientation::of(format, &file[..end]);
                    }
                }
            }
        }
    }

    #[test]
    fn picture_without_valid_orientation_is_upright() {
        let mut far = exif(true, SHORT, 6);
        far[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut many = exif(false, SHORT, 9);
        many[8..10].copy_from_slice(&[0xff, 0xff]);
        for data in [exif(true, SHORT, 0), exif(true, SHORT, 9), exif(true, 4, 6), far, many, b"II*".to_vec()]
        {
            for (format, file) in files(&data) {
                assert_eq!(Orientation::of(format, &file), Orientation::Upright, "{format:?} {data:?}");
            }
        }
        // Orientation is not looked for behind the first scan, where only pixels follow.
        let [(format, file), ..] = files(&exif(true, SHORT, 6));
        let behind = [&[0xff, 0xd8, 0xff, START_OF_SCAN, 0, 2][..], &file[2..]].concat();
        assert_eq!(Orientation::of(format, &behind), Orientation::Upright);
    }
}
