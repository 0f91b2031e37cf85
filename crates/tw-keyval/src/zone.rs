//! A table that all loops share, and its file.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Mutex;
use tw_base::FatalMutex;
use tw_conf::{ConfError, Word};
use tw_connect::upstream_block::read_state_file;
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::vars::Value;
use tw_core::vars::write::put_maybe;
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource};
use tw_log::Text;

use super::pairs::{ChangeError, KeyKind, Pair, PairChange, Pairs};
use super::state::{self, StateError};

/// Permission bits of a state file: others may look.
const MODE: u32 = 0o644;
/// Pairs that are copied at once while the table is locked.
const PART: usize = 256;

/// A zone of `keyval_zone`: its pairs, and what the configuration says of them.
pub struct KeyvalZone {
    /// Block that it stands in.
    pub protocol: &'static str,
    /// Name of the zone.
    pub name: Box<str>,
    /// Life of a pair for which nothing else is said.
    pub timeout: Option<Duration>,
    pub(super) state: Option<Arc<StateFile>>,
    pub(super) pairs: Arc<SharedPairs>,
}

/// Pairs that outlive a configuration.
pub(crate) struct SharedPairs {
    pub(super) kind: KeyKind,
    /// Bytes of the zone.
    pub(super) size: u64,
    entries: AtomicU64,
    pairs: FatalMutex<Pairs>,
}

/// File of a zone.
pub(crate) struct StateFile {
    /// Name of the zone.
    zone: Box<[u8]>,
    path: CString,
    /// Locked while the file is written.
    writing: Mutex<()>,
    /// Set if a task is about to write the file.
    is_due: AtomicBool,
}

impl SharedPairs {
    pub(super) fn new(kind: KeyKind, size: u64, pairs: Pairs) -> Self {
        Self { kind, size, entries: AtomicU64::new(pairs.len() as u64), pairs: FatalMutex::new(pairs) }
    }

    /// Appends the value for a text.
    pub(super) fn look_up(&self, text: &[u8], out: &mut Vec<u8>) -> Value {
        let pairs = self.pairs.lock();
        put_maybe(out, pairs.look_up(text, unix_ms()).map(|value| &**value))
    }

    /// Number of pairs.
    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// Changes the table.
    fn update<T>(&self, change: impl FnOnce(&mut Pairs) -> T) -> T {
        let mut pairs = self.pairs.lock();
        let changed = change(&mut pairs);
        self.entries.store(pairs.len() as u64, Relaxed);
        changed
    }
}

impl KeyvalZone {
    /// The value of exactly this key.
    pub fn get(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        self.pairs.pairs.lock().get(key, unix_ms()).map(|pair| pair.value.clone())
    }

    /// Carries out all changes or none. The file is not written yet.
    pub fn change(&self, changes: &[(Arc<[u8]>, PairChange)]) -> Result<(), ChangeError> {
        self.pairs.update(|pairs| pairs.change(changes, unix_ms()))
    }

    /// Adds a pair, or replaces its value. The file is not written yet.
    ///
    /// # Errors
    /// The zone has no room for it, or it has no such keys.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), ChangeError> {
        let (key, value) = (Arc::<[u8]>::from(key), Arc::<[u8]>::from(value));
        let expires = self.expiry(None);
        self.pairs.update(|pairs| {
            let added = PairChange::Add(Pair { value: value.clone(), expires });
            match pairs.change(&[(key.clone(), added)], unix_ms()) {
                Err(ChangeError::KeyExists) => {
                    let changed = PairChange::Change { value: Some(value), expires };
                    pairs.change(&[(key, changed)], unix_ms())
                }
                done => done,
            }
        })
    }

    /// Returns true if the caller has to have the file written by [`save`](Self::save): there is one, and no task is about to write it.
    pub fn begin_save(&self) -> bool {
        self.state.as_ref().is_some_and(|state| !state.is_due.swap(true, Relaxed))
    }

    /// Removes all pairs. Frees their memory, so it may take longer than a turn.
    pub fn clear(&self) {
        let empty = Pairs::new(self.pairs.kind, self.pairs.size);
        // Freed when the lock is given back.
        drop(self.pairs.update(|pairs| std::mem::replace(pairs, empty)));
    }

    /// Time at which a pair that is set now is gone: after `given`, or else after the time of the zone.
    pub fn expiry(&self, given: Option<Duration>) -> Option<u64> {
        let life = given.or(self.timeout)?;
        Some(unix_ms().saturating_add(u64::try_from(life.as_millis()).unwrap_or(u64::MAX)))
    }

    /// All pairs as an object of JSON with texts. May take longer than a turn.
    pub fn shown(&self) -> Vec<u8> {
        self.text(|key, pair, out| {
            state::write_text(key, out);
            out.push(b':');
            state::write_text(&pair.value, out);
        })
    }

    /// Appends all pairs as an object, each member by `write`. The table is locked for some pairs at a time, so a change in between
    /// may be in it or not.
    fn text(&self, write: impl Fn(&[u8], &Pair, &mut Vec<u8>)) -> Vec<u8> {
        let mut text = b"{".to_vec();
        let mut last = None::<Arc<[u8]>>;
        loop {
            let part = self.pairs.pairs.lock().part(last.as_deref(), PART, unix_ms());
            for (key, pair) in &part {
                if text.len() > 1 {
                    text.push(b',');
                }
                write(key, pair, &mut text);
            }
            match part.last() {
                Some((key, _)) => last = Some(key.clone()),
                None => break,
            }
        }
        text.push(b'}');
        text
    }

    /// Writes the file, if there is one. Waits for the disk.
    pub async fn save(self: &Arc<Self>, disk: &Disk) -> Result<(), DiskError> {
        let Some(state) = &self.state else { return Ok(()) };
        let _writing = state.writing.lock().await;
        // A change from here on needs another write.
        state.is_due.store(false, Relaxed);
        let mut account = Account::new(JobClass::Fill, JobSource::of(state.path.to_bytes()));
        let zone = self.clone();
        let text = disk.pool().run(&mut account, move || zone.text(state::write_member)).await?;
        disk.replace(&mut account, &state.path, MODE, text).await?;
        Ok(())
    }

    /// Bytes of the table.
    pub fn size(&self) -> u64 {
        self.pairs.size
    }

    /// Returns `true` if a key is any text.
    pub fn has_text_keys(&self) -> bool {
        self.pairs.kind == KeyKind::Text
    }

    /// Returns `true` if the other one is the same table, perhaps of another configuration.
    pub fn shares_pairs(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pairs, &other.pairs)
    }

    /// Empty table of `http` that belongs to no configuration, for tests of modules that use tables.
    pub fn of_size(name: &str, size: u64) -> Self {
        let pairs = Pairs::new(KeyKind::Text, size);
        let pairs = Arc::new(SharedPairs::new(KeyKind::Text, size, pairs));
        Self { protocol: "http", name: name.into(), timeout: None, state: None, pairs }
    }

    /// Path of the file, for messages.
    pub fn state_path(&self) -> Option<&CStr> {
        self.state.as_deref().map(StateFile::path)
    }
}

impl StateFile {
    /// The file of a zone.
    ///
    /// # Errors
    /// The file belongs to another zone.
    pub(super) fn claim<P: Protocol>(
        word: &Word,
        zone: &[u8],
        cx: &mut Resolve<'_, P>,
    ) -> Result<Arc<Self>, ConfError> {
        let path = cx.full_path_c(&word.bytes);
        let make = || Self {
            zone: zone.into(),
            path: path.clone(),
            writing: Mutex::new(()),
            is_due: AtomicBool::new(false),
        };
        let file = cx.keep(path.to_bytes(), |state_file: &Self| *state_file.zone == *zone, make);
        if *file.zone != *zone {
            let other = Text(&file.zone);
            let message = format!("state file \"{word}\" is already used in keyval zone \"{other}\"");
            return Err(ConfError::new(message).at(word.span));
        }
        Ok(file)
    }

    pub(super) fn path(&self) -> &CStr {
        &self.path
    }

    /// Adds the pairs of the file.
    pub(super) fn fill(&self, pairs: &mut Pairs) -> Result<(), ConfError> {
        let text = read_state_file(&self.path)?;
        let path = self.path.to_string_lossy();
        state::read(&text, pairs, unix_ms()).map_err(|error| match error {
            StateError::Malformed(why) => ConfError::new(format!("state file \"{path}\": {why}")),
            StateError::Refused(key, why) => {
                let why = match why {
                    ChangeError::InvalidKey => "is no address or network",
                    ChangeError::KeyExists => "is there twice",
                    ChangeError::Full | ChangeError::NoKey => "does not fit into the zone",
                };
                ConfError::new(format!("state file \"{path}\": key \"{key}\" {why}"))
            }
        })
    }
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let now = tw_rt::clock::unix();
    u64::try_from(now.secs).unwrap_or_default() * 1000 + u64::from(now.msec)
}
