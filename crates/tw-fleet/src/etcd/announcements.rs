//! Announcements over etcd: there are none. Each would be a write to the disks of all its servers, several in a second for each node.

use crate::engine::{AnnouncementReader, EngineError};

/// Reader that never exists.
pub(crate) enum EtcdAnnouncements {}

/// Error of everything that needs announcements. The configuration refuses it before.
pub(super) fn no_announcements() -> EngineError {
    EngineError::Refused("etcd has no messages that are not stored".to_owned())
}

impl AnnouncementReader for EtcdAnnouncements {
    async fn next(&mut self) -> Result<Vec<u8>, EngineError> {
        match *self {}
    }
}
