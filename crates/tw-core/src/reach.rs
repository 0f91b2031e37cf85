//! Files and connections that requests make the process open: the input of its sandbox.
//!
//! Modules declare them in `Settings::reach`, one call for each path. Nothing is looked up here: a path is kept as
//! written. Of a path with variables the directory before the first variable counts.

use std::collections::HashSet;
use std::path::PathBuf;

use tw_conf::{ConfError, Diagnostics, Span};

use crate::process::Sandbox;
use crate::vars::Template;

/// Paths and connections that requests need, each once.
#[derive(Debug, Default)]
pub struct Reach {
    places: Vec<PathAccess>,
    known_places: HashSet<(Access, Box<[u8]>)>,
    /// Paths that begin with a variable, which may lead anywhere: what is done there, and where the first one is written.
    unknown: Vec<(Access, Option<Span>)>,
    resolves: bool,
    connects: bool,
    binds: Option<BindsTo>,
}

/// Local addresses of connections to other servers, if the configuration names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BindsTo {
    /// Addresses of this machine.
    Own,
    /// Any, a client's too (`transparent`).
    Any,
}

/// Directory with the access that is needed below it, or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathAccess {
    /// The path, relative to nothing.
    pub path: Box<[u8]>,
    /// Access that is needed.
    pub access: Access,
}

/// Kind of access below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Files are read, and directories listed.
    Read,
    /// Files are created and written to, as logs are.
    Append,
    /// Files and directories are read, created, changed, renamed and removed.
    Change,
}

impl Reach {
    /// Files at or below `path` are read.
    pub fn reads<S: 'static>(&mut self, path: &Template<S>, at: Option<Span>) {
        self.add(Access::Read, path, at);
    }

    /// The file `path` is read. Others in its directory are, too, for all the sandbox knows: a file that is replaced is
    /// another one.
    pub fn reads_file<S: 'static>(&mut self, path: &Template<S>, at: Option<Span>) {
        self.add_directory(Access::Read, path.prefix(), at);
    }

    /// The file `path`, of which all is known, is read again after it was replaced.
    pub fn rereads_file(&mut self, path: &[u8]) {
        self.add_directory(Access::Read, path, None);
    }

    /// Files in the directory of `path` are written as logs are.
    pub fn appends<S: 'static>(&mut self, path: &Template<S>, at: Option<Span>) {
        self.add_directory(Access::Append, path.prefix(), at);
    }

    /// Files in `directory` are written as logs are.
    pub fn appends_in(&mut self, directory: &[u8]) {
        self.add_path(Access::Append, directory);
    }

    /// The file `path`, of which all is known, is replaced by one that is made beside it.
    pub fn replaces_file(&mut self, path: &[u8]) {
        self.add_directory(Access::Change, path, None);
    }

    /// Whatever is at or below `path` is changed.
    pub fn changes<S: 'static>(&mut self, path: &Template<S>, at: Option<Span>) {
        self.add(Access::Change, path, at);
    }

    /// Files at or below a directory, of which all is known, are used.
    pub fn uses_directory(&mut self, directory: &[u8], access: Access) {
        self.add_path(access, directory);
    }

    /// Names are resolved as the system does, which reads `files`. These are looked up at the first call, of perhaps one for
    /// each location.
    pub fn resolves_as_system(&mut self, files: impl FnOnce() -> Vec<PathBuf>) {
        if std::mem::replace(&mut self.resolves, true) {
            return;
        }
        for path in files() {
            self.add_directory(Access::Read, path.as_os_str().as_encoded_bytes(), None);
        }
    }

    /// Connections to other servers are opened.
    pub fn connects(&mut self) {
        self.connects = true;
    }

    /// Connections to other servers come from addresses that the configuration says.
    pub fn binds(&mut self, to: BindsTo) {
        self.binds = self.binds.max(Some(to));
    }

    /// Adds what another protocol reaches.
    pub fn join(&mut self, other: Self) {
        for place in other.places {
            if !self.places.contains(&place) {
                self.places.push(place);
            }
        }
        self.unknown.extend(other.unknown);
        self.connects |= other.connects;
        self.binds = self.binds.max(other.binds);
    }

    /// Paths in the order of declaration.
    pub fn places(&self) -> &[PathAccess] {
        &self.places
    }

    /// Returns true if connections to other servers are opened.
    pub fn does_connect(&self) -> bool {
        self.connects
    }

    /// Local addresses of such connections; `None` if the configuration names none.
    pub fn does_bind(&self) -> Option<BindsTo> {
        self.binds
    }

    /// Returns true if some path that is written to may lead anywhere.
    pub fn changes_anything(&self) -> bool {
        self.unknown.iter().any(|(access, _)| *access != Access::Read)
    }

    /// Refuses access that `sandbox` cannot confine, or warns of it.
    pub fn check(&self, sandbox: Sandbox, diagnostics: &mut Diagnostics) -> Result<(), ConfError> {
        let at = |error: ConfError, span: &Option<Span>| match span {
            Some(span) => error.at(*span),
            None => error,
        };
        match sandbox {
            Sandbox::Off => {}
            Sandbox::On => {
                if let Some((_, span)) = self.unknown.first() {
                    let error = ConfError::new(
                        "a path that begins with a variable cannot be used with \"sandbox on\"",
                    )
                    .hint("it has to begin with the directory that is not to be left: /srv/$host");
                    return Err(at(error, span));
                }
            }
            Sandbox::Auto => {
                if let Some((_, span)) = self.unknown.iter().find(|(access, _)| *access != Access::Read) {
                    let message = "\"sandbox\" does not restrict where files are changed, because this path may lead anywhere";
                    diagnostics.push(at(ConfError::warn(message), span));
                }
            }
        }
        Ok(())
    }

    fn add<S: 'static>(&mut self, access: Access, path: &Template<S>, at: Option<Span>) {
        match path.constant() {
            Some(path) => self.add_path(access, path),
            None => self.add_directory(access, path.prefix(), at),
        }
    }

    /// Adds the directory of `path`, which ends at its last slash.
    fn add_directory(&mut self, access: Access, path: &[u8], at: Option<Span>) {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => self.add_path(access, &path[..=slash]),
            None if self.unknown.iter().any(|(known_access, _)| *known_access == access) => {}
            None => self.unknown.push((access, at)),
        }
    }

    fn add_path(&mut self, access: Access, path: &[u8]) {
        let path = match path.strip_suffix(b"/") {
            Some(b"") | None => path,
            Some(path) => path,
        };
        // Most blocks repeat the paths of the enclosing block.
        if self.places.last().is_some_and(|last| last.access == access && *last.path == *path) {
            return;
        }
        if self.known_places.insert((access, path.into())) {
            self.places.push(PathAccess { path: path.into(), access });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plain;
    use crate::vars::VarTable;

    #[test]
    fn variables_end_the_known_path() {
        let shown = |text: &str, add_template: fn(&mut Reach, &Template<Plain>, Option<Span>)| {
            let mut reach = Reach::default();
            let path = Template::compile(text.as_bytes(), None, &mut VarTable::default()).unwrap();
            add_template(&mut reach, &path, None);
            add_template(&mut reach, &path, None);
            assert!(reach.places.len() + reach.unknown.len() == 1, "{text}: {reach:?}");
            reach.places.first().map(|place| String::from_utf8_lossy(&place.path).into_owned())
        };
        for (text, tree, file) in [
            ("/srv/www", Some("/srv/www"), Some("/srv")),
            ("/srv/www/", Some("/srv/www"), Some("/srv/www")),
            ("/srv/www-$a/x", Some("/srv"), Some("/srv")),
            ("/srv/$a", Some("/srv"), Some("/srv")),
            ("/$a", Some("/"), Some("/")),
            ("/", Some("/"), Some("/")),
            ("$a/b", None, None),
        ] {
            assert_eq!(shown(text, Reach::reads).as_deref(), tree, "{text}");
            assert_eq!(shown(text, Reach::changes).as_deref(), tree, "{text}");
            assert_eq!(shown(text, Reach::reads_file).as_deref(), file, "{text}");
            assert_eq!(shown(text, Reach::appends).as_deref(), file, "{text}");
        }
    }

    #[test]
    fn files_of_the_system_resolver_are_looked_up_once() {
        let mut reach = Reach::default();
        let mut looks = 0;
        for _ in 0..3 {
            reach.resolves_as_system(|| {
                looks += 1;
                vec!["/etc/resolv.conf".into(), "/run/dns/resolv.conf".into(), "/etc/hosts".into()]
            });
        }
        let places: Vec<_> = reach.places.iter().map(|place| &*place.path).collect();
        assert_eq!((looks, places), (1, vec![&b"/etc"[..], b"/run/dns"]));
    }

    #[test]
    fn unknown_paths_are_refused_or_reported() {
        let checked = |access, sandbox| {
            let mut reach = Reach::default();
            reach.add_directory(access, b"", None);
            let mut diagnostics = Diagnostics::default();
            let refused = reach.check(sandbox, &mut diagnostics).is_err();
            (refused, !diagnostics.is_empty(), reach.changes_anything())
        };
        for (access, sandbox, expected) in [
            (Access::Read, Sandbox::Off, (false, false, false)),
            (Access::Read, Sandbox::Auto, (false, false, false)),
            (Access::Read, Sandbox::On, (true, false, false)),
            (Access::Change, Sandbox::Off, (false, false, true)),
            (Access::Append, Sandbox::Auto, (false, true, true)),
            (Access::Change, Sandbox::Auto, (false, true, true)),
            (Access::Change, Sandbox::On, (true, false, true)),
        ] {
            assert_eq!(checked(access, sandbox), expected, "{access:?} {sandbox:?}");
        }
    }
}
