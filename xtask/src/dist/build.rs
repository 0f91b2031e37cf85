//! Release builds: plain, instrumented, and optimised with a profile.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{layout, training, zig};
use crate::{Failure, cargo, ci, root, target};

/// Directory below the target directory for builds and profiles.
const WORK: &str = "dist-work";

/// The compiler: its host and the version of its LLVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Compiler {
    pub(super) host: String,
    /// Major version of LLVM, whose profiles only tools of the same version read.
    llvm: u32,
    sysroot: PathBuf,
}

/// Profile of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Profile {
    /// Without one.
    None,
    /// An existing one.
    File(PathBuf),
    /// A new one, from a training run.
    New,
}

impl Compiler {
    /// Asks the compiler that cargo uses.
    pub(super) fn ask() -> Result<Self, Failure> {
        let verbose = rustc(&["-vV"])?;
        let field = |name: &str| {
            let line = verbose.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned()).ok_or_else(|| format!("rustc -vV has no {name}"))
        };
        let llvm = field("LLVM version:")?;
        Ok(Self {
            host: field("host:")?,
            llvm: major(&llvm).ok_or_else(|| format!("unknown version of LLVM {llvm}"))?,
            sysroot: rustc(&["--print", "sysroot"])?.trim().into(),
        })
    }

    /// Finds `llvm-profdata`: the one of rustup, or one on the path of the same version.
    fn profdata(&self) -> Option<PathBuf> {
        let own = self.sysroot.join(format!("lib/rustlib/{}/bin/llvm-profdata", self.host));
        let names = [own, format!("llvm-profdata-{}", self.llvm).into(), "llvm-profdata".into()];
        names.into_iter().find(|name| {
            let output = Command::new(name).arg("--version").output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let version = text.ok().and_then(|text| major(text.split("LLVM version ").nth(1)?));
            version == Some(self.llvm)
        })
    }

    /// Says why a profile cannot be made for a target; `None` if it can.
    pub(super) fn no_profile(&self, target: &str) -> Option<String> {
        let machine = |triple: &str| triple.split('-').next().map(str::to_owned);
        if self.profdata().is_none() {
            let llvm = self.llvm;
            Some(format!("no llvm-profdata of LLVM {llvm}: rustup component add llvm-tools"))
        } else if machine(target) != machine(&self.host) {
            Some(format!("programs for {target} do not run here"))
        } else {
            None
        }
    }

    /// Finds `objcopy`: the one of rustup, which knows every architecture, or the one of the system.
    fn objcopy(&self) -> Option<PathBuf> {
        let own = self.sysroot.join(format!("lib/rustlib/{}/bin/rust-objcopy", self.host));
        [own, "llvm-objcopy".into()].into_iter().find(|name| {
            Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
        })
    }

    /// Joins the profiles in a directory.
    fn merge(&self, directory: &Path, into: &Path) -> Result<(), Failure> {
        let tool = self.profdata().ok_or("no llvm-profdata")?;
        let mut command = Command::new(tool);
        command.arg("merge").arg("-o").arg(into).args(training::profiles(directory)?);
        run(&mut command)
    }
}

/// A target.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) triple: &'a str,
    /// Version of glibc whose symbols suffice, instead of that of this system.
    pub(super) glibc: Option<&'a str>,
}

/// Program of a package of the workspace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) package: &'static str,
    pub(crate) name: &'static str,
}

/// The server.
pub(super) const SERVER: Program = Program { package: "tailwater", name: "tailwater" };

/// Builds programs that no profile is made for, with one command, and returns their paths.
pub(super) fn tools<const N: usize>(
    compiler: &Compiler,
    target: Target<'_>,
    programs: [Program; N],
) -> Result<[PathBuf; N], Failure> {
    build(compiler, target, programs, "plain", &[])
}

/// Builds the server for a target and returns its path.
pub(super) fn binary(compiler: &Compiler, target: Target<'_>, profile: &Profile) -> Result<PathBuf, Failure> {
    let profile = match profile {
        Profile::None => None,
        Profile::File(path) => {
            let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
            Some(path)
        }
        Profile::New => Some(train(compiler, target.triple)?),
    };
    let [binary] = match profile {
        None => build(compiler, target, [SERVER], "plain", &[]),
        Some(path) => {
            build(compiler, target, [SERVER], "optimised", &[format!("-Cprofile-use={}", path.display())])
        }
    }?;
    Ok(binary)
}

/// Builds an instrumented binary, trains it, and returns the joined profile.
fn train(compiler: &Compiler, triple: &str) -> Result<PathBuf, Failure> {
    // The instrumented server runs here only.
    let instrumented = Target { triple, glibc: None };
    let [binary] = build(compiler, instrumented, [SERVER], INSTRUMENTED, &["-Cprofile-generate".to_owned()])?;
    let profiles = training::run(&binary, training::SPAN)?;
    // The profile fits this source only.
    let name = format!("{triple}-{}.profdata", commit().unwrap_or_else(|| "unknown".to_owned()));
    let profile = target().join(WORK).join(name);
    compiler.merge(profiles.path(), &profile)?;
    println!("dist: profile: {}", profile.display());
    Ok(profile)
}

const INSTRUMENTED: &str = "instrumented";

fn build<const N: usize>(
    compiler: &Compiler,
    Target { triple, glibc }: Target<'_>,
    programs: [Program; N],
    name: &str,
    flags: &[String],
) -> Result<[PathBuf; N], Failure> {
    let work = target().join(WORK);
    let directory = work.join(glibc.map_or_else(|| name.to_owned(), |glibc| format!("{name}-{glibc}")));
    let mut command = cargo();
    command
        .args(["build", "--locked", "--release", "--target", triple, "--target-dir"])
        .arg(&directory)
        .args(programs.iter().flat_map(|program| ["-p", program.package]))
        .current_dir(root());
    let mut all = flags.to_vec();
    let moved = moved_paths();
    all.extend(moved.iter().map(|(from, to)| format!("--remap-path-prefix={from}={to}")));
    let c_flags: Vec<_> = moved.iter().map(|(from, to)| format!("-ffile-prefix-map={from}={to}")).collect();
    command
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", all.join("\x1f"))
        .env("CFLAGS", c_flags.join(" "))
        .env("TAILWATER_PREFIX", layout::PREFIX)
        .env("TAILWATER_CONF", layout::CONFIGURATION);
    if name == INSTRUMENTED {
        // Commits do not make it stale.
        command.env("TAILWATER_COMMIT", "000000000000");
    }
    let own_linker = format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase().replace('-', "_"));
    if let Some(glibc) = glibc {
        let zig = zig::compiler(&work, triple, glibc)?;
        command.env(own_linker, &zig).env(format!("CC_{}", triple.replace('-', "_")), &zig);
    } else if let Some(linker) = ci::cross_linker(triple)
        && env::var_os(&own_linker).is_none()
    {
        command.env(own_linker, linker);
    }
    // zig removes all symbols when debug information is to be removed, and stacks need the names of functions. The
    // instrumented build is the same in this, because names of functions in a profile depend on it.
    let objcopy = compiler.objcopy();
    if objcopy.is_some() {
        command.env("CARGO_PROFILE_RELEASE_STRIP", "none");
    }
    let names = programs.map(|program| program.name);
    println!("dist: {name} build of {} for {triple}", names.join(", "));
    run(&mut command)?;
    let of_target = directory.join(triple);
    let built = names.map(|program| of_target.join("release").join(program));
    let Some(objcopy) = objcopy.filter(|_| name != INSTRUMENTED) else { return Ok(built) };
    let stripped = names.map(|program| of_target.join(program));
    for (built, to) in built.iter().zip(&stripped) {
        strip(&objcopy, built, to)?;
    }
    Ok(stripped)
}

/// Removes debug information, and the names of tables that no stack shows.
fn strip(objcopy: &Path, built: &Path, to: &Path) -> Result<(), Failure> {
    let mut command = Command::new(objcopy);
    command.args(["--strip-debug", "--wildcard", "--strip-symbol=GCC_except_table*"]).arg(built).arg(to);
    run(&mut command)
}

/// Short name of the last commit.
fn commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(root()).output();
    let text = String::from_utf8_lossy(&output.ok()?.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Directories of this machine, and their names in the binary.
fn moved_paths() -> Vec<(String, &'static str)> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let mut all = vec![(root().display().to_string(), "/tailwater")];
    all.extend(home.map(|home| (home.display().to_string(), "/cargo")));
    all
}

fn rustc(arguments: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.map_err(|error| format!("cannot run rustc: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let name = command.get_program().display().to_string();
    let status = command.status().map_err(|error| format!("cannot run {name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}

/// First number of a version.
fn major(version: &str) -> Option<u32> {
    version.trim().split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions_are_read() {
        for (text, expected) in [("22.1.2", Some(22)), (" 14.0.6-rust", Some(14)), ("", None), ("x.1", None)]
        {
            assert_eq!(major(text), expected, "{text}");
        }
    }

    #[test]
    fn profiles_are_made_only_where_the_program_runs() {
        let compiler = Compiler::ask().unwrap();
        assert!(compiler.no_profile("sparc64-unknown-linux-gnu").is_some());
        let alien = Compiler { llvm: 1, ..compiler.clone() };
        assert!(alien.no_profile(&compiler.host).unwrap().contains("llvm-tools"));
    }
}
