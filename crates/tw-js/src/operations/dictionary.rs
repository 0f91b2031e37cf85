//! `ngx.shared`: commands of shared dictionaries.

use tw_rt::clock;
use tw_script::{DictionaryCommand, OperationError, Reply};

use super::answer::Answer;
use crate::script_set::ScriptSet;

/// Runs a command of a dictionary that the scripts may use.
pub(crate) fn run(set: &ScriptSet, name: &str, command: DictionaryCommand) -> Answer {
    let Some(dictionary) = set.dictionaries.iter().find(|dictionary| dictionary.settings.name == name) else {
        return Err(OperationError::Error(format!("no shared dictionary \"{name}\"")));
    };
    dictionary.run(command, unix_ms()).map(Reply::Dictionary)
}

/// Milliseconds since 1970, by the time of the turn of the loop.
fn unix_ms() -> u64 {
    let now = clock::unix();
    now.secs.unsigned_abs() * 1000 + u64::from(now.msec)
}
