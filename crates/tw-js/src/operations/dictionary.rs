//! `ngx.shared`: commands of shared dictionaries.

use tw_script::{DictionaryCommand, OperationError, Reply};

use super::answer::Answer;
use crate::dictionary::unix_ms;
use crate::script_set::ScriptSet;

/// Runs a command of a dictionary that the scripts may use.
pub(crate) fn run(set: &ScriptSet, name: &str, command: DictionaryCommand) -> Answer {
    let Some(dictionary) =
        set.resources.dictionaries.iter().find(|dictionary| dictionary.settings.name == name)
    else {
        return Err(OperationError::Error(format!("no shared dictionary \"{name}\"")));
    };
    let answer = dictionary.run(command, unix_ms()).map(Reply::Dictionary);
    if let Some(disk) = set.resources.disk.get() {
        dictionary.save_soon(disk, &set.resources.error_log);
    }
    answer
}
