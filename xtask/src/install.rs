//! `cargo xtask install --prefix DIRECTORY`: everything of an installation from source that `cargo install` leaves out:
//! configuration, unit, manual page, completions. An existing configuration is kept.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::dist::files::{Content, Entry, Role};
use crate::dist::layout::{Layout, Parts, Tools};
use crate::{Failure, notices};

pub(crate) const USAGE: &str = "usage: cargo xtask install --prefix DIRECTORY [OPTIONS]
--prefix DIRECTORY   for example /usr/local
--binary FILE        install this binary as well, as PREFIX/bin/tailwater, with the programs that are beside it:
                     tailwater-top, tailwater-slowdisk, tailwater-ingress
--destdir DIRECTORY  put everything below this directory, for packages";

/// Options of the command line.
#[derive(Debug, Default)]
struct Options {
    prefix: String,
    binary: Option<PathBuf>,
    destination: PathBuf,
}

/// Installs.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::parse(arguments)?;
    let (program, tools) = match &options.binary {
        Some(path) => {
            let program = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
            (Some(program), Tools::beside(path)?)
        }
        None => (None, Tools::default()),
    };
    let parts = Parts { program, tools, notices: notices::text()?, sbom: String::new() };
    let layout = Layout::Local { prefix: options.prefix };
    for (path, entry) in layout.files(&parts)?.iter() {
        let to = options.destination.join(path);
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

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self { destination: "/".into(), ..Self::default() };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--prefix" => options.prefix = value()?.trim_end_matches('/').to_owned(),
                "--binary" => options.binary = Some(value()?.into()),
                "--destdir" => options.destination = value()?.into(),
                _ => return Err(format!("unknown option {word}\n\n{USAGE}")),
            }
        }
        if !options.prefix.starts_with('/') {
            return Err(format!("--prefix: an absolute path is needed\n\n{USAGE}"));
        }
        Ok(options)
    }
}

/// Outcome for one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Written,
    /// The file was there already.
    Kept,
}

/// Writes an entry, unless it is a configuration that is there.
fn write(to: &Path, entry: &Entry) -> std::io::Result<Outcome> {
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
            dir.path().display().to_string(),
            "--binary".to_owned(),
            program.display().to_string(),
        ]);
        for name in ["tailwater-top", "tailwater-slowdisk", "tailwater-ingress"] {
            dir.write(name, "#!/bin/sh\n").unwrap();
        }
        run(&words).unwrap();
        let conf = dir.join("usr/local/tailwater/conf/nginx.conf");
        let unit = dir.join("usr/local/lib/systemd/system/tailwater.service");
        assert!(fs::read_to_string(&unit).unwrap().contains("ExecStart=/usr/local/bin/tailwater -p "));
        assert_eq!(
            fs::metadata(dir.join("usr/local/bin/tailwater")).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert!(dir.join("usr/local/bin/tailwater-top").is_file());
        assert!(dir.join("usr/local/bin/tailwater-slowdisk").is_file());
        assert!(dir.join("usr/local/bin/tailwater-ingress").is_file());
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
    }
}
