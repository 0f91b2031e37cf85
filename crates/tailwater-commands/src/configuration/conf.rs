//! The configuration: its source, and loading it.

use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tw_app::Config;
use tw_conf::{
    ConfError, ConfFiles, Diagnostics, Level, MachineCheck, MemoryFiles, MissingList, Reader, RecordedFiles,
    Sources, Span, SystemFiles, Tree,
};
use tw_core::config_thread;
use tw_core::load::{Prefixes, Rejected};
use tw_core::process::DEFAULT_PID;
use tw_core::shared_objects::SharedObjects;
use tw_sys::heap::purge;

use crate::cli::{FaultInjection, Options};
use crate::configuration::built_in;
use crate::configuration::bytes_path::path;
use crate::configuration::directories;
use crate::output::console::{Console, Fault};

/// Modules of each protocol.
pub const MODULES: tw_app::Modules = tw_app::Modules {
    http: tw_modules::MODULES,
    stream: tw_modules::STREAM_MODULES,
    mail: tw_modules::MAIL_MODULES,
};

/// Directory of relative names unless `-p` is given. Packages set `TAILWATER_PREFIX` when they build.
pub const DEFAULT_PREFIX: &str = match option_env!("TAILWATER_PREFIX") {
    Some(prefix) => prefix,
    None => "/usr/local/tailwater/",
};
/// The configuration file unless `-c` says otherwise, relative to the prefix. Packages set `TAILWATER_CONF`.
pub const DEFAULT_FILE: &str = match option_env!("TAILWATER_CONF") {
    Some(file) => file,
    None => "conf/nginx.conf",
};
/// The error log unless the configuration or `-e` says otherwise, relative to the prefix.
const DEFAULT_ERROR_LOG: &[u8] = b"logs/error.log";

/// Most mistakes that are printed one by one. A file with more of them is probably no configuration.
const MAX_SAID: usize = 50;

/// Source of a configuration. A reload reads it again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Source {
    /// Directory of relative names, with a slash at its end.
    prefix: Vec<u8>,
    /// The main file.
    file: Vec<u8>,
    error_log: Vec<u8>,
    globals: Option<Vec<u8>>,
    /// The text, if there is no file.
    text: Option<Vec<u8>>,
    faults: FaultInjection,
}

/// A configuration that was loaded, with the texts that messages about it point into.
pub struct Loaded {
    /// The texts, and directives that messages point at.
    pub tree: Tree,
    /// The configuration.
    pub config: Config,
    /// Expectations of the configuration about the machine, if it is tested.
    pub checks: Vec<MachineCheck>,
}

/// A configuration that was tested. Its mistakes have been reported.
pub enum Tested {
    /// The configuration can be used.
    Accepted(Loaded),
    /// The configuration cannot be used. It is there as far as it could be made, for further checks.
    Rejected(Option<Loaded>),
}

/// Result of loading.
struct Outcome {
    tree: Tree,
    diagnostics: Diagnostics,
    config: Result<Config, Box<Rejected<Config>>>,
}

impl Source {
    /// Source given by the command line.
    pub fn new(options: &Options) -> Self {
        let prefix = slashed(options.prefix.clone().unwrap_or_else(|| DEFAULT_PREFIX.into()));
        let file = options.file.as_deref().unwrap_or(DEFAULT_FILE.as_bytes());
        Self {
            file: tw_conf::full_name(&prefix, file),
            prefix,
            error_log: options.error_log.clone().unwrap_or_else(|| DEFAULT_ERROR_LOG.into()),
            globals: options.globals.clone(),
            text: None,
            faults: options.faults,
        }
    }

    /// A text that is in memory; messages call it `name`.
    pub fn text(prefix: Vec<u8>, name: &str, text: Vec<u8>) -> Self {
        Self {
            prefix: slashed(prefix),
            file: name.into(),
            error_log: b"stderr".into(),
            globals: None,
            text: Some(text),
            faults: FaultInjection::Refused,
        }
    }

    /// Leaves it to the running server whether it takes faults on purpose: the command that finds it by its configuration does
    /// not.
    pub fn for_command(self) -> Self {
        Self { faults: FaultInjection::Enabled, ..self }
    }

    /// The main file.
    pub fn file(&self) -> PathBuf {
        path(&self.file).to_owned()
    }

    /// The main file, for messages.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.file).into_owned()
    }

    /// Returns the directory that relative names begin in.
    pub fn prefix(&self) -> &Path {
        path(&self.prefix)
    }

    /// Makes all names independent of the current directory, which `working_directory` changes.
    pub fn make_absolute(&mut self) -> io::Result<()> {
        let absolute = |name: &[u8]| {
            let name = if name.is_empty() { b"." } else { name };
            std::path::absolute(path(name)).map(|full| full.into_os_string().into_vec())
        };
        self.prefix = slashed(absolute(&self.prefix)?);
        if self.text.is_none() {
            self.file = absolute(&self.file)?;
        }
        Ok(())
    }

    /// Reads and loads the configuration, and reports its mistakes. `None` means that it cannot be used. `previous`
    /// is what modules keep from the configuration before.
    pub fn load(&self, previous: &SharedObjects, console: &Console) -> Option<Loaded> {
        self.load_from(&SystemFiles, previous, console)
    }

    /// Loads it for another process, with a copy of every file that was read.
    pub fn load_and_record(&self, console: &Console) -> Option<(Loaded, MemoryFiles)> {
        let load = || {
            let files = RecordedFiles::default();
            let outcome = self.read_and_load(&files, &SharedObjects::default(), Diagnostics::default());
            (outcome, files.into_files())
        };
        // The heap is not purged here: memory that loading has freed goes back to the system together with the
        // configuration.
        let (outcome, files) = match config_thread::run_on_own_thread(|| (), load) {
            Ok(loaded) => loaded,
            Err(error) => {
                let errno = tw_base::Errno::from(&error);
                console.fault(&Fault::emerg(format!("starting a thread failed ({errno})")));
                return None;
            }
        };
        match self.report_outcome(outcome, console) {
            Tested::Accepted(loaded) => Some((loaded, files)),
            Tested::Rejected(partial) => {
                drop(partial);
                purge();
                None
            }
        }
    }

    /// Loads it from such a copy, or from wherever its files are.
    pub fn load_from(
        &self,
        files: &dyn ConfFiles,
        previous: &SharedObjects,
        console: &Console,
    ) -> Option<Loaded> {
        match self.report_outcome(self.read_and_load(files, previous, Diagnostics::default()), console) {
            Tested::Accepted(loaded) => Some(loaded),
            Tested::Rejected(_) => None,
        }
    }

    /// Loads it for a test, which goes on after mistakes.
    pub fn test(&self, console: &Console) -> Tested {
        let diagnostics = Diagnostics::with_checks();
        self.report_outcome(self.read_and_load(&SystemFiles, &SharedObjects::default(), diagnostics), console)
    }

    fn read_and_load(
        &self,
        files: &dyn ConfFiles,
        previous: &SharedObjects,
        mut diagnostics: Diagnostics,
    ) -> Outcome {
        let mut tree = Tree::default();
        let config = match self.read(files, &mut tree) {
            // If some files could not be read, the others are loaded all the same, so that their mistakes are reported,
            // too.
            Err(mistake) if tree.failures.is_empty() => Err(Box::new(Rejected { mistake, partial: None })),
            _ => tw_app::load(&mut tree, files, &self.prefixes(), MODULES, previous, &mut diagnostics)
                .and_then(|config| self.check_faults(config, &mut diagnostics)),
        };
        Outcome { tree, diagnostics, config }
    }

    /// Refuses faults on purpose that the command line does not allow, and warns of those that it allows.
    fn check_faults(
        &self,
        config: Config,
        diagnostics: &mut Diagnostics,
    ) -> Result<Config, Box<Rejected<Config>>> {
        for fault in &config.main.disk_faults {
            if self.faults == FaultInjection::Refused {
                let message = "\"debug_disk_fault\" is not allowed without \"--enable-fault-injection\"";
                let hint = "the option belongs on the command line that starts the server, and is not for production";
                let mistake = ConfError::new(message).hint(hint).at(fault.span);
                return Err(Box::new(Rejected { mistake, partial: Some(config) }));
            }
            diagnostics.warn(fault.span, format!("\"debug_disk_fault\": {fault}"));
        }
        Ok(config)
    }

    /// Reports the mistakes of a load.
    fn report_outcome(&self, outcome: Outcome, console: &Console) -> Tested {
        let Outcome { mut tree, mut diagnostics, config } = outcome;
        let checks = diagnostics.take_checks();
        let notes = std::mem::take(&mut tree.notes);
        let is_mistake = |said: &ConfError| matches!(said.level, Level::Emerg | Level::Crit);
        let (mistakes, others): (Vec<_>, Vec<_>) = notes.into_iter().chain(diagnostics).partition(is_mistake);
        let others = tw_conf::said_once(others, &tree.sources);
        others.iter().for_each(|warning| console.conf(warning, &tree.sources));
        match config {
            Ok(config) => Tested::Accepted(Loaded { tree, config, checks }),
            Err(rejected) => {
                let Rejected { mistake, partial } = *rejected;
                let all = std::iter::once(self.advise(mistake)).chain(mistakes).collect();
                let all = tw_conf::said_once(all, &tree.sources);
                if let Some((first, more)) = all.split_first() {
                    console.conf(first, &tree.sources);
                    report_more_errors(first, &more.iter().collect::<Vec<_>>(), &tree.sources, console);
                }
                Tested::Rejected(partial.map(|config| Loaded { tree, config, checks }))
            }
        }
    }

    /// Adds what a newcomer needs to know when there is no configuration at all.
    fn advise(&self, error: ConfError) -> ConfError {
        if error.span.is_none() && self.text.is_none() && !path(&self.file).exists() {
            error.hint("-c FILE says where the configuration is; \"tailwater serve\" needs none")
        } else {
            error
        }
    }

    fn read(&self, files: &dyn ConfFiles, tree: &mut Tree) -> Result<(), ConfError> {
        let conf_prefix = self.conf_prefix();
        let reader =
            Reader::new(files, conf_prefix).between(config_thread::yield_if_due).built_in(built_in::FILES);
        if let Some(globals) = &self.globals {
            reader.command_line(tree, globals)?;
        }
        match &self.text {
            Some(text) => reader.text(tree, &self.file, text),
            None => reader.file(tree, &self.file),
        }
    }

    /// The pid file, of a configuration that may be wrong: as it is written before what cannot be read.
    pub fn pid_file(&self) -> PathBuf {
        let mut tree = Tree::default();
        // Mistakes have been reported already.
        let _ = self.read(&SystemFiles, &mut tree);
        let written_word =
            tree.nodes.iter().find(|node| node.name.is("pid")).and_then(|node| node.args.first());
        let name = written_word.map_or(DEFAULT_PID.as_bytes(), |word| &word.bytes);
        path(&tw_conf::full_name(&self.prefix, name)).to_owned()
    }

    fn prefixes(&self) -> Prefixes {
        Prefixes {
            prefix: self.prefix.clone(),
            conf: self.conf_prefix().to_vec(),
            error_log: self.error_log.clone(),
            hostname: rustix::system::uname().nodename().to_bytes().to_ascii_lowercase(),
        }
    }

    /// The directory of the main file, with its slash.
    fn conf_prefix(&self) -> &[u8] {
        let end = self.file.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        &self.file[..end]
    }
}

impl Loaded {
    /// Position of the first use of a directive in the main context.
    pub fn span(&self, directive: &str) -> Option<Span> {
        self.tree.nodes.iter().find(|node| node.name.is(directive)).map(|node| node.span)
    }

    /// Looks for directories of caches that something else uses, too, and says so. `None` means it cannot be used.
    pub fn check_directories(&self, console: &Console) -> Option<()> {
        let checked = directories::check(self.config.directories(), self.sources());
        checked.inspect_err(|error| console.conf(error, self.sources())).ok()
    }

    /// The place of a directive of the main context as the end of a message; empty if it is not written.
    pub fn place_of(&self, directive: &str) -> String {
        self.span(directive).map(|span| self.sources().tail(span)).unwrap_or_default()
    }

    /// The texts it was read from.
    pub fn sources(&self) -> &Sources {
        &self.tree.sources
    }
}

/// Reports the mistakes after the first one: missing files as a list with the first if there are several, the others
/// one by one.
fn report_more_errors(first: &ConfError, more: &[&ConfError], sources: &Sources, console: &Console) {
    let mut said = HashSet::from([&*first.message]);
    let others = more.iter().filter(|mistake| mistake.missing.is_none());
    for mistake in others.clone().take(MAX_SAID) {
        match said.insert(&mistake.message) {
            true => console.conf(mistake, sources),
            // A hint helps once.
            false => console.report(tw_log::Level::Emerg, format_args!("{}", mistake.line(sources))),
        }
    }
    match others.count().saturating_sub(MAX_SAID) {
        0 => {}
        1 => console.report(tw_log::Level::Emerg, format_args!("and 1 more mistake")),
        more => console.report(tw_log::Level::Emerg, format_args!("and {more} more mistakes")),
    }
    let list = MissingList::new(std::iter::once(first).chain(more.iter().copied()), sources);
    if list.count() > 1 {
        let message = format!("in all, {} are not supported by this version of Tailwater", list.summary());
        console.list(&message, format_args!("{list}"));
    } else if first.missing.is_none()
        && let Some(only) = more.iter().find(|mistake| mistake.missing.is_some())
    {
        console.conf(only, sources);
    }
}

fn slashed(mut prefix: Vec<u8>) -> Vec<u8> {
    if !prefix.is_empty() && !prefix.ends_with(b"/") {
        prefix.push(b'/');
    }
    prefix
}
