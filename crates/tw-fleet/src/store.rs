//! Stores of a fleet: small values by key, with versions for compare-and-set, and a watch of all keys.
//!
//! The engine is not believed: sizes and keys are checked in both directions, and whoever uses a value checks what it says. A store can
//! go back, lose values, or be made anew; a value that must not go back has a number of its own inside.

use std::time::Duration;

use crate::engine::EngineError;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// A value in a store of a fleet; each store has a smaller limit of its own.
    ///
    /// Largest value of any store, bytes. In base64 it is still smaller than what the parser of NATS takes.
    pub(crate) const VALUE_SIZE_MAX: usize = 512 << 10, bytes, "the value is not stored; one that the engine sends counts as removed";
    /// A key in a store of a fleet.
    const KEY_SIZE_MAX: usize = 256, bytes, "the key is refused; a value of the engine under such a key is ignored";
}

/// Settings of a store. The name is the same on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSettings {
    /// Name, of lower-case letters; empty for that of the summaries.
    pub name: &'static str,
    /// Largest value, bytes; at most `VALUE_SIZE_MAX`.
    pub value_size_max: usize,
    /// All values together, bytes, where the engine can limit them.
    pub size_max: u64,
    /// Age at which a value disappears by itself.
    pub age_max: Option<Duration>,
}

/// Summaries of nodes. Those of nodes that are gone disappear after a day.
pub const SUMMARIES: StoreSettings = StoreSettings {
    name: "",
    value_size_max: 4 << 10,
    size_max: 64 << 20,
    age_max: Some(Duration::from_secs(24 * 60 * 60)),
};

/// Certificates, keys, challenges and leases of their orders.
pub const CERTIFICATES: StoreSettings =
    StoreSettings { name: "certificates", value_size_max: 256 << 10, size_max: 1 << 30, age_max: None };

/// Versions of configurations and their rollouts.
pub const CONFIGURATION: StoreSettings =
    StoreSettings { name: "configuration", value_size_max: VALUE_SIZE_MAX, size_max: 1 << 30, age_max: None };

/// Value of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Key.
    pub key: String,
    /// Value; `None` if it was removed.
    pub value: Option<Vec<u8>>,
    /// Version, for compare-and-set. It grows with every change of the key as long as the store is the same one.
    pub version: u64,
}

/// Changes of a store, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreChanges {
    /// Changed entries. A key may come more than once; the last one counts.
    pub entries: Vec<Entry>,
    /// True if everything that the store had when the watch began has been received.
    pub is_complete: bool,
}

/// Store of small values by key.
pub trait Store {
    /// Watch of all keys.
    type Watch: StoreWatch;

    /// Value of a key. `None` if it does not exist; a removed one may be `None` or an entry without a value.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Entry>, EngineError>>;

    /// Sets a value if the key has this version, which is 0 for a key of which [`get`](Self::get) returns `None`. Without `expected` any
    /// version is replaced. Returns the new version.
    ///
    /// # Errors
    /// [`Conflict`](EngineError::Conflict) if the version is another one. After [`Lost`](EngineError::Lost) nobody knows if it is set.
    fn set(
        &self,
        key: &str,
        value: &[u8],
        expected: Option<u64>,
    ) -> impl Future<Output = Result<u64, EngineError>>;

    /// Removes a value, under the same condition.
    ///
    /// # Errors
    /// Fails as [`set`](Self::set) does.
    fn remove(&self, key: &str, expected: Option<u64>) -> impl Future<Output = Result<(), EngineError>>;

    /// Begins to watch all keys: the current values first, then the changes.
    fn watch(&self) -> impl Future<Output = Result<Self::Watch, EngineError>>;
}

/// Watch of a store. It ends with the connection; whoever needs it longer begins another one.
pub trait StoreWatch {
    /// The next changes. Waits until there are some, or until everything that was there is received.
    fn next(&mut self) -> impl Future<Output = Result<StoreChanges, EngineError>>;
}

/// Returns true for a key: letters, digits, `-`, `_`, `=`, `/` and single dots between them.
pub fn is_key(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'=' | b'/');
    let has_parts = text.split('.').all(|part| !part.is_empty() && part.bytes().all(is_part));
    text.len() <= KEY_SIZE_MAX && has_parts
}

/// Checks key and value before they are sent.
pub(crate) fn check(settings: &StoreSettings, key: &str, value: &[u8]) -> Result<(), EngineError> {
    let most = settings.value_size_max.min(VALUE_SIZE_MAX);
    if !is_key(key) {
        return Err(EngineError::Refused("a key is invalid".to_owned()));
    }
    if value.len() > most {
        let why =
            format!("the value of \"{key}\" has {} bytes, of which at most {most} are stored", value.len());
        return Err(EngineError::Refused(why));
    }
    Ok(())
}

/// Entry as the engine has it, if it has a key of ours; a value that is too large counts as removed.
pub(crate) fn admit(
    settings: &StoreSettings,
    key: &str,
    value: Option<Vec<u8>>,
    version: u64,
) -> Option<Entry> {
    let value = value.filter(|value| value.len() <= settings.value_size_max.min(VALUE_SIZE_MAX));
    is_key(key).then(|| Entry { key: key.to_owned(), value, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parts_of_subjects_and_paths() {
        for key in ["a", "node-1", "certificate.www=2", "a/b.c_d"] {
            assert!(is_key(key), "{key}");
        }
        let long = "a".repeat(KEY_SIZE_MAX + 1);
        for key in ["", ".", "a.", ".a", "a..b", "a b", "a*", ">", "a\n", "ä", &long] {
            assert!(!is_key(key), "{key}");
        }
    }

    #[test]
    fn sizes_are_checked_in_both_directions() {
        let large = vec![0; SUMMARIES.value_size_max + 1];
        assert!(check(&SUMMARIES, "a", &large[1..]).is_ok());
        assert!(matches!(check(&SUMMARIES, "a", &large), Err(EngineError::Refused(_))));
        assert!(matches!(check(&SUMMARIES, "a b", b""), Err(EngineError::Refused(_))));
        assert_eq!(admit(&SUMMARIES, "a", Some(large), 3).unwrap().value, None);
        assert_eq!(admit(&SUMMARIES, "*", None, 3), None);
    }
}
