//! File of a dictionary (`state=`): read when the configuration is loaded, replaced a second after a change, and at the end of the process.

use std::ffi::CStr;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tw_conf::ConfError;
use tw_connect::upstream_block::read_state_file;
use tw_core::log::SharedErrorLog;
use tw_disk::{Account, Disk, JobClass, JobSource};
use tw_log::Level;
use tw_rt::Deadline;
use tw_rt::watch::Subject;

use super::{SharedDictionary, unix_ms};

/// Permission bits of a state file, which may hold secrets of scripts.
const MODE: u32 = 0o600;
/// Time in which changes are collected, as in njs.
const DELAY: Duration = Duration::from_secs(1);

impl SharedDictionary {
    /// Notes a change that the file lacks.
    pub(super) fn mark_changed(&self) {
        self.is_dirty.store(true, Relaxed);
    }

    /// True if the file lacks a change.
    pub(super) fn is_changed(&self) -> bool {
        self.is_dirty.load(Relaxed)
    }

    /// Reads the file, if there is one. Only while a configuration is loaded: it waits for the disk.
    ///
    /// # Errors
    /// The file cannot be read or used.
    pub(crate) fn load_state(&self, now_ms: u64) -> Result<(), ConfError> {
        let Some(path) = &self.settings.state else { return Ok(()) };
        let text = read_state_file(path)?;
        self.fill(&text, now_ms).map_err(|error| {
            let (name, path) = (&self.settings.name, path.to_string_lossy());
            ConfError::new(format!(
                "invalid format while loading js_shared_dict_zone \"{name}\" from state file \"{path}\": {error}"
            ))
        })
    }

    /// Has the file written soon by a task of this loop, if it lacks a change and no task is about to write it.
    pub(crate) fn save_soon(self: &Arc<Self>, disk: &Disk, log: &SharedErrorLog) {
        if self.settings.state.is_none() || !self.is_changed() || self.is_saving.swap(true, Relaxed) {
            return;
        }
        let writer = StateWriter { dictionary: self.clone(), disk: disk.clone(), log: log.clone() };
        let subject = Subject { kind: "state of a dictionary", id: 0 };
        // The task ends with its loop, which has the file written then.
        drop(tw_rt::spawn_local(subject, writer.run()));
    }
}

/// Task that writes a file. Dropping it has a change written that is still missing.
struct StateWriter {
    dictionary: Arc<SharedDictionary>,
    disk: Disk,
    log: SharedErrorLog,
}

impl StateWriter {
    async fn run(self) {
        let Some(path) = self.dictionary.settings.state.clone() else { return };
        while self.dictionary.is_changed() {
            let mut deadline = Deadline::new();
            deadline.set(DELAY);
            poll_fn(|cx| deadline.poll_elapsed(cx)).await;
            let mut account = self.account(&path);
            let made = made(&self.dictionary);
            if let Err(error) = self.disk.replace_made(&mut account, &path, MODE, made).await {
                self.dictionary.mark_changed();
                let name = &self.dictionary.settings.name;
                let error = error.on(&path);
                let message =
                    format_args!("failed to save the state of shared dict zone \"{name}\": {error}");
                self.log.write(Level::Alert, None, message);
            }
        }
    }

    fn account(&self, path: &CStr) -> Account {
        Account::new(JobClass::Fill, JobSource::of(path.to_bytes()))
    }
}

/// The work of a job: the text of the file, with all changes up to now.
fn made(dictionary: &Arc<SharedDictionary>) -> impl FnOnce() -> Vec<u8> + Send + 'static {
    let dictionary = dictionary.clone();
    move || {
        // A change behind this line has the file written again.
        dictionary.is_dirty.store(false, Relaxed);
        dictionary.text(unix_ms())
    }
}

impl Drop for StateWriter {
    fn drop(&mut self) {
        self.dictionary.is_saving.store(false, Relaxed);
        if let (true, Some(path)) = (self.dictionary.is_changed(), self.dictionary.settings.state.clone()) {
            // The loop ends: the pool does the rest before the process ends.
            let account = self.account(&path);
            self.disk.replace_detached(&account, &path, MODE, made(&self.dictionary));
        }
    }
}
