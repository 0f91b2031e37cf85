//! Shared dictionaries (`js_shared_dict_zone`): tables of strings or numbers that all loops and scripts share, and that outlive configurations.

mod save;
mod state;
mod table;

use std::ffi::CString;
use std::sync::atomic::AtomicBool;

use tw_base::FatalMutex;
use tw_rt::clock;
use tw_script::{ByteBuf, Dictionary, DictionaryCommand, DictionaryType, DictionaryValue, OperationError};

use self::table::{Entry, Stored, Table};

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    use table::LIMITS;
    /// Keys that `keys()` and `items()` of a dictionary return.
    const LISTED_MAX: usize = 65_536, count, "the function fails, if so many are there and wanted";
}

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
    /// File that keeps the entries over a restart.
    pub(crate) state: Option<CString>,
}

/// A dictionary.
pub(crate) struct SharedDictionary {
    pub(crate) settings: DictionarySettings,
    table: FatalMutex<Table>,
    /// True if the file of the state lacks a change.
    is_dirty: AtomicBool,
    /// True while a task of some loop is about to write the file.
    is_saving: AtomicBool,
}

/// Result of a command.
type Answer = Result<DictionaryValue, OperationError>;

impl SharedDictionary {
    pub(crate) fn new(settings: DictionarySettings) -> Self {
        Self {
            settings,
            table: FatalMutex::default(),
            is_dirty: AtomicBool::new(false),
            is_saving: AtomicBool::new(false),
        }
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
        let changes = changes(&command);
        let answer = self.execute(command, now_ms);
        if changes && answer.is_ok() {
            self.mark_changed();
        }
        answer
    }

    fn execute(&self, command: DictionaryCommand, now_ms: u64) -> Answer {
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
                let mut entry = self.entry(DictionaryValue::Number(number), timeout_ms, now_ms)?;
                // A number that is there keeps its time.
                if let (None, Some(known)) = (timeout_ms, table.entries.get(&**key)) {
                    entry.expires_ms = known.expires_ms;
                }
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
                let count_max = listed(&table, count_max)?;
                let keys = table.entries.keys().take(count_max);
                Ok(DictionaryValue::Keys(keys.map(|key| ByteBuf::from(key.to_vec())).collect()))
            }
            DictionaryCommand::Items { count_max } => {
                let count_max = listed(&table, count_max)?;
                Ok(self.items(&table, count_max))
            }
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

/// Milliseconds since 1970; on a loop, by the time of its turn.
pub(crate) fn unix_ms() -> u64 {
    let now = clock::unix();
    now.secs.unsigned_abs() * 1000 + u64::from(now.msec)
}

/// True if a command may change entries.
fn changes(command: &DictionaryCommand) -> bool {
    match command {
        DictionaryCommand::Set { .. }
        | DictionaryCommand::Add { .. }
        | DictionaryCommand::Replace { .. }
        | DictionaryCommand::Delete { .. }
        | DictionaryCommand::Pop { .. }
        | DictionaryCommand::Incr { .. }
        | DictionaryCommand::Clear => true,
        DictionaryCommand::Get { .. }
        | DictionaryCommand::Has { .. }
        | DictionaryCommand::Size
        | DictionaryCommand::FreeSpace
        | DictionaryCommand::Ttl { .. }
        | DictionaryCommand::Keys { .. }
        | DictionaryCommand::Items { .. } => false,
    }
}

/// Number of keys that a command lists, within the limit of one message.
fn listed(table: &Table, count_max: u32) -> Result<usize, OperationError> {
    let count = table.entries.len().min(count_max as usize);
    if count > LISTED_MAX {
        return Err(OperationError::Error(format!("more than {LISTED_MAX} keys: give a number of keys")));
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
