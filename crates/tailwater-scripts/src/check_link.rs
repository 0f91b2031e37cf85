//! Link of modules that are only checked: there is no host. Files may be read, so that modules can read them while they are loaded.

use std::cell::RefCell;

use tw_script::{CallId, Environment, FrameError, Operation, OperationError, ProcessMessage, Reply, Token};
use tw_script_files::{AllowedDirectory, Descriptors, FileAccess};

use crate::link::Link;

/// Answers of a program that checks modules.
pub(crate) struct CheckLink {
    /// Directories of the configuration, none of them writable.
    access: FileAccess,
    files: Descriptors,
    /// The operation that the module waits for.
    asked: RefCell<Option<Operation>>,
}

impl CheckLink {
    /// Link of modules with these files.
    pub(crate) fn new(environment: &Environment) -> Self {
        let directories = environment.file_directories.iter();
        let readable = |path: &[u8]| AllowedDirectory { path: path.to_vec(), is_writable: false };
        let access = FileAccess::Within {
            base: environment.file_base.to_vec(),
            directories: directories.map(|directory| readable(&directory.path)).collect(),
        };
        Self { access, files: Descriptors::default(), asked: RefCell::new(None) }
    }
}

impl Link for CheckLink {
    fn send(&self, message: &ProcessMessage) -> Result<(), FrameError> {
        if let ProcessMessage::ScriptOperation { operation, .. } = message {
            *self.asked.borrow_mut() = Some(operation.clone());
        }
        Ok(())
    }

    fn wait(&self, _: CallId, _: Token) -> Result<Reply, OperationError> {
        match self.asked.take() {
            Some(Operation::File(command)) if command.is_change() => {
                Err(OperationError::Error("files are changed in calls of functions only".to_owned()))
            }
            Some(Operation::File(command)) => {
                let done = tw_script_files::run(&self.access, &self.files, command);
                done.map(Reply::File).map_err(OperationError::File)
            }
            _ => Err(OperationError::Type("not available without a server".to_owned())),
        }
    }

    fn next_token(&self) -> Token {
        1
    }
}
