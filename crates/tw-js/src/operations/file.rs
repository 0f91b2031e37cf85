//! `fs`: commands on files, as jobs of a thread pool.
//!
//! A script waits for the job, the loop does not. Directories of `js_fs_path` are all that a script may use; without them every command fails
//! with an exception that names the directive.

use std::ffi::CString;
use std::sync::Arc;

use tw_disk::{Account, Disk, JobClass, JobSource};
use tw_request::plan::{LocalFuture, boxed};
use tw_script::{ByteBuf, FileCommand, FileError, OperationError, Reply};
use tw_script_files::{Descriptors, FileAccess};

use super::answer::Answer;
use crate::script_set::{ScriptResources, ScriptSet};

/// Files that a call has open, and the disk door that they go through.
pub(crate) struct CallFiles {
    access: Arc<FileAccess>,
    disk: Option<Disk>,
    open: Arc<Descriptors>,
}

impl CallFiles {
    /// Files of a call, or of modules that are loaded.
    pub(crate) fn new(set: &ScriptSet) -> Self {
        let ScriptResources { files, disk, .. } = &set.resources;
        Self { access: files.clone(), disk: disk.get().cloned(), open: Arc::default() }
    }

    /// Begins a command.
    pub(crate) fn begin(&self, command: FileCommand) -> LocalFuture<'static, Answer> {
        let (access, open, disk) = (self.access.clone(), self.open.clone(), self.disk.clone());
        boxed(move || async move {
            let Some(disk) = disk else {
                return Err(OperationError::Error("files are not available here".to_owned()));
            };
            // Commands on descriptors go to the device of the first directory: most configurations have one.
            let path =
                path_of(&command).map_or_else(|| first_directory(&access), |path| full_path(&access, path));
            let path = CString::new(path).unwrap_or_default();
            let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
            let ran =
                disk.run_at(&mut account, &path, move || tw_script_files::run(&access, &open, command)).await;
            match ran {
                Ok(Ok(value)) => Ok(Reply::File(value)),
                Ok(Err(error)) => Err(OperationError::File(error)),
                Err(error) => Err(OperationError::File(FileError {
                    errno: rustix::io::Errno::IO.raw_os_error(),
                    code: "EIO".to_owned(),
                    message: error.to_string(),
                    syscall: String::new(),
                    path: ByteBuf::from(path.into_bytes()),
                })),
            }
        })
    }
}

impl Drop for CallFiles {
    /// Closes what the script has left open, on the pool: closing may wait.
    fn drop(&mut self) {
        if let Some(disk) = self.disk.as_ref().filter(|_| !self.open.is_empty()) {
            let open = std::mem::take(&mut self.open);
            disk.pool().run_detached(&Account::new(JobClass::Fill, JobSource::NONE), move || drop(open));
        }
    }
}

/// Path of a command; `None` for those on descriptors.
fn path_of(command: &FileCommand) -> Option<&[u8]> {
    match command {
        FileCommand::Access { path, .. }
        | FileCommand::Read { path, .. }
        | FileCommand::Write { path, .. }
        | FileCommand::Status { path, .. }
        | FileCommand::CreateDirectory { path, .. }
        | FileCommand::RemoveDirectory { path, .. }
        | FileCommand::ReadDirectory { path }
        | FileCommand::RealPath { path }
        | FileCommand::ReadLink { path }
        | FileCommand::Rename { from: path, .. }
        | FileCommand::Symlink { path, .. }
        | FileCommand::Remove { path }
        | FileCommand::Open { path, .. } => Some(path),
        FileCommand::Close { .. }
        | FileCommand::StatusOf { .. }
        | FileCommand::ReadAt { .. }
        | FileCommand::WriteAt { .. } => None,
    }
}

fn full_path(access: &FileAccess, path: &[u8]) -> Vec<u8> {
    match access {
        FileAccess::Within { base, .. } if !path.starts_with(b"/") => [base, &b"/"[..], path].concat(),
        FileAccess::Within { .. } | FileAccess::OfUser => path.to_vec(),
    }
}

fn first_directory(access: &FileAccess) -> Vec<u8> {
    let directory = match access {
        FileAccess::Within { directories, .. } => directories.first().map(|directory| directory.path.clone()),
        FileAccess::OfUser => None,
    };
    directory.unwrap_or_else(|| b"/".to_vec())
}
