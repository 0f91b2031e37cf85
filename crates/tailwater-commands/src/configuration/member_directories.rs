//! Directories and devices of caches that have several: one that is missing or whose disk does not answer keeps neither a start nor a reload
//! from succeeding. The cache leaves it out, and says so.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tw_app::{Config, Directory, DirectoryPurpose};
use tw_log::Level;

use crate::configuration::bytes_path::path;
use crate::configuration::owned_files;
use crate::configuration::user::Identity;
use crate::output::console::Console;

/// Time for which a start or a reload waits for the disk of a member.
const MEMBER_WAIT: Duration = Duration::from_secs(2);
/// Time for which an answer counts: a start has several steps.
const ANSWER_AGE: Duration = Duration::from_secs(3);
/// Name of the process that asks a disk. A thread could not be ended, and a sandbox takes no process that has others.
pub const TITLE: &str = "tailwater: member directory";

/// Answers of disks, and since when.
static ANSWERS: Mutex<Option<HashMap<PathBuf, (Instant, bool)>>> = Mutex::new(None);

/// Asks the disk of the directory, or the device, that is the first argument: the work of the process.
pub fn ask() -> ExitCode {
    // An error is an answer of the disk, too.
    if let Some(path) = std::env::args_os().nth(1).map(PathBuf::from)
        && fs::metadata(&path).is_ok_and(|metadata| !metadata.is_dir())
    {
        let _ = tw_modules::check_device(&path);
    }
    ExitCode::SUCCESS
}

/// Returns true if the disk of a directory answers within two seconds.
pub fn answers_in_time(directory: &Path) -> bool {
    let now = tw_rt::clock::precise();
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    let answers = answers.get_or_insert_default();
    match answers.get(directory) {
        Some((at, answer)) if now.saturating_duration_since(*at) < ANSWER_AGE => return *answer,
        _ => {}
    }
    let answer = ask_in_time(Command::new("/proc/self/exe").arg0(TITLE).arg(directory), now);
    answers.insert(directory.to_owned(), (now, answer));
    answer
}

/// Returns true if the process ends in time.
fn ask_in_time(command: &mut Command, now: Instant) -> bool {
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // A process in a sandbox cannot ask, and waits for the disk itself.
    let Ok(mut process) = started else { return true };
    let Ok(end) = pidfd_open(Pid::from_child(&process), PidfdFlags::empty()) else { return true };
    loop {
        let remaining = (now + MEMBER_WAIT).saturating_duration_since(tw_rt::clock::precise());
        let timeout =
            Timespec { tv_sec: remaining.as_secs() as i64, tv_nsec: remaining.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(0) => {
                // A process that cannot be killed ends when the disk answers.
                let _ = process.kill();
                return false;
            }
            Ok(_) | Err(_) => {
                // The process has ended and is reaped.
                let _ = process.try_wait();
                return true;
            }
        }
    }
}

/// Directories of members in a configuration.
pub fn of(config: &Config) -> impl Iterator<Item = &Directory> {
    config.directories().iter().filter(|directory| directory.purpose == DirectoryPurpose::Member)
}

/// Reports the devices of members that are not for a cache, as far as they answer.
pub fn check_devices(config: &Config, console: &Console) {
    let devices = config.directories().iter();
    for device in devices.filter(|device| device.purpose == DirectoryPurpose::MemberDevice) {
        let device = path(device.path.to_bytes());
        let said = match answers_in_time(device) {
            true if fs::metadata(device).is_ok() => tw_modules::check_device(device).err(),
            // The error was reported when the device was opened.
            true => None,
            false => Some("does not answer".to_owned()),
        };
        if let Some(why) = said {
            let what = format_args!("\"{}\" {why}, a cache goes on without this member", device.display());
            console.report(Level::Warn, what);
        }
    }
}

/// Returns true if the path is no directory of a member whose disk does not answer.
pub fn answers(config: &Config, directory: &Path) -> bool {
    let is_member = of(config).any(|member| path(member.path.to_bytes()) == directory);
    !is_member || answers_in_time(directory)
}

/// Makes the directories of members (0700), for `owner` if we can give files away. What cannot be made is left to the cache.
pub fn make(config: &Config, owner: Option<&Identity>, console: &Console) {
    for member in of(config) {
        let member = path(member.path.to_bytes());
        let made = answers_in_time(member).then(|| owned_files::make_member(member, owner));
        let why = match made {
            Some(Ok(())) => continue,
            Some(Err(fault)) => fault.message,
            None => format!("no answer from the disk of \"{}\"", member.display()),
        };
        console.report(Level::Warn, format_args!("{why}, a cache goes on without this directory"));
    }
    check_devices(config, console);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_that_does_not_answer_is_waited_for_in_vain() {
        let now = tw_rt::clock::precise();
        assert!(!ask_in_time(Command::new("/bin/sleep").arg("600"), now));
        assert!(tw_rt::clock::precise() - now >= MEMBER_WAIT);
        assert!(ask_in_time(&mut Command::new("/bin/true"), tw_rt::clock::precise()));
    }
}
