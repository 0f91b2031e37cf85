//! Variables of `keyval` by name: a script that gives one a value changes the pair behind it.

use std::collections::HashMap;
use std::sync::Arc;

use tw_base::FatalMutex;
use tw_core::session::Session;
use tw_core::vars::Template;

use super::zone::KeyvalZone;

/// Name of [`KeyvalVariables`] among the shared objects of a configuration.
pub const KEYVAL_VARIABLES: &[u8] = b"keyval";

/// Variables of `keyval` of one protocol.
pub struct KeyvalVariables<S: Session>(FatalMutex<HashMap<Box<str>, KeyvalVariable<S>>>);

struct KeyvalVariable<S: Session> {
    key: Template<S>,
    zone: Arc<KeyvalZone>,
}

impl<S: Session> Default for KeyvalVariables<S> {
    fn default() -> Self {
        Self(FatalMutex::new(HashMap::new()))
    }
}

impl<S: Session> KeyvalVariables<S> {
    /// Adds a variable, whose name is written with `$`. Of two with the same name the later one holds.
    pub(super) fn add(&self, name: &str, key: Template<S>, zone: Arc<KeyvalZone>) {
        let name = name.trim_start_matches('$').to_ascii_lowercase();
        self.0.lock().insert(name.into(), KeyvalVariable { key, zone });
    }

    /// Key and zone of the pair behind the variable `name` (lower case, without `$`) of `s`.
    pub fn pair(&self, name: &str, s: &S) -> Option<(Vec<u8>, Arc<KeyvalZone>)> {
        let (key, zone) = {
            let variables = self.0.lock();
            let variable = variables.get(name)?;
            (variable.key.clone(), variable.zone.clone())
        };
        Some((key.value(s), zone))
    }
}
