//! Announcements of nodes over NATS: plain messages that no stream stores.

use super::connection::{Connection, Inbox, InboxKind};
use crate::engine::{AnnouncementReader, EngineError};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Announcements of other nodes of a fleet that wait to be read.
    ///
    /// Announcements that wait to be read: with the largest ones 16 MiB.
    const WAITING_MAX: usize = 256, count, "a further one is lost; the next one of the node has the same";
    /// Bytes that wait to be sent to the engine of a fleet, for an announcement to be added.
    const OUTPUT_MAX: usize = 1 << 20, bytes, "it is not sent: purges go first";
}

/// Reader of announcements.
pub(crate) struct NatsAnnouncements(Inbox);

impl NatsAnnouncements {
    /// Sends an announcement.
    pub(super) fn publish(connection: &Connection, subject: &str, payload: &[u8]) -> Result<(), EngineError> {
        connection.use_announcements(subject)?;
        if connection.waiting() > OUTPUT_MAX {
            return Err(EngineError::Lost("the engine takes too little".to_owned()));
        }
        if payload.len() > connection.payload_max() {
            return Err(EngineError::Refused(format!("a message of {} bytes is too large", payload.len())));
        }
        connection.publish(subject, "", &[], payload)
    }

    /// Begins to read.
    pub(super) fn subscribe(connection: &Connection, subject: &str) -> Result<Self, EngineError> {
        connection.use_announcements(subject)?;
        Ok(Self(connection.inbox(InboxKind::Announcements, WAITING_MAX)?))
    }
}

impl AnnouncementReader for NatsAnnouncements {
    async fn next(&mut self) -> Result<Vec<u8>, EngineError> {
        // A message that is too large has an empty payload here, which cannot be decoded.
        Ok(self.0.next().await?.payload.unwrap_or_default())
    }
}
