//! `tailwater fleet key|push|diff|rollout|rollback|follow`: configurations of a fleet. Each is a process of its own, so neither the server nor
//! its master reads what the engine sends, and none of it runs on a loop.

mod difference;
mod follow;
mod health;
mod metrics;
mod rollout;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use tw_conf::Origin;
use tw_core::shared_objects::SharedObjects;
use tw_fleet::{
    ConfigurationClient, ConfigurationReport, ConfigurationVersion, EngineError, FilesOfVersion, Fleet,
    FleetSettings, ReportState, SigningKey,
};

use crate::cli::{FleetCommand, FleetOptions, Options};
use crate::configuration::bytes_path::path;
use crate::configuration::conf::{Loaded, Source};
use crate::output::console::{Console, Fault};
use crate::output::stdout::write_out;
use crate::server::Server;

/// Keys of the store begin like this.
const VERSION: &str = "version.";
const ORDER: &str = "order.";
const REPORT: &str = "report.";

/// Runs a command.
pub fn run(server: &dyn Server, options: &FleetOptions) -> ExitCode {
    let console = Console::new();
    let done = match options.command {
        // The command line makes a command of its own of it.
        FleetCommand::Status => Ok(()),
        FleetCommand::Key => make_key(options),
        FleetCommand::Push => push(options, &console),
        FleetCommand::Diff => diff(options, &console),
        FleetCommand::Rollout => rollout::roll_out(options, &console),
        FleetCommand::Rollback => rollout::roll_back(options, &console),
        FleetCommand::Follow => follow::follow(server, options, &console),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            // A fault without a text was reported where it was found.
            if !fault.message.is_empty() {
                console.fault(&fault);
            }
            ExitCode::FAILURE
        }
    }
}

/// Fault that was reported already.
fn reported() -> Fault {
    Fault::emerg("")
}

fn failed(error: &EngineError) -> Fault {
    Fault::emerg(format!("the engine of the fleet: {error}"))
}

fn file_failed(call: &str, path: &Path, error: &io::Error) -> Fault {
    Fault::call(call, &path.display().to_string(), error)
}

/// Loads a configuration, and returns its only fleet, too.
fn load(main: &Options, console: &Console) -> Result<(Loaded, Arc<Fleet>), Fault> {
    let source = Source::new(main).for_command();
    let loaded = source.load(&SharedObjects::default(), console).ok_or_else(reported)?;
    let fleet = only_fleet(&loaded)?;
    Ok((loaded, fleet))
}

fn only_fleet(loaded: &Loaded) -> Result<Arc<Fleet>, Fault> {
    let objects = &loaded.config.shared_objects;
    match &*objects.of_type::<Fleet>() {
        [(name, _)] => objects.find::<Fleet>(name).ok_or_else(|| Fault::emerg("the fleet is gone")),
        [] => Err(Fault::emerg("the configuration has no \"fleet\"")),
        _ => Err(Fault::emerg(
            "the configuration has more than one \"fleet\", and configurations belong to one",
        )),
    }
}

fn connect(settings: &FleetSettings) -> Result<ConfigurationClient, Fault> {
    ConfigurationClient::new(settings).map_err(|error| failed(&error))
}

fn read_file(name: &[u8]) -> Result<String, Fault> {
    let file = path(name);
    fs::read_to_string(file).map_err(|error| file_failed("open()", file, &error))
}

fn signing_key(options: &FleetOptions) -> Result<SigningKey, Fault> {
    let name = options.key.as_deref().unwrap_or_default();
    let text = zeroize::Zeroizing::new(read_file(name)?);
    SigningKey::read(&text).map_err(|why| Fault::emerg(format!("\"{}\": {why}", path(name).display())))
}

fn make_key(options: &FleetOptions) -> Result<(), Fault> {
    let name = options.key.as_deref().unwrap_or_default();
    let (private, public) = SigningKey::generate().map_err(|why| Fault::emerg(why.to_string()))?;
    let write = |file: PathBuf, text: &str, mode: u32| {
        // A key in use is not overwritten.
        let opened = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&file);
        let result = opened.and_then(|mut opened| opened.write_all(text.as_bytes()));
        result.map_err(|error| file_failed("open()", &file, &error))
    };
    write(path(name).to_owned(), &private, 0o600)?;
    write(path(&[name, b".pub"].concat()).to_owned(), &public, 0o644)
}

/// Files of a configuration below the directory of its main file, the name of that, and the names of the others.
fn files(loaded: &Loaded, main: &Path) -> Result<(String, FilesOfVersion, Vec<String>), Fault> {
    let directory = main.parent().unwrap_or(Path::new(""));
    let mut files = FilesOfVersion::new();
    let mut others = Vec::new();
    for file in loaded.sources().iter() {
        let Origin::File(name) = &file.origin else { continue };
        let is_below =
            |relative: &&Path| relative.components().all(|part| matches!(part, Component::Normal(_)));
        match path(name).strip_prefix(directory).ok().filter(is_below).and_then(Path::to_str) {
            Some(relative) => drop(files.insert(relative.to_owned(), file.text.to_vec())),
            None => others.push(String::from_utf8_lossy(name).into_owned()),
        }
    }
    let name = main.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Fault::emerg("the name of the main file is no text"))?;
    Ok((name.to_owned(), files, others))
}

/// Versions in the store, by number, without a look at their signatures.
fn versions(client: &mut ConfigurationClient) -> Result<Vec<ConfigurationVersion>, Fault> {
    let entries = client.entries().map_err(|error| failed(&error))?;
    let read = |entry: &tw_fleet::Entry| {
        let number: u64 = entry.key.strip_prefix(VERSION)?.parse().ok()?;
        let version = ConfigurationVersion::unverified(entry.value.as_deref()?)?;
        (version.number == number).then_some(version)
    };
    let mut versions: Vec<_> = entries.iter().filter_map(read).collect();
    versions.sort_by_key(|version| version.number);
    Ok(versions)
}

fn reports(client: &mut ConfigurationClient) -> Result<Vec<ConfigurationReport>, Fault> {
    let entries = client.entries().map_err(|error| failed(&error))?;
    let read = |entry: &tw_fleet::Entry| {
        ConfigurationReport::decode(entry.key.strip_prefix(REPORT)?, entry.value.as_deref()?)
    };
    let mut reports: Vec<_> = entries.iter().filter_map(read).collect();
    reports.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(reports)
}

fn push(options: &FleetOptions, console: &Console) -> Result<(), Fault> {
    let key = signing_key(options)?;
    let (loaded, fleet) = load(&options.main, console)?;
    let (main, files, others) = files(&loaded, &Source::new(&options.main).file())?;
    let mut client = connect(fleet.settings())?;
    let number = versions(&mut client)?.last().map_or(0, |version| version.number) + 1;
    let user = || std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
    let version = ConfigurationVersion {
        fleet: fleet.settings().name.to_string(),
        number,
        author: options.author.clone().unwrap_or_else(user),
        time_ms: unix_ms(),
        main,
        files,
    };
    let value = version.sign(&key).map_err(|why| Fault::emerg(why.to_string()))?;
    match client.set(&format!("{VERSION}{number}"), &value, Some(0)) {
        Err(EngineError::Conflict) => {
            return Err(Fault::emerg(format!("another user has pushed version {number} in the meantime")));
        }
        done => done.map_err(|error| failed(&error))?,
    }
    let count = version.files.len();
    write_out(&format!("version {number}, {count} files, digest {}\n", version.digest()));
    for other in others {
        write_out(&format!("not pushed, each node has its own: {other}\n"));
    }
    Ok(())
}

fn diff(options: &FleetOptions, console: &Console) -> Result<(), Fault> {
    let (loaded, fleet) = load(&options.main, console)?;
    let (_, local, _) = files(&loaded, &Source::new(&options.main).file())?;
    let versions = versions(&mut connect(fleet.settings())?)?;
    let version = find(versions, options.version)?;
    write_out(&difference::text(&version, &local));
    Ok(())
}

/// The version with this number, or the last one.
fn find(versions: Vec<ConfigurationVersion>, number: Option<u64>) -> Result<ConfigurationVersion, Fault> {
    let configuration_version = match number {
        None => versions.into_iter().next_back(),
        Some(number) => versions.into_iter().find(|version| version.number == number),
    };
    configuration_version.ok_or_else(|| match number {
        None => Fault::emerg("no version was pushed"),
        Some(number) => Fault::emerg(format!("there is no version {number}")),
    })
}

/// Configurations of all nodes of a fleet, for `fleet status`; empty if none follows one, or the engine is away.
pub fn configurations(loaded: &Loaded) -> String {
    let Ok(fleet) = only_fleet(loaded) else { return String::new() };
    let configuration_reports =
        connect(fleet.settings()).and_then(|mut client| reports(&mut client)).unwrap_or_default();
    if configuration_reports.is_empty() {
        return String::new();
    }
    let mut text =
        format!("{:<24} {:>8} {:>8} {:<8}  order\n", "configuration", "version", "before", "state");
    for report in configuration_reports {
        let state = match report.state {
            ReportState::Waiting => "waiting",
            ReportState::Serving => "serving",
            ReportState::Refused => "refused",
        };
        let ConfigurationReport { node, number, previous, serial, message, .. } = report;
        text.push_str(
            format!("{node:<24} {number:>8} {previous:>8} {state:<8}  {serial} {message}").trim_end(),
        );
        text.push('\n');
    }
    text
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let now = tw_rt::clock::unix();
    u64::try_from(now.secs).unwrap_or(0) * 1000 + u64::from(now.msec)
}
