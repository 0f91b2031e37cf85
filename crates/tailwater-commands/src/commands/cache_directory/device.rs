//! Device with the segments of a cache. The file `device` in its directory has the number of the device and, in a second line, its
//! path.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tw_cache::segment::{
    BLOCK_SIZE, DeviceContent, SIGNATURES_SIZE, SegmentError, SegmentHeader, Superblock,
};

use super::segment_file::SegmentPlace;
use super::stored::read_up_to;

/// Name of the file with number and path.
const NAME: &str = "device";
/// Bytes that are read of it at most.
const NOTE_MAX: u64 = 8192;

/// Device that can be read.
#[derive(Debug)]
pub(super) struct Device {
    /// Number in hexadecimal digits.
    pub(super) number: String,
    pub(super) path: PathBuf,
    pub(super) superblock: Superblock,
    file: File,
}

impl Device {
    /// Opens the device of the cache in a directory; `None` if segments are files. The error is a message.
    pub(super) fn of(dir: &Path) -> Option<Result<Self, String>> {
        let note = match File::open(dir.join(NAME)) {
            Ok(note) => read_up_to(&note, 0, NOTE_MAX),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error),
        };
        match note {
            Ok(note) if note.is_empty() => None,
            Ok(note) => Some(Self::noted(&note)),
            Err(error) => Some(Err(format!("\"{}\" cannot be read: {error}", dir.join(NAME).display()))),
        }
    }

    fn noted(note: &[u8]) -> Result<Self, String> {
        let mut lines = note.split(|byte| *byte == b'\n');
        let number = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let Some(path) = lines.next().filter(|path| !path.is_empty()) else {
            return Err(format!(
                "the device with the number {number}, whose name is noted at the next start"
            ));
        };
        let path = PathBuf::from(OsStr::from_bytes(path));
        let failed =
            |why: String| format!("the device \"{}\" with the number {number}, {why}", path.display());
        let open = || -> io::Result<(File, DeviceContent)> {
            let mut file = File::open(&path)?;
            let size = file.seek(SeekFrom::End(0))?;
            let first = read_up_to(&file, 0, SIGNATURES_SIZE as u64)?;
            Ok((file, DeviceContent::of(&first, size)))
        };
        let (file, content) = open().map_err(|error| failed(format!("which cannot be read: {error}")))?;
        let superblock = match content {
            DeviceContent::Segments(superblock) => superblock,
            DeviceContent::Damaged(why) => {
                return Err(failed(format!("whose superblock is damaged ({why})")));
            }
            DeviceContent::Empty | DeviceContent::Foreign(_) => {
                return Err(failed("where something else is now".to_owned()));
            }
        };
        let text: String = superblock.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        if text != number {
            return Err(failed(format!("where the device with the number {text} is now")));
        }
        Ok(Self { number, path, superblock, file })
    }

    /// Segments on the device, by their numbers.
    pub(super) fn segments(&self) -> io::Result<Vec<SegmentPlace>> {
        let mut segment_places = Vec::new();
        for slot in 0..self.superblock.slots {
            let base = self.superblock.offset(slot);
            let number = match SegmentHeader::decode_any(&read_up_to(&self.file, base, BLOCK_SIZE)?) {
                Ok(header) if self.superblock.slot(header.number) == slot => header.number,
                // There is no header, or it belongs to a segment that is in another slot.
                Ok(_) | Err(SegmentError::Magic | SegmentError::Short) => continue,
                // The segment is damaged, and its number unknown.
                Err(_) => slot,
            };
            let size = Some(self.superblock.slot_size);
            segment_places.push(SegmentPlace { path: self.path.clone(), number, base, size });
        }
        segment_places.sort_by_key(|place| place.number);
        Ok(segment_places)
    }
}

/// Bytes of a file, or of a slot.
pub(super) fn size_of(place: &SegmentPlace) -> u64 {
    place.size.unwrap_or_else(|| fs::metadata(&place.path).map_or(0, |meta| meta.len()))
}
