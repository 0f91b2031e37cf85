//! Sets of scripts that were loaded into one script process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tw_request::plan::LocalFuture;
use tw_script::{LoadError, Operation, OperationError, Reply, ScriptId};

use crate::operations::dictionary;
use crate::operations::file::CallFiles;
use crate::script_set::ScriptSet;

/// Text of the exception of a script that changes files outside of calls.
const MODULE_CHANGE: &str = "files are changed in calls of functions only";
/// State of an operation outside of calls.
pub(crate) enum ScriptOperation {
    Done(Result<Reply, OperationError>),
    Running(LocalFuture<'static, Result<Reply, OperationError>>),
}

/// Sets of scripts of one process.
#[derive(Default)]
pub(crate) struct LoadedScripts(RefCell<HashMap<ScriptId, LoadedScript>>);

/// State of a set of scripts in the process.
struct LoadedScript {
    set: Weak<ScriptSet>,
    /// Reason why the set cannot be used, once that is known.
    error: Option<LoadError>,
    /// Files that the modules of the set have open.
    files: CallFiles,
}

impl LoadedScripts {
    /// Removes the sets of configurations that are gone, and returns their numbers.
    pub(crate) fn remove_unused(&self) -> Vec<ScriptId> {
        let mut unused = Vec::new();
        self.0.borrow_mut().retain(|id, loaded| {
            let is_used = loaded.set.strong_count() > 0;
            if !is_used {
                unused.push(*id);
            }
            is_used
        });
        unused
    }

    /// Adds a set. Returns false if it was there before.
    pub(crate) fn insert(&self, set: &Arc<ScriptSet>) -> bool {
        if self.0.borrow().contains_key(&set.id) {
            return false;
        }
        let loaded = LoadedScript { set: Arc::downgrade(set), error: None, files: CallFiles::new(set) };
        self.0.borrow_mut().insert(set.id, loaded);
        true
    }

    /// Sets the result of loading a set.
    pub(crate) fn set_error(&self, script: ScriptId, error: Option<LoadError>) {
        if let Some(loaded) = self.0.borrow_mut().get_mut(&script) {
            loaded.error = error;
        }
    }

    /// Reason why a set cannot be used, if that is known.
    pub(crate) fn load_error(&self, script: ScriptId) -> Option<LoadError> {
        self.0.borrow().get(&script)?.error.clone()
    }

    /// Any set whose configuration is in use.
    pub(crate) fn any_set(&self) -> Option<Arc<ScriptSet>> {
        self.0.borrow().values().find_map(|loaded| loaded.set.upgrade())
    }

    /// Runs an operation of a script outside of calls, with the rights of its set.
    pub(crate) fn operate(&self, script: ScriptId, operation: Operation) -> ScriptOperation {
        let scripts = self.0.borrow();
        let loaded = scripts.get(&script).and_then(|loaded| Some((loaded, loaded.set.upgrade()?)));
        let Some((loaded, set)) = loaded else {
            return ScriptOperation::Done(Err(OperationError::Error("the script is gone".to_owned())));
        };
        match operation {
            Operation::Dictionary { name, command } => {
                ScriptOperation::Done(dictionary::run(&set, &name, command))
            }
            // A test of the configuration loads modules, too, and changes nothing.
            Operation::File(command) if command.is_change() => {
                ScriptOperation::Done(Err(OperationError::Error(MODULE_CHANGE.to_owned())))
            }
            Operation::File(command) => ScriptOperation::Running(loaded.files.begin(command)),
            _ => {
                let message = "not available without a request".to_owned();
                ScriptOperation::Done(Err(OperationError::Type(message)))
            }
        }
    }
}
