//! Log and stores of one fleet over one server of etcd.

use std::rc::Rc;

use super::announcements::{EtcdAnnouncements, no_announcements};
use super::api::Api;
use super::log::Appending;
use super::store::EtcdStore;
use crate::engine::{EngineError, Session};
use crate::store::StoreSettings;

/// Log and stores of one fleet.
pub(crate) struct EtcdSession {
    pub(super) api: Rc<Api>,
    pub(super) server: String,
    pub(super) appending: tokio::sync::Mutex<Appending>,
}

impl Drop for EtcdSession {
    fn drop(&mut self) {
        self.api.close();
    }
}

impl Session for EtcdSession {
    type Store = EtcdStore;
    type Announcements = EtcdAnnouncements;

    async fn open_store(&self, settings: &StoreSettings) -> Result<EtcdStore, EngineError> {
        Ok(EtcdStore::new(self.api.clone(), settings))
    }

    fn announce(&self, _: &[u8]) -> Result<(), EngineError> {
        Err(no_announcements())
    }

    async fn announcements(&self) -> Result<EtcdAnnouncements, EngineError> {
        Err(no_announcements())
    }
}
