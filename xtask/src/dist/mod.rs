//! `cargo xtask dist`: what people install. A binary optimised with a profile, and archive, packages and image of it,
//! the same bytes for the same binary and commit.

mod build;
mod check;
mod compress;
mod deb;
mod elf;
pub(crate) mod files;
mod image;
pub(crate) mod layout;
mod rpm;
mod sbom;
mod tar;
mod training;
mod zig;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use self::build::{Compiler, Profile, Program};
use self::check::Checked;
use self::compress::{Effort, sha256};
use self::elf::Needs;
use self::layout::{Layout, Parts, Tools};
use crate::{Failure, ci, notices, root, target};

/// Oldest glibc that binaries should need: that of Debian 11 and Ubuntu 20.04.
const GLIBC_WANTED: (u32, u32) = (2, 31);

pub(crate) const USAGE: &str = "usage: cargo xtask dist [OPTIONS]
--target TRIPLE   target, may stand several times     the host, with glibc
--glibc VERSION   oldest glibc that it shall run with  the one of this system (others need zig)
--plain           without profile-guided optimisation
--profile FILE    an existing profile instead of a training run
--binary FILE     pack this binary of the one target, with the programs that are beside it: tailwater-scripts,
                  tailwater-top, tailwater-slowdisk, tailwater-ingress
--maintainer TEXT name and address in packages        The Tailwater authors";

/// Options of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    targets: Vec<String>,
    glibc: Option<String>,
    plain: bool,
    profile: Option<PathBuf>,
    binary: Option<PathBuf>,
    maintainer: Option<String>,
}

/// Everything that goes into artifacts of one target.
#[derive(Debug)]
struct Product {
    version: String,
    target: String,
    /// Time of all files, in seconds since 1970.
    epoch: u64,
    maintainer: String,
    parts: Parts,
    needs: Needs,
}

/// Kind of an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Archive,
    Deb,
    Rpm,
    Image,
    IngressImage,
}

/// A finished file.
#[derive(Debug)]
struct Artifact {
    kind: Kind,
    path: PathBuf,
}

/// Builds, packs and checks.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let options = Options::parse(arguments)?;
    let compiler = Compiler::ask()?;
    let targets =
        if options.targets.is_empty() { vec![compiler.host.clone()] } else { options.targets.clone() };
    if options.binary.is_some() && targets.len() > 1 {
        return Err("--binary: one binary has one target".to_owned());
    }
    let out = target().join("dist");
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut left_out = Vec::new();
    for triple in &targets {
        if options.binary.is_none()
            && *triple != compiler.host
            && let Some(missing) = ci::missing(triple, options.glibc.is_some())?
        {
            left_out.push(format!("{triple}: not installed: {missing}"));
            continue;
        }
        let binary = options.build(&compiler, triple, &mut left_out)?;
        let tools = match &options.binary {
            Some(binary) => Tools::beside(binary)?,
            None => Tools::build(&compiler, options.target(triple))?,
        };
        let product = Product::new(&binary, tools, triple, options.maintainer.as_deref())?;
        product.tell_needs();
        let runs_here = triple.split('-').next() == compiler.host.split('-').next();
        for artifact in product.pack(&out, Effort::Best, &mut left_out)? {
            let name = artifact.name();
            let size = fs::metadata(&artifact.path).map_or(0, |file| file.len());
            println!("dist: {name}: {:.1} MB", size as f64 / 1e6);
            match check::artifact(&artifact, runs_here).map_err(|error| format!("{name}: {error}"))? {
                Checked::Served(tools) => println!("dist: {name}: unpacked by {tools}, and serves"),
                Checked::LeftOut(reason) => left_out.push(format!("check of {name}: {reason}")),
            }
        }
    }
    write_sums(&out)?;
    left_out.iter().for_each(|line| println!("dist: left out: {line}"));
    println!("dist: {}", out.display());
    Ok(())
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--plain" => options.plain = true,
                "--target" => options.targets.push(value()?),
                "--glibc" => options.glibc = Some(value()?),
                "--profile" => options.profile = Some(value()?.into()),
                "--binary" => options.binary = Some(value()?.into()),
                "--maintainer" => options.maintainer = Some(value()?),
                _ => return Err(format!("unknown option {word}\n\n{USAGE}")),
            }
        }
        Ok(options)
    }

    /// Builds the binary for a target, unless one is given.
    fn build(
        &self,
        compiler: &Compiler,
        triple: &str,
        left_out: &mut Vec<String>,
    ) -> Result<PathBuf, Failure> {
        if let Some(binary) = &self.binary {
            return Ok(binary.clone());
        }
        let profile = match (&self.profile, self.plain) {
            (_, true) => Profile::None,
            (Some(path), false) => Profile::File(path.clone()),
            (None, false) => match compiler.no_profile(triple) {
                Some(reason) => {
                    left_out.push(format!("profile for {triple}: {reason}"));
                    Profile::None
                }
                None => Profile::New,
            },
        };
        build::binary(compiler, self.target(triple), &profile)
    }

    fn target<'a>(&'a self, triple: &'a str) -> build::Target<'a> {
        build::Target { triple, glibc: self.glibc.as_deref() }
    }
}

impl Product {
    fn new(binary: &Path, tools: Tools, triple: &str, maintainer: Option<&str>) -> Result<Self, Failure> {
        let program = read(binary)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let epoch = epoch()?;
        let mut needs = Needs::of(&program)?;
        for tool in tools.scripts.iter().chain(&tools.top).chain(&tools.slowdisk).chain(&tools.ingress) {
            needs = needs.and(Needs::of(tool)?);
        }
        let notices = notices::text()?;
        let sbom = sbom::text(triple, &version, epoch)?;
        Ok(Self {
            version,
            target: triple.to_owned(),
            epoch,
            maintainer: maintainer.unwrap_or("The Tailwater authors").to_owned(),
            parts: Parts { program: Some(program), tools, notices, sbom },
            needs,
        })
    }

    /// Prints the size of the binary and the libraries that it needs.
    fn tell_needs(&self) {
        let size = self.parts.program.as_ref().map_or(0, Vec::len) as f64 / 1e6;
        match self.needs.glibc() {
            None => println!("dist: binary for {}: {size:.1} MB, static", self.target),
            Some((major, minor)) => {
                println!("dist: binary for {}: {size:.1} MB, needs glibc {major}.{minor}", self.target);
                if (major, minor) > GLIBC_WANTED {
                    let (major, minor) = GLIBC_WANTED;
                    println!(
                        "dist: that is newer than {major}.{minor}: build on an older system, or for musl"
                    );
                }
            }
        }
    }

    /// Writes all artifacts that the target has.
    fn pack(&self, out: &Path, effort: Effort, left_out: &mut Vec<String>) -> Result<Vec<Artifact>, Failure> {
        let version = &self.version;
        let triple = &self.target;
        let mut all = Vec::new();
        let mut write = |kind: Kind, name: String, bytes: Vec<u8>| -> Result<(), Failure> {
            let path = out.join(name);
            fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
            all.push(Artifact { kind, path });
            Ok(())
        };
        write(Kind::Archive, format!("tailwater-{version}-{triple}.tar.zst"), self.archive(effort)?)?;
        match deb::architecture(triple) {
            Some(name) => {
                let file = format!("tailwater_{version}-{}_{name}.deb", deb::REVISION);
                write(Kind::Deb, file, deb::package(self, name, effort)?)?;
            }
            None => left_out.push(format!("packages for {triple}: those are made with glibc")),
        }
        if let Some(architecture) = rpm::architecture(triple) {
            let file = format!("tailwater-{version}-{}.{}.rpm", rpm::RELEASE, architecture.name);
            write(Kind::Rpm, file, rpm::package(self, architecture, effort)?)?;
        }
        match image::architecture(triple) {
            Some(name) if self.needs.is_static() => {
                let file = format!("tailwater-{version}-{name}.oci.tar");
                write(Kind::Image, file, image::server(&self.parts)?.write(self, name, effort)?)?;
                if let Some(image) = image::ingress(&self.parts)? {
                    let file = format!("tailwater-ingress-{version}-{name}.oci.tar");
                    write(Kind::IngressImage, file, image.write(self, name, effort)?)?;
                }
            }
            _ => {
                let static_target = triple.replace("-gnu", "-musl");
                left_out.push(format!(
                    "images of {triple}: only static binaries run in them: --target {static_target}"
                ));
            }
        }
        Ok(all)
    }

    fn archive(&self, effort: Effort) -> Result<Vec<u8>, Failure> {
        let files = Layout::Archive.files(&self.parts)?;
        let top = format!("tailwater-{}-{}", self.version, self.target);
        effort.zstd(&tar::write(&files, &top, self.epoch)?)
    }
}

impl Artifact {
    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Name of an archive without its endings.
    fn stem(&self) -> String {
        self.name().trim_end_matches(".tar.zst").to_owned()
    }
}

const SCRIPTS: Program = Program { package: "tailwater-scripts", name: "tailwater-scripts" };
const TOP: Program = Program { package: "tailwater-top", name: "tailwater-top" };
const INGRESS: Program = Program { package: "tailwater-ingress", name: "tailwater-ingress" };
const SLOWDISK: Program = Program { package: "tw-slowdisk", name: "tailwater-slowdisk" };

/// Every program, the server first.
pub(crate) const PROGRAMS: [Program; 5] = [build::SERVER, SCRIPTS, TOP, INGRESS, SLOWDISK];

impl Tools {
    /// Programs in the directory of the server's binary.
    pub(crate) fn beside(binary: &Path) -> Result<Self, Failure> {
        let find = |program: Program| {
            let path = binary.with_file_name(program.name);
            if path.is_file() { read(&path).map(Some) } else { Ok(None) }
        };
        Ok(Self {
            scripts: find(SCRIPTS)?,
            top: find(TOP)?,
            slowdisk: find(SLOWDISK)?,
            ingress: find(INGRESS)?,
        })
    }

    fn build(compiler: &Compiler, target: build::Target<'_>) -> Result<Self, Failure> {
        let [scripts, top, slowdisk, ingress] =
            build::tools(compiler, target, [SCRIPTS, TOP, SLOWDISK, INGRESS])?;
        Ok(Self {
            scripts: Some(read(&scripts)?),
            top: Some(read(&top)?),
            slowdisk: Some(read(&slowdisk)?),
            ingress: Some(read(&ingress)?),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes the digests of all artifacts in the directory, those of earlier runs included.
fn write_sums(out: &Path) -> Result<(), Failure> {
    const NAME: &str = "SHA256SUMS";
    let entries = fs::read_dir(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut names: Vec<_> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != NAME);
    names.sort();
    let mut text = String::new();
    for name in names {
        let bytes = fs::read(out.join(&name)).map_err(|error| format!("{name}: {error}"))?;
        text += &format!("{}  {name}\n", sha256(&bytes));
    }
    fs::write(out.join(NAME), text).map_err(|error| format!("{NAME}: {error}"))
}

/// Time of the last commit in seconds since 1970, unless `SOURCE_DATE_EPOCH` says otherwise.
fn epoch() -> Result<u64, Failure> {
    if let Ok(given) = env::var("SOURCE_DATE_EPOCH") {
        return given.parse().map_err(|error| format!("SOURCE_DATE_EPOCH: {error}"));
    }
    let output = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| "no commit tells the time of the files: set SOURCE_DATE_EPOCH".to_owned())
}

/// Time as packages store it.
fn tar_time(epoch: u64) -> Result<u32, Failure> {
    u32::try_from(epoch).map_err(|error| format!("SOURCE_DATE_EPOCH: {error}"))
}

/// Time in the form of RFC 3339.
fn utc(epoch: u64) -> String {
    let days = epoch / 86_400;
    let second = epoch % 86_400;
    // Years begin in March here, so that a leap day is the last of its year; eras of 400 years have the same length.
    let days = days + 719_468;
    let era = days / 146_097;
    let day = days % 146_097;
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year;
    let year = year + u64::from(month <= 2);
    let hour = second / 3600;
    let minute = second / 60 % 60;
    let second = second % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The binary that tests of this workspace have built; leaves the test out if there is none.
#[cfg(test)]
fn test_binary() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let binary = program.parent()?.parent()?.join("tailwater");
    if !binary.is_file() {
        let why = "tailwater is not built: cargo build";
        tw_testkit::leave_out(tw_testkit::Lacks::Run, why);
        return None;
    }
    Some(binary)
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    /// Product for a target with a program that is not the server.
    fn product(triple: &str) -> Product {
        Product {
            version: "1.2.3".to_owned(),
            target: triple.to_owned(),
            epoch: 1_700_000_000,
            maintainer: "a <a@example.com>".to_owned(),
            parts: Parts {
                program: Some(b"program".repeat(1000)),
                tools: Tools {
                    scripts: Some(b"scripts".repeat(1000)),
                    top: Some(b"top".repeat(1000)),
                    slowdisk: Some(b"slowdisk".repeat(1000)),
                    ingress: Some(b"ingress".repeat(1000)),
                },
                notices: "notices\n".to_owned(),
                sbom: "{}\n".to_owned(),
            },
            needs: Needs::default(),
        }
    }

    #[test]
    fn two_packings_are_equal_byte_by_byte() {
        let one = TempDir::new("one").unwrap();
        let other = TempDir::new("other").unwrap();
        let mut names = Vec::new();
        for triple in ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl"] {
            for (directory, product) in [(&one, product(triple)), (&other, product(triple))] {
                for artifact in product.pack(directory.path(), Effort::Best, &mut Vec::new()).unwrap() {
                    names.push(artifact.name());
                }
            }
        }
        write_sums(one.path()).unwrap();
        write_sums(other.path()).unwrap();
        names.sort();
        names.dedup();
        assert_eq!(
            names,
            [
                "tailwater-1.2.3-1.x86_64.rpm",
                "tailwater-1.2.3-amd64.oci.tar",
                "tailwater-1.2.3-x86_64-unknown-linux-gnu.tar.zst",
                "tailwater-1.2.3-x86_64-unknown-linux-musl.tar.zst",
                "tailwater-ingress-1.2.3-amd64.oci.tar",
                "tailwater_1.2.3-1_amd64.deb",
            ]
        );
        for name in names.iter().map(String::as_str).chain(["SHA256SUMS"]) {
            assert!(fs::read(one.join(name)).unwrap() == fs::read(other.join(name)).unwrap(), "{name}");
        }
    }

    #[test]
    fn every_artifact_is_installed_and_serves() {
        let Some(binary) = test_binary() else { return };
        let out = TempDir::new("dist").unwrap();
        let mut product = product(&Compiler::ask().unwrap().host);
        product.parts.program = Some(fs::read(binary).unwrap());
        let mut left_out = Vec::new();
        let artifacts = product.pack(out.path(), Effort::Least, &mut left_out).unwrap();
        left_out.iter().for_each(|line| tw_testkit::leave_out(tw_testkit::Lacks::Run, line));
        for artifact in artifacts {
            match check::artifact(&artifact, true).unwrap_or_else(|error| panic!("{artifact:?}: {error}")) {
                Checked::Served(_) => {}
                Checked::LeftOut(reason) => {
                    let why = format!("check of {}: {reason}", artifact.name());
                    tw_testkit::leave_out(tw_testkit::Lacks::Machine, why);
                }
            }
        }
    }

    #[test]
    fn times_are_written_in_utc() {
        for (epoch, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_684_619, "2026-11-26T09:16:59Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
        ] {
            assert_eq!(utc(epoch), expected);
        }
    }

    #[test]
    fn unknown_options_are_refused() {
        let parse =
            |words: &[&str]| Options::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let options = parse(&["--plain", "--target", "a", "--target", "b"]).unwrap();
        assert!(options.plain && options.targets == ["a", "b"]);
        assert!(parse(&["--bogus"]).is_err() && parse(&["--target"]).is_err());
    }
}
