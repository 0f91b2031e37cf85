//! The pid file, by which `-s` and other programs find the running server.
//!
//! It is written beside its place and renamed, so that no reader sees half of it, and a link or a pipe in its place is
//! not followed. An old number is overwritten: two servers with one pid file are told apart by their sockets, not by a
//! file. A master keeps it open, by which `-s` recognizes that the process of that number wrote it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, statx};
use rustix::process::{Pid, Signal, test_kill_process};
use tailwater_commands::cli::Purge;
use tailwater_commands::cli::SignalCommand;
use tailwater_commands::configuration::created_files::CreatedFile;
use tailwater_commands::output::console::{Console, Fault};
use tw_log::Level;

use super::control;

/// Suffix of the file's name while a new binary has its place.
const OLD: &str = ".oldbin";
/// A number of the system and the end of its line need less.
const SIZE_MAX: u64 = 32;

/// The file of this process. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    name: Name,
    file: File,
}

/// Name of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Configured,
    Old,
}

impl PidFile {
    /// Creates the file (0644), or takes over one that was left behind. `place` is where its name is written, for messages.
    pub(crate) fn create(path: &Path, place: &str, console: &Console) -> Result<Self, Fault> {
        if let Ok(pid) = read(path)
            && pid.as_raw_nonzero().get().unsigned_abs() != std::process::id()
            && test_kill_process(pid).is_ok()
            && has_open(pid, path) == Some(true)
        {
            let name = path.display();
            let message = format_args!("\"{name}\" is the pid file of process {pid}, which loses it");
            console.report(Level::Warn, message);
        }
        let refused = |error: io::Error| {
            let fault = CreatedFile::Pid.fault(path, &error);
            Fault { message: format!("{}{place}", fault.message), ..fault }
        };
        let is_replaceable = match fs::symlink_metadata(path).map(|metadata| metadata.file_type()) {
            Ok(file_type) if file_type.is_dir() => return Err(refused(rustix::io::Errno::ISDIR.into())),
            Ok(file_type) if file_type.is_fifo() || file_type.is_socket() || file_type.is_block_device() => {
                let message = format!("the pid file \"{}\" is not a regular file{place}", path.display());
                return Err(Fault::emerg(message).hint("remove it, or name another one with \"pid\""));
            }
            // /dev/null stands for no pid file.
            Ok(file_type) => !file_type.is_char_device(),
            Err(_) => true,
        };
        let file = if is_replaceable {
            replace(path).or_else(|error| match error.kind() {
                // The directory belongs to another user, but the file may be ours.
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    overwrite(path).map_err(|other| match other.kind() {
                        // The file does not exist, so the first error has the reason.
                        io::ErrorKind::NotFound => error,
                        _ => other,
                    })
                }
                _ => Err(error),
            })
        } else {
            overwrite(path)
        };
        Ok(Self { path: path.to_owned(), name: Name::Configured, file: file.map_err(refused)? })
    }

    /// Makes room for the file of a new binary. The error is nginx's line.
    pub(super) fn step_aside(&mut self) -> Result<(), String> {
        self.rename(Name::Old)
    }

    /// Takes its place again.
    pub(super) fn step_back(&mut self) -> Result<(), String> {
        self.rename(Name::Configured)
    }

    fn rename(&mut self, name: Name) -> Result<(), String> {
        // /dev/null is never renamed.
        if self.name == name || !self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(());
        }
        let from = self.place(self.name);
        let to = self.place(name);
        let back = if name == Name::Old { "" } else { " back" };
        fs::rename(&from, &to).map_err(|error| {
            let errno = tw_base::Errno::from(&error);
            format!("rename() {}{back} to {} failed ({errno})", from.display(), to.display())
        })?;
        self.name = name;
        Ok(())
    }

    fn place(&self, name: Name) -> PathBuf {
        match name {
            Name::Configured => self.path.clone(),
            Name::Old => old_name(&self.path),
        }
    }

    /// Process number in the file of the configured name.
    pub(super) fn owner(&self) -> Option<Pid> {
        read(&self.path).ok()
    }

    /// Returns `true` if the file of this name still has our number: otherwise a server that was started meanwhile owns
    /// it.
    fn is_ours(&self) -> bool {
        let pid = read(&self.place(self.name));
        pid.is_ok_and(|pid| pid.as_raw_nonzero().get().unsigned_abs() == std::process::id())
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.is_ours() && fs::remove_file(self.place(self.name)).is_err() {
            // A server that gave up its privileges may not be able to remove the file from /run, but it may empty it,
            // so that no signal is sent to the next process with this number.
            let _ = self.file.set_len(0);
        }
    }
}

fn old_name(path: &Path) -> PathBuf {
    [path.as_os_str(), OsStr::new(OLD)].into_iter().collect::<OsString>().into()
}

/// Our number, in a file that takes the place of whatever has the name.
// DIFF(nginx): a link is replaced, not followed: who may write into the directory cannot have another file emptied.
fn replace(path: &Path) -> io::Result<File> {
    let mut temp_path = path.to_owned().into_os_string();
    temp_path.push(format!(".{}", std::process::id()));
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temp_path);
    let file = create().or_else(|error| match error.kind() {
        // The file is from a process that had the same number, and was killed at this point.
        io::ErrorKind::AlreadyExists => fs::remove_file(&temp_path).and_then(|()| create()),
        _ => Err(error),
    })?;
    (&file)
        .write_all(line().as_bytes())
        .and_then(|()| fs::rename(&temp_path, path))
        .inspect_err(|_| drop(fs::remove_file(&temp_path)))?;
    Ok(file)
}

/// Our number, in the file that is there.
fn overwrite(path: &Path) -> io::Result<File> {
    let file = open(path, OFlags::NOFOLLOW, OpenOptions::new().write(true))?;
    // The new line first, then the end: a reader in between sees one whole line at least.
    file.write_all_at(line().as_bytes(), 0)?;
    if file.metadata()?.is_file() {
        file.set_len(line().len() as u64)?;
    }
    Ok(file)
}

fn line() -> String {
    format!("{}\n", std::process::id())
}

/// Never waits for the other end of a pipe.
fn open(path: &Path, more: OFlags, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    options.custom_flags(i32::from_ne_bytes(flags.bits().to_ne_bytes())).open(path)
}

/// Sends the signal of `-s` to a running server. Returns the messages of a reload.
pub(crate) fn order(path: &Path, order: SignalCommand) -> Result<Vec<Fault>, Vec<Fault>> {
    let pid = server(path)?;
    if order == SignalCommand::Reload
        && let Some(answer) = control::order_reload(pid)
    {
        return answer;
    }
    send(pid, order).map(|()| Vec::new()).map_err(|fault| vec![fault])
}

/// The server that has this pid file, if it runs and is not this process.
pub(super) fn running(path: &Path) -> Option<Pid> {
    let pid = read(path).ok()?;
    let is_other = pid.as_raw_nonzero().get().unsigned_abs() != std::process::id();
    // A process of another user may not be asked, but is there.
    let is_there = !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    (is_other && is_there && has_open(pid, path) != Some(false)).then_some(pid)
}

/// Orders a purge from a running server and returns its messages.
pub(crate) fn purge(path: &Path, order: &Purge) -> Result<Vec<Fault>, Vec<Fault>> {
    control::order_purge(server(path)?, order)
}

/// Requests the state of the fleets of a running server, and returns it line by line.
pub(crate) fn fleet_status(path: &Path) -> Result<Vec<Fault>, Vec<Fault>> {
    control::request_fleet_status(server(path)?)
}

/// The process that wrote the file.
fn server(path: &Path) -> Result<Pid, Vec<Fault>> {
    let pid = read(path).map_err(|fault| vec![fault])?;
    if is_other_process(pid, path) {
        let message = format!("process {pid} is not the server that wrote \"{}\"", path.display());
        let fault = Fault { level: Level::Error, ..Fault::emerg(message) };
        return Err(vec![fault.hint("the server has ended without removing its pid file")]);
    }
    Ok(pid)
}

/// Tells a running server that it is not ordered to reload its configuration, and why, if there is one.
pub(crate) fn report_refusal(path: &Path, why: &[Fault]) {
    if let Ok(pid) = read(path)
        && !is_other_process(pid, path)
    {
        control::report_refusal(pid, why);
    }
}

fn send(pid: Pid, order: SignalCommand) -> Result<(), Fault> {
    let signal = match order {
        SignalCommand::Stop => Signal::TERM,
        SignalCommand::Quit => Signal::QUIT,
        SignalCommand::Reopen => Signal::USR1,
        SignalCommand::Reload => Signal::HUP,
    };
    rustix::process::kill_process(pid, signal).map_err(|error| {
        let pid = pid.as_raw_nonzero();
        let signal = signal.as_raw();
        let message = format!("kill({pid}, {signal}) failed ({})", tw_base::Errno::from(error));
        let fault = Fault { level: Level::Alert, message, hint: None };
        match error {
            rustix::io::Errno::SRCH => fault.hint("the server has ended without removing its pid file"),
            rustix::io::Errno::PERM => fault.hint("it runs as another user: try as that user or as root"),
            _ => fault,
        }
    })
}

/// Returns `true` if a process of this number is certainly not the server that wrote the file.
// DIFF(nginx): a number outlives its process, and the next process to get it is not sent a signal for that.
fn is_other_process(pid: Pid, path: &Path) -> bool {
    // nginx closes the file, but its master process has a title.
    let is_nginx = || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"nginx: "));
    has_open(pid, path) == Some(false) && !is_nginx()
}

/// Returns `true` if a process has a file open. `None` if that cannot be found out.
fn has_open(pid: Pid, path: &Path) -> Option<bool> {
    // A file of a server that hangs must not make this wait.
    let number = |path: &Path| {
        let file_stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
        Some((file_stat.stx_dev_major, file_stat.stx_dev_minor, file_stat.stx_ino))
    };
    let wanted_value = number(path)?;
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    Some(open.filter_map(Result::ok).any(|fd| number(&fd.path()) == Some(wanted_value)))
}

/// The number in a pid file.
fn read(path: &Path) -> Result<Pid, Fault> {
    let error = |message: String| Fault { level: Level::Error, message, hint: None };
    let name = path.to_string_lossy();
    let file = open(path, OFlags::empty(), OpenOptions::new().read(true)).map_err(|e| {
        let fault = error(Fault::call("open()", &name, &e).message);
        match e.kind() {
            io::ErrorKind::NotFound if old_name(path).exists() => {
                let old = old_name(path);
                fault
                    .hint(format!("a new binary has not written it yet; the old one is in {}", old.display()))
            }
            io::ErrorKind::NotFound => fault.hint("the server is not running, or with another configuration"),
            _ => fault,
        }
    })?;
    let mut text = Vec::new();
    file.take(SIZE_MAX)
        .read_to_end(&mut text)
        .map_err(|e| error(Fault::call("read()", &name, &e).message))?;
    let text = String::from_utf8_lossy(&text);
    let number = text.split('\n').next().unwrap_or_default().trim_end_matches('\r');
    number.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or_else(|| {
        let shown: String = number.chars().take(20).collect();
        let fault = error(format!("invalid PID number \"{shown}\" in \"{name}\""));
        if shown.is_empty() { fault.hint("the server has ended") } else { fault }
    })
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn numbers_in_files() {
        let dir = TempDir::new("pid").unwrap();
        for (text, expected) in [
            ("42\n", Ok(42)),
            ("42", Ok(42)),
            ("42\r\n\n", Ok(42)),
            ("42\n5\n", Ok(42)),
            ("", Err("")),
            ("0", Err("0")),
            ("-1\n", Err("-1")),
            ("4 2", Err("4 2")),
            ("99999999999\n", Err("99999999999")),
        ] {
            let path = dir.write("server.pid", text).unwrap();
            let expected = expected
                .map_err(|number| format!("invalid PID number \"{number}\" in \"{}\"", path.display()));
            let result = read(&path).map(|pid| pid.as_raw_nonzero().get()).map_err(|fault| fault.message);
            assert_eq!(result, expected, "{text:?}");
        }
        let path = dir.join("none");
        let expected = format!("open() \"{}\" failed (2: No such file or directory)", path.display());
        assert_eq!(read(&path).unwrap_err().message, expected);
    }

    #[test]
    fn the_file_lives_as_long_as_its_owner() {
        let dir = TempDir::new("pid").unwrap();
        let path = dir.write("server.pid", "1234567 left behind").unwrap();
        let file = PidFile::create(&path, "", &Console::quiet()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());

        let file = PidFile::create(&path, "", &Console::quiet()).unwrap();
        fs::write(&path, "1\n").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n", "somebody else's now");
    }

    #[test]
    fn other_files_in_place_of_the_pid_file_are_handled() {
        let dir = TempDir::new("pid").unwrap();
        let create = |path: &Path| PidFile::create(path, "", &Console::quiet());
        let ours = line();

        // A link is not followed.
        let target = dir.write("target", "precious").unwrap();
        let path = dir.join("link.pid");
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let file = create(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), ours);
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        drop(file);
        assert!(!path.exists());

        // A pipe does not block.
        let path = dir.join("fifo.pid");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let expected = format!("the pid file \"{}\" is not a regular file", path.display());
        assert_eq!(create(&path).unwrap_err().message, expected);
        let expected = format!("invalid PID number \"\" in \"{}\"", path.display());
        assert_eq!(read(&path).unwrap_err().message, expected);

        // A directory is no pid file, either.
        let expected = format!("open() \"{}\" failed (21: Is a directory)", dir.path().display());
        assert_eq!(create(dir.path()).unwrap_err().message, expected);
        let expected = format!("read() \"{}\" failed (21: Is a directory)", dir.path().display());
        assert_eq!(read(dir.path()).unwrap_err().message, expected);

        // Neither renamed nor removed.
        let mut none = create(Path::new("/dev/null")).unwrap();
        none.step_aside().unwrap();
        drop(none);
        assert!(Path::new("/dev/null").exists());
    }

    #[test]
    fn pid_file_in_a_directory_of_another_user_is_overwritten() {
        let dir = TempDir::new("pid").unwrap();
        let path = dir.write("server.pid", "1234567890 left behind").unwrap();
        let file = overwrite(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), line());
        assert_eq!(has_open(rustix::process::getpid(), &path), Some(true));
        drop(file);
        std::os::unix::fs::symlink(&path, dir.join("link")).unwrap();
        assert!(overwrite(&dir.join("link")).is_err(), "no link is followed");
        assert!(overwrite(&dir.join("none")).is_err());
    }

    #[test]
    fn pid_file_steps_aside_for_a_new_binary_and_back() {
        let dir = TempDir::new("pid").unwrap();
        let path = dir.join("server.pid");
        let old = dir.join("server.pid.oldbin");
        let mut file = PidFile::create(&path, "", &Console::quiet()).unwrap();
        file.step_aside().unwrap();
        assert_eq!((path.exists(), fs::read_to_string(&old).unwrap()), (false, line()));
        fs::write(&path, "1\n").unwrap();
        assert_eq!(file.owner().unwrap().as_raw_nonzero().get(), 1);
        file.step_back().unwrap();
        assert_eq!((old.exists(), fs::read_to_string(&path).unwrap()), (false, line()));
        file.step_aside().unwrap();
        fs::remove_file(&old).unwrap();
        let expected = format!(
            "rename() {} back to {} failed (2: No such file or directory)",
            old.display(),
            path.display()
        );
        assert_eq!(file.step_back().unwrap_err(), expected);
    }

    #[test]
    fn process_with_a_recycled_pid_is_left_alone() {
        let dir = TempDir::new("pid").unwrap();
        let path = dir.join("server.pid");
        let file = PidFile::create(&path, "", &Console::quiet()).unwrap();
        assert!(!is_other_process(rustix::process::getpid(), &path));
        drop(file);
        fs::write(&path, line()).unwrap();
        assert!(is_other_process(rustix::process::getpid(), &path));
        let said = order(&path, SignalCommand::Stop).unwrap_err();
        assert!(said.iter().any(|fault| fault.message.contains("is not the server that wrote")), "{said:?}");
    }
}
