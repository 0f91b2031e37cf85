//! `cargo xtask install --prefix DIRECTORY`: an installation from source. All programs are built at once, and installed with
//! configuration, unit, manual pages and completions. An existing configuration is kept.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::{env, io};

use rustix::fs::{Access, access};

use crate::dist::PROGRAMS;
use crate::dist::files::{Content, Entry, Role};
use crate::dist::layout::{Layout, Parts, Tools};
use crate::{Failure, cargo, notices, root, target};

pub(crate) const USAGE: &str = "usage: cargo xtask install --prefix DIRECTORY [OPTIONS]
--prefix DIRECTORY   for example /usr/local
--binary FILE        install this binary instead of building, as PREFIX/bin/tailwater, with the programs that are beside it:
                     tailwater-scripts, tailwater-top, tailwater-slowdisk, tailwater-ingress
--without-programs   only configuration, unit, manual pages and completions
--destdir DIRECTORY  put everything below this directory, for packages";

/// Prefix that a plain build expects.
const USUAL_PREFIX: &str = "/usr/local";

/// File beside a built program with the licences of the dependencies.
const NOTICES: &str = "THIRD-PARTY";

/// Options of the command line.
#[derive(Debug, Default)]
struct Options {
    prefix: String,
    binary: Option<PathBuf>,
    without_programs: bool,
    destination: PathBuf,
}

/// Builds and installs.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::parse(arguments)?;
    let layout = Layout::Local { prefix: options.prefix.clone() };
    let parts = match &options.binary {
        _ if options.without_programs => Parts { notices: notices::text()?, ..Parts::default() },
        Some(path) => parts(path)?,
        None => {
            let program = build(&layout)?;
            options.check_access(&program)?;
            parts(&program)?
        }
    };
    let destination = &options.destination;
    fs::create_dir_all(destination).map_err(|error| format!("{}: {error}", destination.display()))?;
    for (path, entry) in layout.files(&parts)?.iter() {
        let to = destination.join(path);
        let outcome = write(&to, entry).map_err(|error| format!("{}: {error}", to.display()))?;
        match (outcome, &entry.content) {
            (Outcome::Kept, Content::File(_) | Content::Link(_)) => println!("kept      {}", to.display()),
            (Outcome::Written, Content::File(_) | Content::Link(_)) => println!("installed {}", to.display()),
            (_, Content::Directory) => {}
        }
    }
    let users = format!("{}/lib/sysusers.d/tailwater.conf", layout.prefix());
    println!("to start the service: systemd-sysusers {users}; systemctl enable --now tailwater");
    Ok(())
}

/// Builds all programs with one command, so that what they share is compiled once. Returns the path of the server.
fn build(layout: &Layout) -> Result<PathBuf, Failure> {
    let mut command = cargo();
    command.args(["build", "--release", "--locked"]).current_dir(root());
    command.args(PROGRAMS.iter().flat_map(|program| ["-p", program.package]));
    if layout.prefix() != USUAL_PREFIX {
        // The server looks there for its configuration without -p.
        command.env("TAILWATER_PREFIX", format!("{}/tailwater/", layout.prefix()));
    }
    println!("install: builds {} programs, which takes 8 to 19 minutes on two cores", PROGRAMS.len());
    let status = command.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err(format!("cargo build: {status}"));
    }
    let directory = target().join("release");
    // Another user who installs may have no cargo.
    let file = directory.join(NOTICES);
    fs::write(&file, notices::text()?).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(directory.join("tailwater"))
}

/// A built server, the programs beside it, and the licences.
fn parts(path: &Path) -> Result<Parts, Failure> {
    let program = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let notices = match fs::read_to_string(path.with_file_name(NOTICES)) {
        Ok(text) => text,
        Err(_) => notices::text()?,
    };
    Ok(Parts { program: Some(program), tools: Tools::beside(path)?, notices, sbom: String::new() })
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self { destination: "/".into(), ..Self::default() };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--prefix" => options.prefix = value()?.trim_end_matches('/').to_owned(),
                "--binary" => options.binary = Some(value()?.into()),
                "--without-programs" => options.without_programs = true,
                "--destdir" => options.destination = value()?.into(),
                _ => return Err(format!("unknown option {word}\n\n{USAGE}")),
            }
        }
        if !options.prefix.starts_with('/') {
            return Err(format!("--prefix: an absolute path is needed\n\n{USAGE}"));
        }
        if options.binary.is_some() && options.without_programs {
            return Err("--binary and --without-programs exclude each other".to_owned());
        }
        Ok(options)
    }

    /// Prefix below `--destdir`.
    fn directory(&self) -> PathBuf {
        self.destination.join(self.prefix.trim_start_matches('/'))
    }

    /// Returns an error with the command for root, if this user may not write there: root need not build, and often has no compiler.
    fn check_access(&self, program: &Path) -> Result<(), Failure> {
        let directory = self.directory();
        if is_writable(&directory) {
            return Ok(());
        }
        let tool = env::current_exe().map_or_else(|_| "xtask".to_owned(), |path| path.display().to_string());
        let mut command =
            format!("sudo {tool} install --prefix {} --binary {}", self.prefix, program.display());
        if self.destination != Path::new("/") {
            command += &format!(" --destdir {}", self.destination.display());
        }
        Err(format!(
            "{}: not writable. Everything is built; this installs it:\n\n{command}",
            directory.display()
        ))
    }
}

/// Returns `true` if this user may write into a directory, or may create it.
fn is_writable(directory: &Path) -> bool {
    let existing = directory.ancestors().find(|path| path.exists());
    existing.is_some_and(|path| path.is_dir() && access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok())
}

/// Outcome for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Written,
    /// The file was there already.
    Kept,
}

/// Writes an entry, unless it is a configuration that is there.
fn write(to: &Path, entry: &Entry) -> io::Result<Outcome> {
    let is_there = to.symlink_metadata().is_ok();
    if is_there && (entry.role == Role::Configuration || entry.content == Content::Directory) {
        return Ok(Outcome::Kept);
    }
    match &entry.content {
        Content::Directory => fs::create_dir(to)?,
        Content::Link(target) => symlink(target, to)?,
        Content::File(bytes) => {
            // The file of a program that runs cannot be written to, but replaced.
            let mut next = to.as_os_str().to_owned();
            next.push(".new");
            fs::write(&next, bytes)?;
            fs::set_permissions(&next, Permissions::from_mode(entry.mode))?;
            fs::rename(&next, to)?;
        }
    }
    Ok(Outcome::Written)
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn a_second_installation_keeps_the_configuration() {
        let dir = TempDir::new("install").unwrap();
        let program = dir.write("program", "#!/bin/sh\n").unwrap();
        let words = ["--prefix", "/usr/local/", "--destdir"].map(str::to_owned);
        let mut words = words.to_vec();
        words.extend([
            dir.join("root").display().to_string(),
            "--binary".to_owned(),
            program.display().to_string(),
        ]);
        for name in ["tailwater-scripts", "tailwater-top", "tailwater-slowdisk", "tailwater-ingress"] {
            dir.write(name, "#!/bin/sh\n").unwrap();
        }
        run(&words).unwrap();
        let conf = dir.join("root/usr/local/tailwater/conf/nginx.conf");
        let unit = dir.join("root/usr/local/lib/systemd/system/tailwater.service");
        assert!(fs::read_to_string(&unit).unwrap().contains("ExecStart=/usr/local/bin/tailwater -p "));
        assert_eq!(
            fs::metadata(dir.join("root/usr/local/bin/tailwater")).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert!(dir.join("root/usr/local/bin/tailwater-scripts").is_file());
        assert!(dir.join("root/usr/local/bin/tailwater-top").is_file());
        assert!(dir.join("root/usr/local/bin/tailwater-slowdisk").is_file());
        assert!(dir.join("root/usr/local/bin/tailwater-ingress").is_file());
        fs::write(&conf, "changed").unwrap();
        fs::write(&unit, "changed").unwrap();
        run(&words).unwrap();
        assert_eq!(fs::read_to_string(&conf).unwrap(), "changed");
        assert_ne!(fs::read_to_string(&unit).unwrap(), "changed");
    }

    #[test]
    fn a_relative_prefix_is_refused() {
        let parse =
            |words: &[&str]| Options::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert!(parse(&[]).is_err() && parse(&["--prefix", "usr"]).is_err() && parse(&["--prefix"]).is_err());
        assert_eq!(parse(&["--prefix", "/opt/tw/"]).unwrap().prefix, "/opt/tw");
        assert!(parse(&["--prefix", "/opt", "--binary", "a", "--without-programs"]).is_err());
    }

    #[test]
    fn notices_beside_the_binary_need_no_cargo() {
        let dir = TempDir::new("install-notices").unwrap();
        let program = dir.write("tailwater", "#!/bin/sh\n").unwrap();
        dir.write(NOTICES, "licences").unwrap();
        assert_eq!(parts(&program).unwrap().notices, "licences");
    }

    #[test]
    fn directory_that_may_be_made_is_writable() {
        let dir = TempDir::new("install-writable").unwrap();
        assert!(is_writable(dir.path()) && is_writable(&dir.join("usr/local")));
        let file = dir.write("file", "").unwrap();
        assert!(!is_writable(&file.join("usr/local")));
    }

    #[test]
    fn root_gets_the_command_that_installs() {
        let dir = TempDir::new("install-root").unwrap();
        let prefix = dir.write("file", "").unwrap().display().to_string();
        let options = Options { prefix: prefix.clone(), destination: "/".into(), ..Options::default() };
        let text = options.check_access(Path::new("/a/tailwater")).unwrap_err();
        assert!(text.ends_with(&format!(" install --prefix {prefix} --binary /a/tailwater")), "{text}");
    }

    #[test]
    fn manifests_have_the_programs() {
        for program in PROGRAMS {
            let path = root().join("crates").join(program.package).join("Cargo.toml");
            let text = fs::read_to_string(&path).unwrap();
            let is_named = [program.package, program.name]
                .iter()
                .all(|name| text.contains(&format!("name = \"{name}\"")));
            assert!(is_named, "{}", path.display());
        }
    }
}
