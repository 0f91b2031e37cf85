//! Block devices as stores of segments: checked while the configuration is loaded, formatted by `tailwater cache format`.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use tw_cache::segment::{DeviceContent, SIGNATURES_SIZE, Superblock};

/// `O_EXCL`: a block device that is mounted, or part of something else, cannot be opened so.
const EXCLUSIVE: i32 = 0o200;

/// Layout that a device was formatted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormattedDevice {
    /// Number of segments that it has room for.
    pub slots: u32,
    /// Bytes of a segment.
    pub slot_size: u64,
}

/// Device behind a path, and what may be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceIdentity {
    /// Device and number of the file, and the device that it stands for.
    file: [u64; 3],
    is_writable: bool,
}

/// Identity of an open device. Does not wait for it.
pub(crate) fn identity(device: &OwnedFd) -> Option<DeviceIdentity> {
    let device: File = device.try_clone().ok()?.into();
    let metadata = device.metadata().ok()?;
    // Nothing is written; the kernel only compares it with the way in which it was opened.
    let is_writable = device.write_at(&[], 0).is_ok();
    Some(DeviceIdentity { file: [metadata.dev(), metadata.ino(), metadata.rdev()], is_writable })
}

/// Content of a device that is not for a cache, as words behind its name; `None` if it is.
pub(crate) fn objection(content: &DeviceContent) -> Option<String> {
    Some(match content {
        DeviceContent::Segments(_) => return None,
        DeviceContent::Empty => "is not formatted for a cache".to_owned(),
        DeviceContent::Damaged(why) => format!("has a damaged superblock ({why})"),
        DeviceContent::Foreign(name) => format!("has {name} on it, and no segments of a cache"),
    })
}

/// Checks that a device has room for segments of a cache, and nothing else. Waits for the disk.
///
/// # Errors
/// The fault of the device, as words behind its name.
pub fn check_device(path: &Path) -> Result<(), String> {
    let device = File::open(path).map_err(|error| format!("cannot be opened ({error})"))?;
    check(&device.into())
}

/// Checks that a device has room for segments of a cache, and nothing else. Waits for the disk. The error is a message.
pub(crate) fn check(device: &OwnedFd) -> Result<(), String> {
    let content = device.try_clone().and_then(|device| content(&mut device.into()));
    let (content, _) = content.map_err(|error| format!("cannot be read ({error})"))?;
    objection(&content).map_or(Ok(()), Err)
}

/// Formats a device: its content is lost. Without `is_again` it has to be empty, and in no case does it have something on it that
/// is not a cache's. Waits for the disk.
///
/// # Errors
/// A message for the operator, and advice.
pub fn format_device(
    path: &Path,
    slot_size: Option<u64>,
    is_again: bool,
) -> Result<FormattedDevice, (String, String)> {
    let shown = path.display();
    let failed = |error: io::Error| {
        let advice = match error.raw_os_error() {
            // EBUSY
            Some(16) => "the device is mounted, or a server or something else uses it",
            _ => "formatting needs the right to write to the device",
        };
        (format!("\"{shown}\" cannot be used: {error}"), advice.to_owned())
    };
    let is_block = std::fs::metadata(path).map_err(failed)?.file_type().is_block_device();
    let flags = if is_block { EXCLUSIVE } else { 0 };
    let mut device = File::options().read(true).write(true).custom_flags(flags).open(path).map_err(failed)?;
    if device.try_lock().is_err() {
        return Err((format!("\"{shown}\" is used by a server"), "stop it first".to_owned()));
    }
    let (content, size) = content(&mut device).map_err(failed)?;
    match content {
        DeviceContent::Empty => {}
        DeviceContent::Segments(_) | DeviceContent::Damaged(_) if is_again => {}
        DeviceContent::Segments(_) | DeviceContent::Damaged(_) => {
            let advice = "--again formats it, and all responses in it are lost".to_owned();
            return Err((format!("\"{shown}\" has segments of a cache on it"), advice));
        }
        DeviceContent::Foreign(name) => {
            let advice = format!("\"wipefs -a {shown}\" removes that, and all data with it");
            return Err((format!("\"{shown}\" has {name} on it"), advice));
        }
    }
    let uuid = random().map_err(failed)?;
    let Some(superblock) = Superblock::layout(uuid, size, slot_size) else {
        let advice = "it needs room for 8 segments of 4m to 1g, and 1m more".to_owned();
        return Err((format!("\"{shown}\" with {size} bytes is too small"), advice));
    };
    let Superblock { slots, slot_size, .. } = superblock;
    let write = || {
        for slot in 0..slots {
            device.write_all_at(&[0; 4096], superblock.offset(slot))?;
        }
        device.sync_all()?;
        // Last: until then it is none.
        device.write_all_at(&superblock.encode(), 0)?;
        device.sync_all()
    };
    write().map_err(failed)?;
    Ok(FormattedDevice { slots, slot_size })
}

/// Content of a device, and its size in bytes.
fn content(device: &mut File) -> io::Result<(DeviceContent, u64)> {
    let size = device.seek(SeekFrom::End(0))?;
    let mut first = vec![0; SIGNATURES_SIZE.min(usize::try_from(size).unwrap_or(usize::MAX))];
    device.read_exact_at(&mut first, 0)?;
    Ok((DeviceContent::of(&first, size), size))
}

/// Random bytes of the system.
fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::TempDir;

    #[test]
    fn device_is_formatted_once_and_nothing_foreign_is_overwritten() {
        let dir = TempDir::new("device").unwrap();
        let path = dir.join("device");
        let file = File::create(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        let fd = || File::open(&path).unwrap().into();
        assert!(check(&fd()).unwrap_err().contains("not formatted"));
        let formatted = format_device(&path, Some(4 << 20), false).unwrap();
        assert_eq!(formatted, FormattedDevice { slots: 15, slot_size: 4 << 20 });
        assert_eq!(check(&fd()), Ok(()));
        let refused = format_device(&path, None, false).unwrap_err();
        assert!(refused.0.contains("segments of a cache"), "{refused:?}");
        assert!(format_device(&path, None, true).is_ok());
        // A file system.
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 4096], 0).unwrap();
        file.write_all_at(b"\x53\xef", 0x438).unwrap();
        for is_again in [false, true] {
            let refused = format_device(&path, None, is_again).unwrap_err();
            assert!(refused.0.contains("ext4") && refused.1.contains("wipefs"), "{refused:?}");
        }
        assert!(check(&fd()).unwrap_err().contains("ext4"));
        file.set_len(4 << 20).unwrap();
        file.write_all_at(&[0; 2], 0x438).unwrap();
        assert!(format_device(&path, None, false).unwrap_err().0.contains("too small"));
    }
}
