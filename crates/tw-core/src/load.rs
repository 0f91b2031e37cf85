//! From the tree of a configuration to what clients are served by; the half of it that every protocol shares.
//!
//! ```text
//! tree ─ walk ─→ settings as written, per block ─ resolve ─→ settings as used ─ install ─→ plans ─→ Config
//! ```
//! Nothing is opened, created or started here: `-t` runs exactly this. The block of a protocol reads and resolves itself
//! ([`ProtocolBlocks`]); the [`Loader`] has the rest.

mod block_scope;
mod config_builder;
mod consequences;
mod known_directives;
mod loader;
mod mistakes;
mod table;

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use tw_conf::{ConfError, ConfFiles, Diagnostics, MachineSubject, Span, Word};
use tw_log::{Batch, Target};

use crate::log::{BatchConflict, LogTarget, Logs, SharedErrorLog, SinkRef};
use crate::metrics::MetricsTable;
use crate::module::Protocol;
use crate::pools::PoolSettings;
use crate::regex::{Caseless, Regex, Regexes};
use crate::shared_objects::SharedObjects;
use crate::vars::{Template, VarTable};

pub use block_scope::BlockScope;
pub use config_builder::{ConfigBuilder, ProtocolParts};
pub use known_directives::{CollectDirectives, block};
pub use loader::{IfBlock, LoadedBlocks, Loader, ProtocolBlocks, Rejected, load, structure_directives};
pub(crate) use mistakes::LIMITS;
pub use mistakes::Mistakes;
pub use table::{RawSettings, Record, Table, settings_of};

/// Directories and names that relative names of a configuration depend on.
#[derive(Debug, Clone)]
pub struct Prefixes {
    /// `-p`: logs, roots, temporary files.
    pub prefix: Vec<u8>,
    /// Directory of the main configuration file.
    pub conf: Vec<u8>,
    /// Target of errors if the configuration names none: a file, or `stderr`.
    pub error_log: Vec<u8>,
    /// Name of this host, for `$hostname`.
    pub hostname: Vec<u8>,
}

/// Parts of loading that the blocks of all protocols share while they are resolved.
pub struct ResolveContext<'a> {
    /// Name of this host.
    pub hostname: &'a [u8],
    /// Directory for relative names (`-p`).
    pub prefix: &'a [u8],
    /// Directory for relative names of files that belong to the configuration.
    pub conf_prefix: &'a [u8],
    /// The files of the configuration.
    pub files: &'a dyn ConfFiles,
    /// All thread pools.
    pub pools: &'a [PoolSettings],
    /// Number of event loops.
    pub loops: usize,
    /// The error log of `main`.
    pub main_error_log: SharedErrorLog,
    /// All logs.
    pub logs: &'a mut Logs,
    /// Receiver of warnings.
    pub diagnostics: &'a mut Diagnostics,
    /// All regular expressions.
    pub regexes: &'a mut Regexes,
    /// Metrics of the core and of every module.
    pub metrics: &'a Arc<MetricsTable>,
    /// Shared objects of the new configuration.
    pub shared_objects: &'a mut SharedObjects,
    /// Shared objects of the configuration before.
    pub previous: &'a SharedObjects,
}

impl ResolveContext<'_> {
    /// Lends the context to one protocol after the other.
    pub fn reborrow(&mut self) -> ResolveContext<'_> {
        ResolveContext {
            main_error_log: self.main_error_log.clone(),
            logs: self.logs,
            diagnostics: self.diagnostics,
            regexes: self.regexes,
            shared_objects: self.shared_objects,
            ..*self
        }
    }
}

/// Context in which modules resolve their settings.
pub struct Resolve<'a, P: Protocol> {
    /// All variables.
    pub vars: &'a mut VarTable<P::Session>,
    /// Name of this host.
    pub hostname: &'a [u8],
    /// The block that is being resolved.
    pub block: P::Block,
    /// Mistakes that do not end loading.
    pub mistakes: Mistakes,
    shared: ResolveContext<'a>,
}

impl<'a, P: Protocol> Resolve<'a, P> {
    /// Begins with `block`.
    pub fn new(vars: &'a mut VarTable<P::Session>, shared: ResolveContext<'a>, block: P::Block) -> Self {
        Self { vars, hostname: shared.hostname, block, mistakes: Mistakes::default(), shared }
    }
}

impl<P: Protocol> Resolve<'_, P> {
    /// Compiles a word with variables.
    pub fn template(&mut self, word: &Word) -> Result<Template<P::Session>, ConfError> {
        self.template_text(&word.bytes, Some(word.span))
    }

    /// Compiles text with variables.
    pub fn template_text(
        &mut self,
        text: &[u8],
        at: Option<Span>,
    ) -> Result<Template<P::Session>, ConfError> {
        Template::compile(text, at, self.vars)
    }

    /// Compiles a text of the program itself, whose variables are those that modules declare, whatever the configuration defines.
    pub fn own_template(&mut self, text: &str) -> Result<Template<P::Session>, ConfError> {
        Template::compile_own(text, self.vars)
    }

    /// Compiles a regular expression, or finds it if it was compiled before. The error is the compiler's text.
    pub fn regex(&mut self, pattern: &[u8], caseless: Caseless) -> Result<Arc<Regex>, String> {
        self.shared.regexes.compile(pattern, caseless)
    }

    /// Compiles a regular expression, whose named groups are variables.
    ///
    /// # Errors
    /// `regex compilation failed: …` at `at`.
    pub fn regex_of(
        &mut self,
        pattern: &[u8],
        caseless: Caseless,
        at: Span,
    ) -> Result<Arc<Regex>, ConfError> {
        let regex = self.regex(pattern, caseless).map_err(|error| {
            let shown = String::from_utf8_lossy(pattern);
            ConfError::new(format!("regex compilation failed: {error} in \"{shown}\"")).at(at)
        })?;
        for (_, name) in regex.names() {
            self.vars.capture(name, at)?;
        }
        Ok(regex)
    }

    /// Shared object of a module under `name`. It outlives the configuration: the next one gets the same object if it
    /// `fits` (same size, same key). Each type has its own names.
    pub fn keep<T: Send + Sync + 'static>(
        &mut self,
        name: &[u8],
        fits: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Arc<T> {
        self.shared.shared_objects.keep(self.shared.previous, name, fits, make)
    }

    /// As [`keep`](Self::keep), for an object that may fail to be made.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn try_keep<T: Send + Sync + 'static, E>(
        &mut self,
        name: &[u8],
        fits: impl FnOnce(&T) -> bool,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        self.shared.shared_objects.try_keep(self.shared.previous, name, fits, make)
    }

    /// Shared object that another part of this configuration keeps under `name`.
    pub fn find<T: Send + Sync + 'static>(&self, name: &[u8]) -> Option<Arc<T>> {
        self.shared.shared_objects.find(name)
    }

    /// Shared object under `name` in the configuration before, to continue from.
    pub fn previous<T: Send + Sync + 'static>(&self, name: &[u8]) -> Option<Arc<T>> {
        self.shared.previous.find(name)
    }

    /// Number of event loops.
    pub fn loops(&self) -> usize {
        self.shared.loops
    }

    /// Metrics of the core and of every module.
    pub fn metrics(&self) -> &MetricsTable {
        self.shared.metrics
    }

    /// The slot of a variable that a module declares with [`VarDef::stored`](crate::vars::VarDef::stored).
    pub fn slot(&mut self, name: &'static str) -> u16 {
        self.vars.slot_of_module(name)
    }

    /// Keeps the notes about variables that the configuration hides.
    pub fn report_hidden_variables(&mut self) {
        let notes = self.vars.take_notes();
        notes.into_iter().for_each(|note| self.report(note));
    }

    /// Keeps a message, with its hint.
    pub fn report(&mut self, message: ConfError) {
        self.shared.diagnostics.push(message);
    }

    /// Keeps a message that a test of the configuration says if `subject` is not there.
    pub fn expect(&mut self, subject: MachineSubject, message: impl FnOnce() -> ConfError) {
        self.shared.diagnostics.expect(subject, message);
    }

    /// Keeps a warning.
    pub fn warn(&mut self, span: Span, message: impl Into<String>) {
        self.shared.diagnostics.warn(span, message);
    }

    /// A name relative to the prefix.
    pub fn full_path(&self, name: &[u8]) -> Vec<u8> {
        tw_conf::full_name(self.shared.prefix, name)
    }

    /// A name relative to the prefix, for system calls.
    pub fn full_path_c(&self, name: &[u8]) -> CString {
        CString::new(self.full_path(name)).unwrap_or_default()
    }

    /// Reads a file that belongs to the configuration, such as a certificate. The master reads it also for the worker process.
    /// Its name is relative to the main configuration file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn read_file(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        self.shared.files.read(&self.conf_path(name))
    }

    /// Names of the files that `name` stands for, which may be a mask, see [`read_file`](Self::read_file).
    pub fn expand_names(&self, name: &[u8]) -> Vec<Vec<u8>> {
        tw_conf::expand_names(self.shared.files, &self.conf_path(name))
    }

    /// Opens a file of data by its full name. The master opens it also for the worker process, which need not have the right to.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn open_file(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.shared.files.open(path)
    }

    /// Opens a block device by its full name for reading and writing, as [`open_file`](Self::open_file) opens files of data.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn open_device(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.shared.files.open_device(path)
    }

    /// A name relative to the directory of the main configuration file.
    pub fn conf_path(&self, name: &[u8]) -> Vec<u8> {
        tw_conf::full_name(self.shared.conf_prefix, name)
    }

    /// An error log with these targets.
    pub fn error_log(&mut self, targets: Vec<LogTarget>) -> Result<SharedErrorLog, ConfError> {
        Ok(self.shared.logs.error_log(&targets))
    }

    /// The error log of `main`.
    pub fn main_error_log(&self) -> SharedErrorLog {
        self.shared.main_error_log.clone()
    }

    /// The sink of a log file, opened when the configuration goes live.
    pub fn sink(&mut self, path: &Path) -> SinkRef {
        self.sink_of(&Target::File(path.to_owned()))
    }

    /// Sink of any target, see [`sink`](Self::sink).
    pub fn sink_of(&mut self, target: &Target) -> SinkRef {
        self.shared.logs.sink(target)
    }

    /// Sink of a log file that is written in batches. Fails if the file was named before with another buffer.
    pub fn batched_sink(&mut self, path: &Path, batch: Batch) -> Result<SinkRef, BatchConflict> {
        self.shared.logs.batched_sink(path, batch)
    }

    /// The index of a thread pool.
    pub fn pool(&self, name: &[u8], at: Span) -> Result<usize, ConfError> {
        self.shared.pools.iter().position(|pool| pool.name.as_bytes() == name).ok_or_else(|| {
            ConfError::new(format!("unknown thread pool \"{}\"", String::from_utf8_lossy(name))).at(at)
        })
    }
}
