//! Codecs of tracks, from their descriptions (`stsd`; ISO/IEC 14496-12, 14496-14 and 14496-15, QuickTime): what a transport
//! stream needs to know of them, and the form that their samples have there.

use crate::mp4::movie::{ParsedHeader, read_header};

/// Start code of a NAL unit.
const START_CODE: [u8; 4] = [0, 0, 0, 1];
/// Length of an ADTS header.
const ADTS_LEN: usize = 7;
/// Longest frame whose length fits an ADTS header, that header included.
const ADTS_FRAME_MAX: usize = (1 << 13) - 1;
/// Boxes in each other in which the description of sound is looked for: in `wave` of QuickTime.
const DEPTH_MAX: u32 = 3;
/// Sampling frequencies by their index in ADTS headers.
const FREQUENCIES: [u32; 13] =
    [96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350];

/// Codec of one track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Codec {
    /// H.264 or H.265.
    Video(Video),
    /// AAC.
    Aac(Aac),
    /// MPEG audio, layers 1 to 3.
    Mp3 {
        /// True for the low sampling frequencies of MPEG-2.
        is_mpeg2: bool,
    },
}

/// Video whose samples are lists of NAL units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Video {
    kind: VideoKind,
    /// Bytes of the length before each unit: 1 to 4.
    length_len: usize,
    /// Parameter sets with start codes, in front of each key frame.
    parameter_sets: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VideoKind {
    H264,
    H265,
}

/// Parameters of ADTS headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Aac {
    /// Object type less one.
    profile: u8,
    frequency: u8,
    channels: u8,
}

impl Codec {
    /// Codec of the first description of a track that has one which a transport stream can carry.
    pub(super) fn of(stsd: &[u8]) -> Option<Self> {
        // Version and flags, the number of descriptions, then these.
        let (name, entry) = first_box(stsd.get(8..)?)?;
        match &name {
            b"avc1" | b"avc3" => Video::h264(find(entry.get(78..)?, *b"avcC", 0)?),
            b"hvc1" | b"hev1" => Video::h265(find(entry.get(78..)?, *b"hvcC", 0)?),
            b"mp4a" => {
                let esds = find(sound_boxes(entry)?, *b"esds", 0)?;
                sound(esds.get(4..)?, SoundFormat::of(entry))
            }
            b".mp3" | b"ms\0U" => Some(Self::mp3(SoundFormat::of(entry).sampling_rate)),
            _ => None,
        }
    }

    fn mp3(sampling_rate: u32) -> Self {
        Self::Mp3 { is_mpeg2: sampling_rate < 32_000 }
    }

    /// Type of the stream in a program map table.
    pub(super) fn stream_type(&self) -> u8 {
        match self {
            Self::Video(Video { kind: VideoKind::H264, .. }) => 0x1b,
            Self::Video(Video { kind: VideoKind::H265, .. }) => 0x24,
            Self::Aac(_) => 0x0f,
            Self::Mp3 { is_mpeg2: false } => 0x03,
            Self::Mp3 { is_mpeg2: true } => 0x04,
        }
    }

    /// Appends a sample in the form of a transport stream; `None` if it has none.
    pub(super) fn push(&self, sample: &[u8], is_key: bool, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Video(video) => video.push(sample, is_key, out),
            Self::Aac(aac) => out.extend(aac.header(sample.len())?),
            Self::Mp3 { .. } => {}
        }
        if !matches!(self, Self::Video(_)) {
            out.extend_from_slice(sample);
        }
        Some(())
    }
}

impl Video {
    /// AVCDecoderConfigurationRecord.
    fn h264(record: &[u8]) -> Option<Codec> {
        let length_len = usize::from(record.get(4)? & 3) + 1;
        let mut parameter_sets = Vec::new();
        let mut rest = record.get(5..)?;
        for mask in [0x1f, 0xff] {
            let (count, units) = rest.split_first()?;
            rest = push_units(units, u16::from(count & mask), &mut parameter_sets)?;
        }
        Some(Codec::Video(Self { kind: VideoKind::H264, length_len, parameter_sets }))
    }

    /// HEVCDecoderConfigurationRecord.
    fn h265(record: &[u8]) -> Option<Codec> {
        let length_len = usize::from(record.get(21)? & 3) + 1;
        let mut parameter_sets = Vec::new();
        let (count, mut rest) = record.get(22..)?.split_first()?;
        for _ in 0..*count {
            let (&[_, high, low], units) = rest.split_first_chunk()?;
            rest = push_units(units, u16::from_be_bytes([high, low]), &mut parameter_sets)?;
        }
        Some(Codec::Video(Self { kind: VideoKind::H265, length_len, parameter_sets }))
    }

    /// Appends the NAL units of a sample behind an access unit delimiter, and behind the parameter sets if it is a key frame.
    fn push(&self, sample: &[u8], is_key: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&START_CODE);
        match self.kind {
            VideoKind::H264 => out.extend_from_slice(&[9, 0xf0]),
            VideoKind::H265 => out.extend_from_slice(&[0x46, 1, 0x50]),
        }
        if is_key {
            out.extend_from_slice(&self.parameter_sets);
        }
        let mut rest = sample;
        while let Some((length, units)) = rest.split_at_checked(self.length_len) {
            let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            // A unit whose announced length exceeds the sample ends with the sample.
            let (unit, behind) = units.split_at(length.min(units.len()));
            if !unit.is_empty() && !self.is_delimiter(unit) {
                out.extend_from_slice(&START_CODE);
                out.extend_from_slice(unit);
            }
            rest = behind;
        }
    }

    fn is_delimiter(&self, unit: &[u8]) -> bool {
        let first = unit.first().copied().unwrap_or(0);
        match self.kind {
            VideoKind::H264 => first & 0x1f == 9,
            VideoKind::H265 => first >> 1 & 0x3f == 35,
        }
    }
}

/// Appends `count` units, each behind its length in two bytes; returns what follows them.
fn push_units<'a>(mut rest: &'a [u8], count: u16, out: &mut Vec<u8>) -> Option<&'a [u8]> {
    for _ in 0..count {
        let (length, units) = rest.split_first_chunk()?;
        let (unit, behind) = units.split_at_checked(u16::from_be_bytes(*length).into())?;
        out.extend_from_slice(&START_CODE);
        out.extend_from_slice(unit);
        rest = behind;
    }
    Some(rest)
}

impl Aac {
    /// AudioSpecificConfig (ISO/IEC 14496-3).
    fn of(config: &[u8], channels_of_entry: u8) -> Option<Self> {
        let mut bits = Bits { bytes: config, at: 0 };
        let object_type = bits.object_type()?;
        let index = bits.take(4)?;
        let frequency = match index {
            15 => {
                let frequency = bits.take(24)?;
                FREQUENCIES.iter().position(|candidate| *candidate == frequency)?.try_into().ok()?
            }
            index => u8::try_from(index).ok()?,
        };
        let channels = match u8::try_from(bits.take(4)?).ok()? {
            // A program config element has the channels, for which an ADTS header has no room.
            0 => channels_of_entry,
            channels => channels,
        };
        // The configuration of SBR and PS includes that of the layer below; decoders detect them without a header.
        let object_type = if matches!(object_type, 5 | 29) { 2 } else { object_type };
        let profile = u8::try_from(object_type.checked_sub(1)?).ok()?;
        let is_valid =
            profile < 4 && usize::from(frequency) < FREQUENCIES.len() && (1..8).contains(&channels);
        is_valid.then_some(Self { profile, frequency, channels })
    }

    /// ADTS header of a frame.
    fn header(self, frame_len: usize) -> Option<[u8; ADTS_LEN]> {
        let len = frame_len.checked_add(ADTS_LEN).filter(|len| *len <= ADTS_FRAME_MAX)? as u32;
        let Self { profile, frequency, channels } = self;
        Some([
            0xff,
            0xf1,
            profile << 6 | frequency << 2 | channels >> 2,
            (channels & 3) << 6 | (len >> 11) as u8,
            (len >> 3) as u8,
            (len << 5) as u8 | 0x1f,
            0xfc,
        ])
    }
}

/// Reads bits, the most significant ones first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, count: usize) -> Option<u32> {
        let mut value = 0;
        for _ in 0..count {
            let byte = self.bytes.get(self.at / 8)?;
            value = value << 1 | u32::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(value)
    }

    fn object_type(&mut self) -> Option<u32> {
        match self.take(5)? {
            31 => Some(32 + self.take(6)?),
            object_type => Some(object_type),
        }
    }
}

/// The codec of an elementary stream descriptor.
fn sound(esds: &[u8], format: SoundFormat) -> Option<Codec> {
    let SoundFormat { sampling_rate, channels } = format;
    let (tag, stream) = descriptor(esds)?;
    if tag != 3 {
        return None;
    }
    let (&[_, _, flags], mut rest) = stream.split_first_chunk()?;
    if flags & 0x80 != 0 {
        rest = rest.get(2..)?;
    }
    if flags & 0x40 != 0 {
        rest = rest.get(1 + usize::from(*rest.first()?)..)?;
    }
    if flags & 0x20 != 0 {
        rest = rest.get(2..)?;
    }
    let (4, decoder) = descriptor(rest)? else { return None };
    match *decoder.first()? {
        0x40 | 0x66..=0x68 => {
            let (5, config) = descriptor(decoder.get(13..)?)? else { return None };
            Aac::of(config, channels).map(Codec::Aac)
        }
        0x69 | 0x6b => Some(Codec::mp3(sampling_rate)),
        _ => None,
    }
}

/// The first descriptor of some bytes: its tag and content.
fn descriptor(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (tag, mut rest) = bytes.split_first()?;
    let mut len = 0;
    for _ in 0..4 {
        let (byte, behind) = rest.split_first()?;
        len = len << 7 | usize::from(byte & 0x7f);
        rest = behind;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some((*tag, rest.get(..len)?))
}

/// Facts that the description of sound tells about every codec.
#[derive(Debug, Clone, Copy)]
struct SoundFormat {
    /// Samples of each channel per second.
    sampling_rate: u32,
    channels: u8,
}

impl SoundFormat {
    /// Reads the description of sound; 0 for what it does not tell.
    fn of(entry: &[u8]) -> Self {
        let two =
            |at: usize| entry.get(at..).and_then(|rest| rest.first_chunk()).copied().map(u16::from_be_bytes);
        let channels = two(16).and_then(|channels| channels.try_into().ok()).unwrap_or(0);
        Self { sampling_rate: two(24).unwrap_or(0).into(), channels }
    }
}

/// Boxes behind the fields of the description of sound, of which QuickTime has three versions.
fn sound_boxes(entry: &[u8]) -> Option<&[u8]> {
    let more = match entry.get(8..10)? {
        [0, 1] => 16,
        [0, 2] => 36,
        _ => 0,
    };
    entry.get(28 + more..)
}

/// The first box of some bytes: name and content.
fn first_box(bytes: &[u8]) -> Option<([u8; 4], &[u8])> {
    match read_header(bytes, bytes.len() as u64) {
        // `read_header` returns only boxes that fit into the bytes.
        Ok(ParsedHeader::Box(header)) => {
            Some((header.name, bytes.get(header.header_len as usize..header.size as usize)?))
        }
        _ => None,
    }
}

/// The content of the first box with this name; looks into `wave`.
fn find(mut bytes: &[u8], name: [u8; 4], depth: u32) -> Option<&[u8]> {
    while let Ok(ParsedHeader::Box(header)) = read_header(bytes, bytes.len() as u64) {
        let (one, rest) = bytes.split_at_checked(header.size as usize)?;
        let content = one.get(header.header_len as usize..)?;
        if header.name == name {
            return Some(content);
        }
        if header.name == *b"wave" && depth < DEPTH_MAX {
            return find(content, name, depth + 1);
        }
        bytes = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use tw_testkit::mp4::{boxed, boxed_all};

    use super::*;

    const SPS: &[u8] = &[0x67, 1, 2, 3];
    const PPS: &[u8] = &[0x68, 4];

    fn stsd(name: &[u8; 4], fields: usize, boxes: &[Vec<u8>]) -> Vec<u8> {
        let entry = boxed(name, [vec![0; fields], boxes.concat()].concat());
        [vec![0, 0, 0, 0, 0, 0, 0, 1], entry].concat()
    }

    fn avcc() -> Vec<u8> {
        boxed(b"avcC", [&[1, 0x64, 0, 30, 0xff, 0xe1, 0, 4][..], SPS, &[1, 0, 2], PPS].concat())
    }

    fn esds(object_type: u8, config: &[u8]) -> Vec<u8> {
        let specific = [&[5, config.len() as u8][..], config].concat();
        let decoder = [&[object_type][..], &[0; 12], &specific].concat();
        let stream = [&[0, 1, 0, 4, 0x80, 0x80, 0x80, decoder.len() as u8][..], &decoder].concat();
        boxed(b"esds", [&[0, 0, 0, 0, 3, stream.len() as u8][..], &stream].concat())
    }

    fn aac(profile: u8, frequency: u8, channels: u8) -> Option<Codec> {
        Some(Codec::Aac(Aac { profile, frequency, channels }))
    }

    #[test]
    fn h264_samples_become_annex_b() {
        let codec = Codec::of(&stsd(b"avc1", 78, &[boxed(b"pasp", [0; 8]), avcc()])).unwrap();
        assert_eq!(codec.stream_type(), 0x1b);
        // A delimiter of its own, two units, an empty one, and one that is cut.
        let sample =
            [&[0, 0, 0, 2, 9, 0xf0, 0, 0, 0, 2, 0x65, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0x65, 8][..]].concat();
        let mut out = Vec::new();
        codec.push(&sample, true, &mut out).unwrap();
        let code = [0, 0, 0, 1];
        let units = [&[9, 0xf0][..], SPS, PPS, &[0x65, 7], &[0x65, 8]];
        let expected: Vec<u8> = units.iter().flat_map(|unit| [&code[..], unit].concat()).collect();
        assert_eq!(out, expected);
        out.clear();
        codec.push(&sample, false, &mut out).unwrap();
        assert_eq!(out.len(), expected.len() - 8 - SPS.len() - PPS.len());
    }

    #[test]
    fn h265_has_its_parameter_sets() {
        let arrays = [2, 0xa0, 0, 1, 0, 2, 0x40, 1, 0xa1, 0, 1, 0, 2, 0x42, 1];
        let hvcc = boxed(b"hvcC", [&[0; 21][..], &[0xfd], &arrays].concat());
        let codec = Codec::of(&stsd(b"hvc1", 78, &[hvcc])).unwrap();
        assert_eq!(codec.stream_type(), 0x24);
        let mut out = Vec::new();
        codec.push(&[0, 2, 0x46, 1, 0, 3, 0x26, 1, 5], true, &mut out).unwrap();
        let expected = [
            &[0, 0, 0, 1, 0x46, 1, 0x50][..],
            &[0, 0, 0, 1, 0x40, 1],
            &[0, 0, 0, 1, 0x42, 1],
            &[0, 0, 0, 1, 0x26, 1, 5],
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn descriptions_of_sound() {
        let mut entry = vec![0; 28];
        (entry[17], entry[24], entry[25]) = (2, 0x56, 0x22);
        let of = |name: &[u8; 4], fields: &[u8], boxes: &[Vec<u8>]| {
            let content = [fields, &boxes.concat()].concat();
            Codec::of(&[vec![0; 8], boxed(name, content)].concat())
        };
        let version = |number: u8, more: usize| {
            let mut fields = [&entry[..], &vec![0; more]].concat();
            fields[9] = number;
            fields
        };
        for (codec, expected) in [
            // AAC-LC at 44.1 kHz in stereo; HE-AAC; an explicit frequency; channels by the entry.
            (of(b"mp4a", &entry, &[esds(0x40, &[0x12, 0x10])]), aac(1, 4, 2)),
            (of(b"mp4a", &entry, &[esds(0x40, &[0x2b, 0x92, 0x08, 0x00])]), aac(1, 7, 2)),
            (of(b"mp4a", &entry, &[esds(0x40, &[0x17, 0x80, 0x5d, 0xc0, 0x10])]), aac(1, 3, 2)),
            (of(b"mp4a", &entry, &[esds(0x40, &[0x12, 0x00])]), aac(1, 4, 2)),
            (of(b"mp4a", &entry, &[esds(0x40, &[0x12])]), None),
            (of(b"mp4a", &entry, &[esds(0xdd, &[0x12, 0x10])]), None),
            (of(b"mp4a", &entry, &[esds(0x6b, &[])]), Some(Codec::Mp3 { is_mpeg2: true })),
            (
                of(b".mp3", &[&entry[..24], &[0xac, 0x44, 0, 0]].concat(), &[]),
                Some(Codec::Mp3 { is_mpeg2: false }),
            ),
            (
                of(
                    b"mp4a",
                    &version(1, 16),
                    &[boxed_all(b"wave", &[boxed(b"frma", b"mp4a"), esds(0x40, &[0x12, 0x10])])],
                ),
                aac(1, 4, 2),
            ),
            (of(b"mp4a", &version(2, 36), &[esds(0x40, &[0x12, 0x10])]), aac(1, 4, 2)),
            (of(b"Opus", &entry, &[]), None),
            (of(b"mp4a", &entry[..20], &[]), None),
        ] {
            assert_eq!(codec, expected);
        }
    }

    #[test]
    fn adts_headers() {
        let Some(codec) = aac(1, 4, 2) else { unreachable!() };
        let mut out = Vec::new();
        codec.push(&[7; 300], true, &mut out).unwrap();
        assert_eq!(out[..7], [0xff, 0xf1, 0x50, 0x80, 0x26, 0x7f, 0xfc]);
        assert_eq!(out.len(), 307);
        assert_eq!(codec.push(&vec![0; ADTS_FRAME_MAX - 6], true, &mut out), None);
    }

    #[test]
    fn broken_descriptions_are_no_codecs() {
        for full in [
            stsd(b"avc1", 78, &[avcc()]),
            [vec![0; 8], boxed(b"mp4a", [vec![0; 28], esds(0x40, &[0x12, 0x10])].concat())].concat(),
        ] {
            for end in 0..full.len() {
                let _ = Codec::of(&full[..end]);
            }
            for at in 16..full.len() {
                let mut broken = full.clone();
                broken[at] ^= 0xff;
                let _ = Codec::of(&broken);
            }
        }
    }
}
