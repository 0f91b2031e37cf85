//! Scripts of one list of `js_import`: their sources, read when the configuration is loaded, and the limits of their contexts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tw_core::NGINX_VERSION;
use tw_core::log::SharedErrorLog;
use tw_disk::Disk;
use tw_script::{
    ByteBuf, Environment, Field, FileDirectory, Import, Load, Module, ScriptId, Settings, Source,
};
use tw_script_files::FileAccess;

use crate::dictionary::SharedDictionary;
use crate::{imports, process_links};

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Files of one list of `js_import`, with those that they import.
    const SOURCES_MAX: usize = 1024, count, "the configuration is refused";
    /// Bytes of the files of one list of `js_import`, with those that they import.
    const SOURCES_SIZE_MAX: usize = 16 << 20, bytes, "the configuration is refused";
}

/// Scripts of one list of `js_import`.
pub(crate) struct ScriptSet {
    /// Number that no other set of this process has.
    pub(crate) id: ScriptId,
    pub(crate) scripts: Scripts,
    pub(crate) limits: ScriptLimits,
    pub(crate) names: ServerNames,
    pub(crate) resources: ScriptResources,
}

/// Resources of the server that the scripts of a set may use.
pub(crate) struct ScriptResources {
    pub(crate) dictionaries: Arc<[Arc<SharedDictionary>]>,
    /// Files of `fs`.
    pub(crate) files: Arc<FileAccess>,
    /// Log of work that belongs to no request.
    pub(crate) error_log: SharedErrorLog,
    /// Disk of the configuration, known from the first call on.
    pub(crate) disk: OnceLock<Disk>,
}

/// Modules with their sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scripts {
    pub(crate) modules: Vec<Module>,
    sources: Vec<Source>,
    imports: Vec<Import>,
}

/// Limits of the contexts of one set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScriptLimits {
    /// `js_timeout`
    pub(crate) timeout: Duration,
    /// `js_memory`, in bytes.
    pub(crate) memory_size: u64,
    /// `js_context_reuse`
    pub(crate) context_reuse_count: u32,
}

/// Names of the server that scripts see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerNames {
    pub(crate) conf_prefix: String,
    pub(crate) prefix: String,
    pub(crate) error_log: String,
    /// Number of this process, and of its parent, which a loop may not ask for.
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    /// Path of the program of the server.
    pub(crate) program: Vec<u8>,
    /// Variables of the environment that `env` names.
    pub(crate) env: Vec<Field>,
}

/// Access to files of scripts while a configuration is loaded.
pub(crate) trait ScriptFiles {
    /// Text of a file; `None` if there is none.
    fn read(&self, path: &str) -> Option<Vec<u8>>;
}

/// Reason why the files of a list cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SourceError {
    /// A module of `js_import` has no file.
    Missing(String),
    TooMany,
    TooLarge,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(f, "module \"{path}\" is not found"),
            Self::TooMany => write!(f, "the modules import more than {SOURCES_MAX} files"),
            Self::TooLarge => {
                write!(f, "the modules have more than {} MB of sources", SOURCES_SIZE_MAX >> 20)
            }
        }
    }
}

impl Scripts {
    /// Reads the modules of a list, name and path as written, and everything that they import. A path that is not absolute is looked for
    /// in the directory of the importing file, then in that of the configuration, then in those of `js_path`.
    pub(crate) fn read(
        written: &[(String, String)],
        conf_prefix: &str,
        paths: &[String],
        files: &dyn ScriptFiles,
    ) -> Result<Self, SourceError> {
        let mut reading =
            Reading { files, conf_prefix, paths, texts: BTreeMap::new(), order: Vec::new(), size: 0 };
        let mut modules = Vec::new();
        for (name, path) in written {
            let found = reading.find(conf_prefix, path)?.ok_or_else(|| SourceError::Missing(path.clone()))?;
            modules.push(Module { name: name.clone(), path: found });
        }
        let mut imports = Vec::new();
        let mut next = 0;
        while let Some(referrer) = reading.order.get(next).cloned() {
            next += 1;
            let text = reading.texts.get(&referrer).cloned().unwrap_or_default();
            for specifier in imports::specifiers(&text) {
                if let Some(path) = reading.find(directory(&referrer), &specifier)? {
                    imports.push(Import { referrer: referrer.clone(), specifier, path });
                }
            }
        }
        let Reading { texts, order, .. } = reading;
        let text = |path: &String| ByteBuf::from(texts.get(path).cloned().unwrap_or_default());
        let sources = order.iter().map(|path| Source { path: path.clone(), text: text(path) }).collect();
        Ok(Self { modules, sources, imports })
    }
}

/// Files of a list that were read.
struct Reading<'a> {
    files: &'a dyn ScriptFiles,
    conf_prefix: &'a str,
    paths: &'a [String],
    texts: BTreeMap<String, Vec<u8>>,
    order: Vec<String>,
    size: usize,
}

impl Reading<'_> {
    /// Reads the file of a module, unless that was read before, and returns its path.
    fn find(&mut self, own: &str, specifier: &str) -> Result<Option<String>, SourceError> {
        let mut places: Vec<String> = Vec::new();
        if specifier.starts_with('/') {
            places.push(normalized(specifier));
        } else {
            let directories =
                [own, self.conf_prefix].into_iter().chain(self.paths.iter().map(String::as_str));
            places.extend(directories.map(|directory| match directory {
                // The directory of the configuration, in which relative paths begin.
                "" => normalized(specifier),
                directory => normalized(&format!("{directory}/{specifier}")),
            }));
        }
        for path in places {
            if self.texts.contains_key(&path) {
                return Ok(Some(path));
            }
            let Some(text) = self.files.read(&path) else { continue };
            self.size += text.len();
            if self.size > SOURCES_SIZE_MAX {
                return Err(SourceError::TooLarge);
            }
            if self.order.len() == SOURCES_MAX {
                return Err(SourceError::TooMany);
            }
            self.texts.insert(path.clone(), text);
            self.order.push(path.clone());
            return Ok(Some(path));
        }
        Ok(None)
    }
}

/// Directory of a file, without its last slash.
fn directory(path: &str) -> &str {
    path.rfind('/').map_or("", |slash| path.get(..slash).unwrap_or_default())
}

/// A path without `.`, `..` and empty parts.
fn normalized(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            ".." if path.starts_with('/') => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    if path.starts_with('/') { format!("/{joined}") } else { joined }
}

impl fmt::Debug for ScriptSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptSet")
            .field("id", &self.id)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Sets of scripts of this process.
static LIVE_SETS: AtomicUsize = AtomicUsize::new(0);

/// Returns true if some configuration that is used has scripts.
pub(crate) fn are_there_scripts() -> bool {
    LIVE_SETS.load(SeqCst) > 0
}

impl Drop for ScriptSet {
    fn drop(&mut self) {
        if LIVE_SETS.fetch_sub(1, SeqCst) == 1 {
            process_links::release();
        }
    }
}

impl ScriptSet {
    /// Set with a number of its own.
    pub(crate) fn new(
        scripts: Scripts,
        limits: ScriptLimits,
        names: ServerNames,
        resources: ScriptResources,
    ) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LIVE_SETS.fetch_add(1, SeqCst);
        Self { id: LAST.fetch_add(1, Relaxed) + 1, scripts, limits, names, resources }
    }

    /// Takes the disk of the configuration for files of the scripts, unless that was done.
    pub(crate) fn use_disk(&self, disk: &Disk) {
        self.resources.disk.get_or_init(|| disk.clone());
    }

    /// Directory of relative paths, and directories that the scripts may use.
    fn files(&self) -> (ByteBuf, Vec<FileDirectory>) {
        let FileAccess::Within { base, directories } = &*self.resources.files else {
            return (ByteBuf::new(), Vec::new());
        };
        let directories = directories.iter().map(|directory| FileDirectory {
            path: ByteBuf::from(directory.path.clone()),
            is_writable: directory.is_writable,
        });
        (ByteBuf::from(base.clone()), directories.collect())
    }

    /// Message that loads the set for one loop.
    pub(crate) fn load(&self, worker: usize) -> Load {
        let Scripts { modules, sources, imports } = self.scripts.clone();
        let ScriptLimits { timeout, memory_size, context_reuse_count } = self.limits;
        let (file_base, file_directories) = self.files();
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        Load {
            script: self.id,
            modules,
            sources,
            imports,
            settings: Settings { timeout_ms, memory_size, context_reuse_count },
            environment: Environment {
                version: NGINX_VERSION.to_owned(),
                version_number: version_number(NGINX_VERSION),
                build: "tailwater".to_owned(),
                conf_file_path: String::new(),
                conf_prefix: self.names.conf_prefix.clone(),
                prefix: self.names.prefix.clone(),
                error_log_path: self.names.error_log.clone(),
                worker_id: u32::try_from(worker).unwrap_or(u32::MAX),
                pid: self.names.pid,
                ppid: self.names.parent,
                argv: vec![ByteBuf::from(self.names.program.clone())],
                env: self.names.env.clone(),
                dictionaries: self
                    .resources
                    .dictionaries
                    .iter()
                    .map(|dictionary| dictionary.describe())
                    .collect(),
                file_base,
                file_directories,
            },
        }
    }
}

/// Version of nginx as a number: 1031006 for 1.31.6.
fn version_number(version: &str) -> u32 {
    version.split('.').fold(0, |number, part| number * 1000 + part.parse::<u32>().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    struct Files(HashMap<&'static str, String>);

    impl ScriptFiles for Files {
        fn read(&self, path: &str) -> Option<Vec<u8>> {
            self.0.get(path).map(|text| text.clone().into_bytes())
        }
    }

    fn written(path: &str) -> Vec<(String, String)> {
        vec![("main".to_owned(), path.to_owned())]
    }

    #[test]
    fn imports_are_found_in_the_file_s_directory_that_of_the_configuration_and_js_path() {
        let files = Files(HashMap::from([
            (
                "/etc/js/main.js",
                "import a from './a.js'; import b from 'lib/b.js'; import c from 'c.js'; import fs from 'fs';".to_owned(),
            ),
            ("/etc/js/a.js", "import '../top.js'; import './main.js'".to_owned()),
            ("/etc/top.js", String::new()),
            ("/etc/lib/b.js", String::new()),
            ("/usr/js/c.js", String::new()),
        ]));
        let scripts =
            Scripts::read(&written("js/main.js"), "/etc/", &["/usr/js".to_owned()], &files).unwrap();
        let paths = ["/etc/js/main.js", "/etc/js/a.js", "/etc/lib/b.js", "/usr/js/c.js", "/etc/top.js"];
        assert_eq!(scripts.sources.iter().map(|source| &*source.path).collect::<Vec<_>>(), paths);
        assert_eq!(scripts.modules[0].path, paths[0]);
        let known = |import: &Import| format!("{} {} {}", import.referrer, import.specifier, import.path);
        let imports: Vec<_> = scripts.imports.iter().map(known).collect();
        assert!(imports.contains(&"/etc/js/a.js ../top.js /etc/top.js".to_owned()), "{imports:?}");
        assert!(imports.contains(&"/etc/js/a.js ./main.js /etc/js/main.js".to_owned()), "{imports:?}");
        assert_eq!(imports.len(), 5);
        let files = Files(HashMap::from([
            ("main.js", "import '../up.js'; import './lib/a.js'".to_owned()),
            ("../up.js", String::new()),
            ("lib/a.js", "import '../../up.js'".to_owned()),
        ]));
        let relative = Scripts::read(&written("main.js"), "", &[], &files).unwrap();
        let paths: Vec<_> = relative.sources.iter().map(|source| &*source.path).collect();
        assert_eq!(paths, ["main.js", "../up.js", "lib/a.js"]);
        assert_eq!(relative.imports.len(), 3);
        let missing = Scripts::read(&written("none.js"), "/etc/", &[], &files);
        assert_eq!(missing.unwrap_err(), SourceError::Missing("none.js".to_owned()));
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version_number("1.31.6"), 1_031_006);
    }

    #[test]
    fn sources_are_bounded() {
        struct Endless;
        impl ScriptFiles for Endless {
            fn read(&self, path: &str) -> Option<Vec<u8>> {
                Some(format!("import '{path}x'").into_bytes())
            }
        }
        let endless = Scripts::read(&written("/a"), "/", &[], &Endless);
        assert_eq!(endless.unwrap_err(), SourceError::TooMany);
        let large = Files(HashMap::from([("/a", " ".repeat(SOURCES_SIZE_MAX + 1))]));
        assert_eq!(Scripts::read(&written("/a"), "/", &[], &large).unwrap_err(), SourceError::TooLarge);
    }
}
