//! Settings of scripts that every protocol shares: modules, limits, processes, variables.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tw_base::FatalMutex;
use tw_conf::{ConfError, Level, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::reach::{Access, Reach};
use tw_module_support::zone;
use tw_script::Field;
use tw_script_files::{AllowedDirectory, FileAccess};

use crate::counters::{self, Counters};
use crate::dictionary::{SharedDictionary, unix_ms};
use crate::raw::{Raw, RawDictionary, RawImport};
use crate::script_set::{ScriptFiles, ScriptLimits, ScriptResources, ScriptSet, Scripts, ServerNames};

/// Name of [`ScriptUse`] among the shared objects of a configuration.
pub const SCRIPT_USE: &[u8] = b"js";

/// File name of the program that runs scripts.
const PROGRAM: &str = "tailwater-scripts";

/// Script processes that a configuration needs.
#[derive(Debug, Default)]
pub struct ScriptUse {
    is_used: AtomicBool,
    processes: OnceLock<usize>,
    program: OnceLock<PathBuf>,
    sets: FatalMutex<Vec<Arc<ScriptSet>>>,
}

impl ScriptUse {
    /// Returns true if the configuration has scripts.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    /// Number of processes (`js_processes`), if it is set.
    pub fn processes(&self) -> Option<usize> {
        self.processes.get().copied()
    }

    /// The program that runs scripts: as written, or beside this one.
    pub fn program(&self) -> PathBuf {
        self.program.get().cloned().unwrap_or_else(|| {
            let own = std::env::current_exe().unwrap_or_default();
            // A program that was replaced has another name in /proc.
            let directory = own.parent().map(std::path::Path::to_owned).unwrap_or_default();
            directory.join(PROGRAM)
        })
    }

    /// Messages that load all scripts, for a test of the configuration.
    pub fn loads(&self) -> Vec<tw_script::Load> {
        self.sets.lock().iter().map(|set| set.load(0)).collect()
    }
}

/// Settings of one block.
pub(crate) struct Common {
    /// Modules with their paths, as written.
    imports: Arc<[(String, String)]>,
    paths: Arc<[String]>,
    directories: Arc<[AllowedDirectory]>,
    limits: ScriptLimits,
    pub(crate) set: Option<Arc<ScriptSet>>,
    pub(crate) counters: Arc<Counters>,
    dictionaries: Arc<[Arc<SharedDictionary>]>,
}

/// Files of scripts, by names relative to the directory of the configuration.
struct ConfiguredFiles<'a, 'b, P: Protocol>(&'a Resolve<'b, P>);

impl<P: Protocol> ScriptFiles for ConfiguredFiles<'_, '_, P> {
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        self.0.read_file(path.as_bytes()).ok()
    }
}

impl Common {
    /// Resolves the directives of a block.
    pub(crate) fn resolve<P: Protocol>(
        raw: &mut Raw,
        outer: Option<&Self>,
        cx: &mut Resolve<'_, P>,
    ) -> Result<Self, ConfError> {
        if let Some(span) = raw.old_engine {
            let notice = ConfError::new("\"js_engine njs\": scripts run on QuickJS").at(span);
            cx.report(ConfError { level: Level::Notice, ..notice });
        }
        if let Some(span) = raw.context_reuse_max_size_span {
            let notice = ConfError::new(
                "\"js_context_reuse_max_size\" has no effect: \"js_memory\" limits every context",
            )
            .at(span);
            cx.report(ConfError { level: Level::Notice, ..notice });
        }
        declare_processes(raw, cx);
        let imports = inherited(outer.map(|outer| &outer.imports), raw.imports.iter().map(RawImport::pair));
        let paths = raw.paths.iter().map(|word| word.lossy().into_owned());
        let paths = inherited(outer.map(|outer| &outer.paths), paths);
        let directories = raw.file_paths.iter().map(|written| AllowedDirectory {
            path: cx.full_path(&written.path.bytes),
            is_writable: written.is_writable,
        });
        let directories = inherited(outer.map(|outer| &outer.directories), directories);
        let limits = limits(raw, outer.map(|outer| outer.limits));
        let counters = match outer {
            Some(outer) => outer.counters.clone(),
            None => cx.keep(counters::NAME, |_| true, Counters::new),
        };
        let same = outer.filter(|outer| {
            Arc::ptr_eq(&outer.imports, &imports)
                && Arc::ptr_eq(&outer.paths, &paths)
                && Arc::ptr_eq(&outer.directories, &directories)
                && outer.limits == limits
        });
        let dictionaries = match outer {
            Some(outer) => outer.dictionaries.clone(),
            None => declare_dictionaries(&raw.dictionaries, cx)?,
        };
        let set = match same {
            Some(outer) => outer.set.clone(),
            None if imports.is_empty() => None,
            None => {
                let scripts = read_scripts(raw, &imports, &paths, cx)?;
                let files = FileAccess::Within { base: cx.full_path(b""), directories: directories.to_vec() };
                let resources = ScriptResources {
                    dictionaries: dictionaries.clone(),
                    files: Arc::new(files),
                    error_log: cx.main_error_log(),
                    disk: OnceLock::new(),
                };
                Some(declare_set(ScriptSet::new(scripts, limits, server_names(cx), resources), cx))
            }
        };
        Ok(Self { imports, paths, directories, limits, set, counters, dictionaries })
    }
}

/// Declares directories of `js_fs_path` and files of dictionaries for the sandbox of the worker process.
pub(crate) fn reach_files(common: &Common, reach: &mut Reach) {
    for state in common.dictionaries.iter().filter_map(|dictionary| dictionary.settings.state.as_ref()) {
        reach.replaces_file(state.to_bytes());
    }
    for directory in &*common.directories {
        let access = if directory.is_writable { Access::Change } else { Access::Read };
        reach.uses_directory(&directory.path, access);
    }
}

impl RawImport {
    fn pair(&self) -> (String, String) {
        (self.name.clone(), self.path.clone())
    }
}

/// A list of the enclosing block with what this block adds.
fn inherited<T: Clone>(outer: Option<&Arc<[T]>>, own: impl ExactSizeIterator<Item = T>) -> Arc<[T]> {
    match outer {
        Some(outer) if own.len() == 0 => outer.clone(),
        Some(outer) => outer.iter().cloned().chain(own).collect(),
        None => own.collect(),
    }
}

fn limits(raw: &mut Raw, outer: Option<ScriptLimits>) -> ScriptLimits {
    let take = |setting: &mut tw_conf::Setting<u64>| std::mem::take(setting);
    let timeout =
        std::mem::take(&mut raw.timeout).or(outer.map(|outer| outer.timeout), Duration::from_millis(100));
    let memory_size = take(&mut raw.memory).or(outer.map(|outer| outer.memory_size), 16 << 20);
    let reuse = take(&mut raw.context_reuse).or(outer.map(|outer| outer.context_reuse_count.into()), 128);
    let context_reuse_count = u32::try_from(reuse).unwrap_or(u32::MAX);
    ScriptLimits { timeout, memory_size, context_reuse_count }
}

fn declare_processes<P: Protocol>(raw: &mut Raw, cx: &mut Resolve<'_, P>) {
    let processes = std::mem::take(&mut raw.processes).take();
    let program: Option<Word> = std::mem::take(&mut raw.program).take();
    if processes.is_none() && program.is_none() {
        return;
    }
    let scripts = cx.keep(SCRIPT_USE, |_| false, ScriptUse::default);
    if let Some(processes) = processes {
        // Of two protocols the first one decides.
        let _ = scripts.processes.set(usize::try_from(processes).unwrap_or(usize::MAX));
    }
    if let Some(program) = program {
        let path = std::ffi::OsString::from_vec(cx.full_path(&program.bytes));
        let _ = scripts.program.set(path.into());
    }
}

/// Dictionaries of a protocol. Those of the configuration before go on with their content if they have the same properties.
fn declare_dictionaries<P: Protocol>(
    written: &[RawDictionary],
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<[Arc<SharedDictionary>]>, ConfError> {
    let mut all = Vec::new();
    for RawDictionary { settings, state, span } in written {
        zone::claim(cx, settings.name.as_bytes(), "js_shared_dict_zone").map_err(|error| error.at(*span))?;
        let name = [P::NAME.as_bytes(), b" js dict ", settings.name.as_bytes()].concat();
        let mut settings = settings.clone();
        if let Some(word) = state {
            settings.state = Some(claim_state(word, &name, cx)?);
        }
        let make = || {
            let dictionary = SharedDictionary::new(settings.clone());
            dictionary.load_state(unix_ms()).map(|()| dictionary)
        };
        let fits = |known: &SharedDictionary| known.settings == settings;
        all.push(cx.try_keep(&name, fits, make).map_err(|error| error.at(*span))?);
    }
    Ok(all.into())
}

/// Owner of a file with the state of a dictionary.
struct StateOwner(Vec<u8>);

/// Path of the state of a dictionary, which no other dictionary has.
fn claim_state<P: Protocol>(
    word: &Word,
    dictionary: &[u8],
    cx: &mut Resolve<'_, P>,
) -> Result<CString, ConfError> {
    let path = cx.full_path_c(&word.bytes);
    let make = || StateOwner(dictionary.to_vec());
    let owner = cx.keep(path.to_bytes(), |known: &StateOwner| known.0 == dictionary, make);
    if owner.0 != dictionary {
        let message = format!("state file \"{word}\" is already used in another \"js_shared_dict_zone\"");
        return Err(ConfError::new(message).at(word.span));
    }
    Ok(path)
}

/// Reads the modules of a block.
fn read_scripts<P: Protocol>(
    raw: &Raw,
    imports: &[(String, String)],
    paths: &[String],
    cx: &Resolve<'_, P>,
) -> Result<Scripts, ConfError> {
    Scripts::read(imports, "", paths, &ConfiguredFiles(cx)).map_err(|error| {
        let error = ConfError::new(error.to_string());
        match raw.imports.first() {
            Some(import) => error.at(import.span),
            None => error,
        }
    })
}

fn server_names<P: Protocol>(cx: &Resolve<'_, P>) -> ServerNames {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let variables = std::env::vars_os().map(|(name, value)| Field::new(name.into_vec(), value.into_vec()));
    ServerNames {
        conf_prefix: text(cx.conf_path(b"")),
        prefix: text(cx.full_path(b"")),
        error_log: String::new(),
        pid: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
        parent: rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get().cast_unsigned()),
        program: std::env::current_exe().unwrap_or_default().into_os_string().into_vec(),
        env: variables.collect(),
    }
}

/// Adds a set to those of the configuration.
fn declare_set<P: Protocol>(set: ScriptSet, cx: &mut Resolve<'_, P>) -> Arc<ScriptSet> {
    let set = Arc::new(set);
    let scripts = cx.keep(SCRIPT_USE, |_| false, ScriptUse::default);
    scripts.is_used.store(true, Relaxed);
    scripts.sets.lock().push(set.clone());
    set
}
