//! Shared dictionaries (`js_shared_dict_zone`): tables of strings or numbers that all loops and scripts share, and that outlive configurations.

use std::collections::{BTreeSet, HashMap};

use tw_base::FatalMutex;
use tw_script::{ByteBuf, Dictionary, DictionaryCommand, DictionaryType, DictionaryValue, OperationError};

/// Bytes that an entry takes beside its key and value.
const ENTRY_COST: usize = 96;
/// Entries that one insertion into a full dictionary evicts at most, as in nginx.
const EVICTED_MAX: usize = 16;

/// Properties of a dictionary, which do not change as long as it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DictionarySettings {
    pub(crate) name: String,
    /// Bytes of keys and values.
    pub(crate) size: usize,
    pub(crate) kind: DictionaryType,
    /// Time to live of entries, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
    /// True if entries are evicted when it is full.
    pub(crate) evicts: bool,
}

/// A dictionary.
pub(crate) struct SharedDictionary {
    pub(crate) settings: DictionarySettings,
    table: FatalMutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Box<[u8]>, Entry>,
    /// Entries by the time at which they expire.
    by_expiry: BTreeSet<(u64, Box<[u8]>)>,
    /// Bytes of all entries.
    used: usize,
}

#[derive(Clone)]
struct Entry {
    value: Stored,
    /// Milliseconds since 1970; `None` if it does not expire.
    expires_ms: Option<u64>,
}

#[derive(Clone)]
enum Stored {
    String(Box<[u8]>),
    Number(f64),
}

/// Result of a command.
type Answer = Result<DictionaryValue, OperationError>;

impl Stored {
    fn size(&self) -> usize {
        match self {
            Self::String(text) => text.len(),
            Self::Number(_) => 0,
        }
    }

    fn to_value(&self) -> DictionaryValue {
        match self {
            Self::String(text) => DictionaryValue::String(ByteBuf::from(text.to_vec())),
            Self::Number(number) => DictionaryValue::Number(*number),
        }
    }
}

impl SharedDictionary {
    pub(crate) fn new(settings: DictionarySettings) -> Self {
        Self { settings, table: FatalMutex::default() }
    }

    /// The dictionary as scripts see it.
    pub(crate) fn describe(&self) -> Dictionary {
        let DictionarySettings { name, size, kind, timeout_ms, .. } = &self.settings;
        Dictionary {
            name: name.clone(),
            capacity: *size as u64,
            kind: *kind,
            has_timeout: timeout_ms.is_some(),
        }
    }

    /// Runs a command at a time in milliseconds since 1970. Never waits; the cost is that of one entry, except for `Clear`, `Keys` and
    /// `Items`.
    pub(crate) fn run(&self, command: DictionaryCommand, now_ms: u64) -> Answer {
        let mut table = self.table.lock();
        table.expire(now_ms);
        match command {
            DictionaryCommand::Get { key } => Ok(table.get(&key)),
            DictionaryCommand::Has { key } => Ok(DictionaryValue::Bool(table.entries.contains_key(&**key))),
            DictionaryCommand::Set { key, value, timeout_ms } => {
                let entry = self.entry(value, timeout_ms, now_ms)?;
                table.insert(&key, entry, &self.settings)?;
                Ok(DictionaryValue::None)
            }
            DictionaryCommand::Add { key, value, timeout_ms } => {
                let entry = self.entry(value, timeout_ms, now_ms)?;
                let is_new = !table.entries.contains_key(&**key);
                if is_new {
                    table.insert(&key, entry, &self.settings)?;
                }
                Ok(DictionaryValue::Bool(is_new))
            }
            DictionaryCommand::Replace { key, value } => {
                let entry = self.entry(value, None, now_ms)?;
                let is_known = table.entries.contains_key(&**key);
                if is_known {
                    table.insert(&key, entry, &self.settings)?;
                }
                Ok(DictionaryValue::Bool(is_known))
            }
            DictionaryCommand::Delete { key } => Ok(DictionaryValue::Bool(table.remove(&key).is_some())),
            DictionaryCommand::Pop { key } => {
                Ok(table.remove(&key).map_or(DictionaryValue::None, |entry| entry.value.to_value()))
            }
            DictionaryCommand::Incr { key, delta, init, timeout_ms } => {
                self.check_type(DictionaryType::Number)?;
                let number = match table.entries.get(&**key) {
                    Some(Entry { value: Stored::Number(number), .. }) => *number,
                    _ => init,
                } + delta;
                let entry = self.entry(DictionaryValue::Number(number), timeout_ms, now_ms)?;
                table.insert(&key, entry, &self.settings)?;
                Ok(DictionaryValue::Number(number))
            }
            DictionaryCommand::Clear => {
                *table = Table::default();
                Ok(DictionaryValue::None)
            }
            DictionaryCommand::Size => Ok(DictionaryValue::Number(table.entries.len() as f64)),
            DictionaryCommand::FreeSpace => {
                Ok(DictionaryValue::Number(self.settings.size.saturating_sub(table.used) as f64))
            }
            DictionaryCommand::Ttl { key } => {
                if self.settings.timeout_ms.is_none() {
                    return Err(OperationError::Type("shared dict must be declared with timeout".to_owned()));
                }
                let left = table.entries.get(&**key).and_then(|entry| entry.expires_ms);
                Ok(left.map_or(DictionaryValue::None, |at| {
                    DictionaryValue::Number(at.saturating_sub(now_ms) as f64)
                }))
            }
            DictionaryCommand::Keys { count_max } => {
                let keys = table.entries.keys().take(count_max as usize);
                Ok(DictionaryValue::Keys(keys.map(|key| ByteBuf::from(key.to_vec())).collect()))
            }
            DictionaryCommand::Items { count_max } => Ok(self.items(&table, count_max as usize)),
        }
    }

    fn items(&self, table: &Table, count_max: usize) -> DictionaryValue {
        let items = table
            .entries
            .iter()
            .take(count_max)
            .map(|(key, entry)| (ByteBuf::from(key.to_vec()), &entry.value));
        match self.settings.kind {
            DictionaryType::String => DictionaryValue::Strings(
                items
                    .filter_map(|(key, value)| match value {
                        Stored::String(text) => Some((key, ByteBuf::from(text.to_vec()))),
                        Stored::Number(_) => None,
                    })
                    .collect(),
            ),
            DictionaryType::Number => DictionaryValue::Numbers(
                items
                    .filter_map(|(key, value)| match value {
                        Stored::Number(number) => Some((key, *number)),
                        Stored::String(_) => None,
                    })
                    .collect(),
            ),
        }
    }

    fn check_type(&self, wanted: DictionaryType) -> Result<(), OperationError> {
        if self.settings.kind == wanted {
            return Ok(());
        }
        Err(OperationError::Type("shared dict is not a number dict".to_owned()))
    }

    /// An entry of the type of the dictionary.
    fn entry(
        &self,
        value: DictionaryValue,
        timeout_ms: Option<u64>,
        now_ms: u64,
    ) -> Result<Entry, OperationError> {
        let value = match (value, self.settings.kind) {
            (DictionaryValue::String(text), DictionaryType::String) => Stored::String(text.into_vec().into()),
            (DictionaryValue::Number(number), DictionaryType::Number) => Stored::Number(number),
            (_, DictionaryType::String) => {
                return Err(OperationError::Type("string value is expected".to_owned()));
            }
            (_, DictionaryType::Number) => {
                return Err(OperationError::Type("number value is expected".to_owned()));
            }
        };
        let timeout_ms = match (timeout_ms, self.settings.timeout_ms) {
            (Some(_), None) => {
                return Err(OperationError::Type("shared dict must be declared with timeout".to_owned()));
            }
            (own, zone) => own.or(zone),
        };
        Ok(Entry { value, expires_ms: timeout_ms.map(|timeout| now_ms.saturating_add(timeout)) })
    }
}

impl Table {
    /// Removes entries whose time is over.
    fn expire(&mut self, now_ms: u64) {
        while let Some((at, key)) = self.by_expiry.first()
            && *at <= now_ms
        {
            let key = key.clone();
            self.remove(&key);
        }
    }

    fn get(&self, key: &[u8]) -> DictionaryValue {
        self.entries.get(key).map_or(DictionaryValue::None, |entry| entry.value.to_value())
    }

    fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let (key, entry) = self.entries.remove_entry(key)?;
        self.used -= ENTRY_COST + key.len() + entry.value.size();
        if let Some(at) = entry.expires_ms {
            self.by_expiry.remove(&(at, key));
        }
        Some(entry)
    }

    /// Stores an entry in the place of that with the same key.
    fn insert(
        &mut self,
        key: &[u8],
        entry: Entry,
        settings: &DictionarySettings,
    ) -> Result<(), OperationError> {
        let size = ENTRY_COST + key.len() + entry.value.size();
        let old = self.entries.get(key).map_or(0, |old| ENTRY_COST + key.len() + old.value.size());
        if settings.evicts {
            for _ in 0..EVICTED_MAX {
                if self.used - old + size <= settings.size {
                    break;
                }
                // The entries that would expire next.
                let Some(next) =
                    self.by_expiry.iter().map(|(_, next)| next).find(|next| ***next != *key).cloned()
                else {
                    break;
                };
                self.remove(&next);
            }
        }
        if self.used - old + size > settings.size {
            return Err(OperationError::SharedMemory(String::new()));
        }
        self.remove(key);
        let key: Box<[u8]> = key.into();
        if let Some(at) = entry.expires_ms {
            self.by_expiry.insert((at, key.clone()));
        }
        self.used += size;
        self.entries.insert(key, entry);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dictionary(kind: DictionaryType, timeout_ms: Option<u64>, evicts: bool) -> SharedDictionary {
        let name = "d".to_owned();
        SharedDictionary::new(DictionarySettings { name, size: 1000, kind, timeout_ms, evicts })
    }

    fn key(text: &str) -> ByteBuf {
        ByteBuf::from(text)
    }

    fn text(text: &str) -> DictionaryValue {
        DictionaryValue::String(ByteBuf::from(text))
    }

    fn set(name: &str, value: &str, timeout_ms: Option<u64>) -> DictionaryCommand {
        DictionaryCommand::Set { key: key(name), value: text(value), timeout_ms }
    }

    fn get(name: &str) -> DictionaryCommand {
        DictionaryCommand::Get { key: key(name) }
    }

    #[test]
    fn strings_are_kept_until_they_expire() {
        let strings = dictionary(DictionaryType::String, Some(100), false);
        assert_eq!(strings.run(set("a", "1", None), 0), Ok(DictionaryValue::None));
        assert_eq!(strings.run(set("b", "2", Some(500)), 0), Ok(DictionaryValue::None));
        let add = |name| DictionaryCommand::Add { key: key(name), value: text("3"), timeout_ms: None };
        assert_eq!(strings.run(add("a"), 99), Ok(DictionaryValue::Bool(false)));
        assert_eq!(strings.run(get("a"), 99), Ok(text("1")));
        assert_eq!(
            strings.run(DictionaryCommand::Ttl { key: key("a") }, 99),
            Ok(DictionaryValue::Number(1.0))
        );
        assert_eq!(strings.run(get("a"), 100), Ok(DictionaryValue::None));
        assert_eq!(strings.run(DictionaryCommand::Size, 100), Ok(DictionaryValue::Number(1.0)));
        let items = DictionaryCommand::Items { count_max: 9 };
        assert_eq!(strings.run(items, 100), Ok(DictionaryValue::Strings(vec![(key("b"), key("2"))])));
        assert_eq!(strings.run(DictionaryCommand::Pop { key: key("b") }, 100), Ok(text("2")));
        assert_eq!(strings.run(DictionaryCommand::FreeSpace, 100), Ok(DictionaryValue::Number(1000.0)));
    }

    #[test]
    fn numbers_are_counted_and_types_are_checked() {
        let numbers = dictionary(DictionaryType::Number, None, false);
        let incr = |timeout_ms| DictionaryCommand::Incr { key: key("n"), delta: 2.0, init: 40.0, timeout_ms };
        assert_eq!(numbers.run(incr(None), 0), Ok(DictionaryValue::Number(42.0)));
        assert_eq!(numbers.run(incr(None), 0), Ok(DictionaryValue::Number(44.0)));
        assert!(matches!(numbers.run(incr(Some(1)), 0), Err(OperationError::Type(_))));
        assert!(matches!(numbers.run(set("n", "x", None), 0), Err(OperationError::Type(_))));
        let strings = dictionary(DictionaryType::String, None, false);
        assert!(matches!(strings.run(incr(None), 0), Err(OperationError::Type(_))));
        assert_eq!(numbers.run(DictionaryCommand::Clear, 0), Ok(DictionaryValue::None));
        assert_eq!(numbers.run(get("n"), 0), Ok(DictionaryValue::None));
    }

    #[test]
    fn full_dictionary_evicts_what_expires_next_or_refuses() {
        let full = dictionary(DictionaryType::String, None, false);
        let large = "x".repeat(800);
        assert_eq!(full.run(set("a", &large, None), 0), Ok(DictionaryValue::None));
        assert!(matches!(full.run(set("b", &large, None), 0), Err(OperationError::SharedMemory(_))));
        assert_eq!(
            full.run(set("a", "small", None), 0),
            Ok(DictionaryValue::None),
            "the old value makes room"
        );
        assert_eq!(full.run(set("b", &large[..500], None), 0), Ok(DictionaryValue::None));
        let evicting = dictionary(DictionaryType::String, Some(100), true);
        evicting.run(set("a", &large[..300], Some(900)), 0).unwrap();
        evicting.run(set("b", &large[..300], Some(100)), 0).unwrap();
        assert_eq!(evicting.run(set("c", &large[..300], None), 0), Ok(DictionaryValue::None));
        assert_eq!(evicting.run(get("b"), 0), Ok(DictionaryValue::None));
        assert_ne!(evicting.run(get("a"), 0), Ok(DictionaryValue::None));
        assert!(matches!(
            evicting.run(set("d", &large.repeat(2), None), 0),
            Err(OperationError::SharedMemory(_))
        ));
    }
}
