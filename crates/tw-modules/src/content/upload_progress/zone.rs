//! Zones of tracked uploads, which all loops share and which outlive configurations.

use std::time::{Duration, Instant};

use tw_module_support::zone::{Zone, ZoneCounters, ZoneTable, slab_cost};
use tw_request::request_body::BodyProgress;
use tw_rt::clock;

/// Bytes of an upload besides its identifier.
const ENTRY_SIZE: usize = 96;
/// The longest identifier.
pub(super) const ID_MAX: usize = 255;
/// Uploads under way that are passed over in search of one that makes room.
const PASSED_MAX: usize = 8;

/// Uploads by identifier.
pub(super) struct UploadZone(Zone<Upload>);

/// An upload, under way or over.
pub(super) struct Upload {
    progress: BodyProgress,
    /// Announced length; 0 if there is none.
    length: u64,
    end: Option<UploadEnd>,
}

/// End of an upload.
#[derive(Clone, Copy)]
struct UploadEnd {
    /// Status of the response.
    status: u16,
    /// Time at which it is forgotten.
    until: Instant,
}

/// State of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadState {
    /// Nothing is known of it, perhaps not yet.
    Starting,
    /// Under way: bytes received, and all bytes as far as they are known.
    Uploading { received: u64, length: u64 },
    /// The response to it is an error.
    Error { status: u16 },
    /// Over, without an error.
    Done,
}

/// Reason why an upload is not tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrackError {
    /// Another upload under way has the identifier.
    Known,
    /// The zone has no room.
    Full,
}

impl ZoneCounters for UploadZone {
    type Value = Upload;

    fn zone(&self) -> &Zone<Upload> {
        &self.0
    }
}

impl UploadZone {
    /// An empty zone.
    pub(super) fn new(name: &[u8], size: u64) -> Self {
        Self(Zone::new(name, size, ""))
    }

    /// Size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.0.size
    }

    /// Name of the zone.
    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// Runs `work` with the part that has `id`. Other loops wait meanwhile: less than a microsecond.
    fn with<T>(&self, id: &[u8], work: impl FnOnce(&mut ZoneTable<Upload>) -> T) -> T {
        work(&mut self.0.lock(self.0.shard_of(id)))
    }

    /// Adds an upload. One that is over is forgotten if it has the same identifier, or if the zone is full.
    pub(super) fn begin(&self, id: &[u8], length: u64, progress: BodyProgress) -> Result<(), TrackError> {
        self.with(id, |table| {
            if let Some(record_id) = table.find(id) {
                if table.get(record_id).end.is_none() {
                    return Err(TrackError::Known);
                }
                table.remove(record_id);
                self.0.entries.sub(1);
            }
            let mut upload = Upload { progress, length, end: None };
            let cost = slab_cost(ENTRY_SIZE + id.len());
            for _ in 0..=PASSED_MAX {
                upload = match table.try_insert(id, cost, upload) {
                    Ok(_) => {
                        self.0.entries.add(1);
                        return Ok(());
                    }
                    Err(upload) => upload,
                };
                let Some(oldest) = table.oldest() else { break };
                if table.get(oldest).end.is_some() {
                    table.remove(oldest);
                    self.0.entries.sub(1);
                } else {
                    table.touch(oldest);
                }
            }
            Err(TrackError::Full)
        })
    }

    /// Ends the upload of `id` with a status, if it is the one of `progress`. It is remembered for `timeout`.
    pub(super) fn end(&self, id: &[u8], progress: &BodyProgress, status: u16, timeout: Duration) {
        let until = clock::now() + timeout;
        self.with(id, |table| {
            let Some(record_id) = table.find(id) else { return };
            let upload = table.get(record_id);
            if upload.end.is_none() && upload.progress.is_same(progress) {
                upload.end = Some(UploadEnd { status, until });
                table.touch(record_id);
            }
        });
    }

    /// State of the upload of `id`.
    pub(super) fn state(&self, id: &[u8]) -> UploadState {
        let now = clock::now();
        self.with(id, |table| {
            let Some(record_id) = table.find(id) else { return UploadState::Starting };
            let upload = table.get(record_id);
            match upload.end {
                Some(end) if end.until <= now => {
                    table.remove(record_id);
                    self.0.entries.sub(1);
                    UploadState::Starting
                }
                Some(UploadEnd { status, .. }) if status >= 400 => UploadState::Error { status },
                Some(_) => UploadState::Done,
                None => {
                    let received = upload.progress.received();
                    UploadState::Uploading { received, length: upload.length.max(received) }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn uploads_begin_and_end() {
        let zone = UploadZone::new(b"a", 32 << 10);
        let first = BodyProgress::default();
        assert_eq!(zone.state(b"x"), UploadState::Starting);
        assert_eq!(zone.begin(b"x", 10, first.clone()), Ok(()));
        assert_eq!(zone.state(b"x"), UploadState::Uploading { received: 0, length: 10 });
        let second = BodyProgress::default();
        assert_eq!(zone.begin(b"x", 20, second.clone()), Err(TrackError::Known));
        zone.end(b"x", &second, 200, MINUTE);
        assert!(matches!(zone.state(b"x"), UploadState::Uploading { .. }), "not the one that is tracked");
        zone.end(b"x", &first, 413, MINUTE);
        assert_eq!(zone.state(b"x"), UploadState::Error { status: 413 });
        assert_eq!(zone.begin(b"x", 20, second.clone()), Ok(()));
        zone.end(b"x", &second, 303, MINUTE);
        assert_eq!(zone.state(b"x"), UploadState::Done);
        assert_eq!(zone.0.entries.value(), 1);
        let third = BodyProgress::default();
        assert_eq!(zone.begin(b"x", 20, third.clone()), Ok(()));
        zone.end(b"x", &third, 200, Duration::ZERO);
        assert_eq!(zone.state(b"x"), UploadState::Starting, "forgotten");
        assert_eq!(zone.0.entries.value(), 0);
    }

    #[test]
    fn finished_uploads_make_room() {
        let zone = UploadZone::new(b"a", 32 << 10);
        let progress = BodyProgress::default();
        let begin = |n: u32| zone.begin(&n.to_le_bytes(), 1, progress.clone());
        let begun = (0..1000).take_while(|n| begin(*n).is_ok()).count() as u32;
        assert_eq!(begun, 256, "128 bytes each");
        assert_eq!(begin(1000), Err(TrackError::Full));
        for n in 100..begun {
            zone.end(&n.to_le_bytes(), &progress, 200, MINUTE);
        }
        // Uploads under way are skipped, a few per call, until a finished one is found and removed.
        assert!((0..100).any(|n| begin(2000 + n).is_ok()));
        assert_eq!(zone.state(&0_u32.to_le_bytes()), UploadState::Uploading { received: 0, length: 1 });
    }
}
