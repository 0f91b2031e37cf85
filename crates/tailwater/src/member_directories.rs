//! Directories of caches that have several: one that is missing or whose disk does not answer keeps neither a start nor a reload
//! from succeeding. The cache leaves it out, and says so.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tw_app::{Config, Directory, DirectoryPurpose};
use tw_log::Level;

use crate::conf::path;
use crate::console::Console;
use crate::master::files;
use crate::user::Identity;

/// Time for which a start or a reload waits for the disk of a member.
const MEMBER_WAIT: Duration = Duration::from_secs(2);
/// Time for which a disk that has not answered is not tried again: a start has several steps.
const FORGET_HUNG: Duration = Duration::from_secs(10);

/// Disks that have not answered, and since when.
static HUNG: Mutex<Option<HashMap<PathBuf, Instant>>> = Mutex::new(None);

/// Does work on the directory of a member that may wait for its disk, in a thread of its own. `None` if it does not answer; the
/// thread ends when the disk does.
pub(crate) fn in_time<T: Send + 'static>(
    directory: &Path,
    work: impl FnOnce(&Path) -> T + Send + 'static,
) -> Option<T> {
    let hung = || HUNG.lock().unwrap_or_else(PoisonError::into_inner);
    let now = tw_rt::clock::precise();
    if let Some(at) = hung().as_ref().and_then(|hung| hung.get(directory))
        && now.saturating_duration_since(*at) < FORGET_HUNG
    {
        return None;
    }
    let (done, wait) = channel();
    let path = directory.to_owned();
    let thread = std::thread::Builder::new().name("member directory".to_owned());
    // Nobody may be left to take the result.
    let started = thread.spawn(move || _ = done.send(work(&path)));
    let result = started.ok().and_then(|_| wait.recv_timeout(MEMBER_WAIT).ok());
    if result.is_none() {
        hung().get_or_insert_default().insert(directory.to_owned(), now);
    }
    result
}

/// Directories of members in a configuration.
pub(crate) fn of(config: &Config) -> impl Iterator<Item = &Directory> {
    config.directories().iter().filter(|directory| directory.purpose == DirectoryPurpose::Member)
}

/// Returns true if the path is no directory of a member whose disk does not answer.
pub(crate) fn answers(config: &Config, directory: &Path) -> bool {
    let is_member = of(config).any(|member| path(member.path.to_bytes()) == directory);
    !is_member || in_time(directory, |path| _ = fs::metadata(path)).is_some()
}

/// Makes the directories of members (0700), for `owner` if we can give files away. What cannot be made is left to the cache.
pub(crate) fn make(config: &Config, owner: Option<&Identity>, console: &Console) {
    for member in of(config) {
        let (member, owner) = (path(member.path.to_bytes()), owner.cloned());
        let why = match in_time(member, move |path| files::make_member(path, owner.as_ref())) {
            Some(Ok(())) => continue,
            Some(Err(fault)) => fault.message,
            None => format!("no answer from the disk of \"{}\"", member.display()),
        };
        console.report(Level::Warn, format_args!("{why}, a cache goes on without this directory"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_that_does_not_answer_is_not_waited_for_twice() {
        let path = Path::new("/nowhere/member");
        assert_eq!(in_time(path, |path| path.as_os_str().len()), Some(15));
        let (end, wait) = channel::<()>();
        let began = tw_rt::clock::precise();
        assert_eq!(in_time(path, move |_| _ = wait.recv()), None);
        assert!(tw_rt::clock::precise() - began >= MEMBER_WAIT);
        // Not begun at all: it would have told.
        assert_eq!(in_time(path, |_| ()), None);
        drop(end);
    }
}
