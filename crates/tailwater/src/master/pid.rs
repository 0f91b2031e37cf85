//! The pid file: how `-s` and everybody else finds the running server.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};
use tw_log::Level;

use super::control;
use crate::cli::Order;
use crate::console::Fault;

/// The file of this process. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Creates the file (0644), or takes over one that was left behind.
    pub(crate) fn create(path: &Path) -> Result<Self, Fault> {
        let failed = |call, error| Fault::call(call, &path.to_string_lossy(), &error);
        let open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path);
        let mut file = open.map_err(|error| {
            let hint =
                "the \"pid\" directive says where the file is; its directory must exist and be writable";
            failed("open()", error).hint(hint)
        })?;
        let number = format!("{}\n", std::process::id());
        file.write_all(number.as_bytes()).map_err(|error| failed("write()", error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Whether the file of this name still tells our number: a server that was started meanwhile owns it otherwise.
    fn is_ours(&self) -> bool {
        read(&self.path).is_ok_and(|pid| pid.as_raw_nonzero().get().unsigned_abs() == std::process::id())
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.is_ours() && fs::remove_file(&self.path).is_err() {
            // A server that gave up its privileges may not remove it from /run, but it may empty it, so that nobody
            // sends a signal to whoever gets the number next.
            let _ = self.file.set_len(0);
        }
    }
}

/// Tells a running server what `-s` asks for. What it says if the order is a reload.
pub(crate) fn order(path: &Path, order: Order) -> Result<Vec<Fault>, Vec<Fault>> {
    let pid = read(path).map_err(|fault| vec![fault])?;
    if order == Order::Reload
        && let Some(answer) = control::order_reload(pid)
    {
        return answer;
    }
    send(pid, order).map(|()| Vec::new()).map_err(|fault| vec![fault])
}

fn send(pid: Pid, order: Order) -> Result<(), Fault> {
    let signal = match order {
        Order::Stop => Signal::TERM,
        Order::Quit => Signal::QUIT,
        Order::Reopen => Signal::USR1,
        Order::Reload => Signal::HUP,
    };
    rustix::process::kill_process(pid, signal).map_err(|error| {
        let (pid, signal) = (pid.as_raw_nonzero(), signal.as_raw());
        let message = format!("kill({pid}, {signal}) failed ({})", tw_log::Errno::from(error));
        let fault = Fault { level: Level::Alert, message, hint: None };
        match error {
            rustix::io::Errno::SRCH => fault.hint("the server has ended without removing its pid file"),
            rustix::io::Errno::PERM => fault.hint("it runs as another user: try as that user or as root"),
            _ => fault,
        }
    })
}

/// The number in a pid file.
fn read(path: &Path) -> Result<Pid, Fault> {
    let error = |message: String| Fault { level: Level::Error, message, hint: None };
    let name = path.to_string_lossy();
    let text = fs::read(path).map_err(|e| {
        let fault = error(Fault::call("open()", &name, &e).message);
        match e.kind() {
            io::ErrorKind::NotFound => fault.hint("the server is not running, or with another configuration"),
            _ => fault,
        }
    })?;
    let text = String::from_utf8_lossy(&text);
    let number = text.trim_end_matches(['\r', '\n']);
    number.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or_else(|| {
        let shown: String = number.chars().take(20).collect();
        let fault = error(format!("invalid PID number \"{shown}\" in \"{name}\""));
        match shown.is_empty() {
            true => fault.hint("the server has ended"),
            false => fault,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::TempDir;

    #[test]
    fn numbers_in_files() {
        let dir = TempDir::new("pid").unwrap();
        for (text, expected) in [
            ("42\n", Ok(42)),
            ("42", Ok(42)),
            ("42\r\n\n", Ok(42)),
            ("", Err("")),
            ("0", Err("0")),
            ("-1\n", Err("-1")),
            ("4 2", Err("4 2")),
            ("99999999999\n", Err("99999999999")),
        ] {
            let path = dir.write("server.pid", text).unwrap();
            let expected = expected
                .map_err(|number| format!("invalid PID number \"{number}\" in \"{}\"", path.display()));
            let found = read(&path).map(|pid| pid.as_raw_nonzero().get()).map_err(|fault| fault.message);
            assert_eq!(found, expected, "{text:?}");
        }
        let path = dir.join("none");
        let expected = format!("open() \"{}\" failed (2: No such file or directory)", path.display());
        assert_eq!(read(&path).unwrap_err().message, expected);
    }

    #[test]
    fn the_file_lives_as_long_as_its_owner() {
        let dir = TempDir::new("pid").unwrap();
        let path = dir.write("server.pid", "1234567 left behind").unwrap();
        let file = PidFile::create(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());

        let file = PidFile::create(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n", "somebody else's now");
    }
}
