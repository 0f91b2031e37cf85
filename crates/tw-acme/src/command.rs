//! The program that makes records in DNS for us and removes them, called as that of lego's provider `exec` is:
//!
//! ```text
//! PROGRAM present _acme-challenge.example.com. VALUE
//! PROGRAM cleanup _acme-challenge.example.com. VALUE
//! ```
//! Once `present` has ended with the status 0, the record has to be visible everywhere.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tw_rt::time::sleep;

use tw_base::Errno;

use crate::error::Error;

/// Interval at which the end of the program is looked for.
const LOOK: Duration = Duration::from_millis(100);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time that a program may take to make a record in DNS.
    const PROGRAM_TIME_MAX: Duration = Duration::from_secs(10 * 60), time, "it is killed, and the order is tried again later";
}

/// Existing DNS record. Dropping it makes the program remove it, without waiting.
#[must_use]
pub(crate) struct Record {
    program: PathBuf,
    name: String,
    value: String,
}

/// Running program, which is killed when this is dropped.
struct Running(Child);

impl Record {
    /// Has the program make a record for `host` (RFC 8555, section 8.4).
    pub(crate) async fn present(program: &Path, host: &str, value: &str) -> Result<Self, Error> {
        let record = Self {
            program: program.to_owned(),
            name: format!("_acme-challenge.{host}."),
            value: value.to_owned(),
        };
        let mut running = Running(record.run("present")?);
        let until = Instant::now() + PROGRAM_TIME_MAX;
        loop {
            match running.0.try_wait() {
                Ok(Some(status)) => return record.check_status(status),
                Ok(None) if Instant::now() < until => sleep(LOOK).await,
                Ok(None) => {
                    return Err(
                        record.error(&format!("has not ended within {} s", PROGRAM_TIME_MAX.as_secs()))
                    );
                }
                Err(error) => {
                    return Err(record.error(&format!("cannot be waited for ({})", Errno::from(&error))));
                }
            }
        }
    }

    fn check_status(self, status: ExitStatus) -> Result<Self, Error> {
        if status.success() { Ok(self) } else { Err(self.error(&format!("has failed ({status})"))) }
    }

    fn error(&self, why: &str) -> Error {
        Error::Command(format!("\"{} present {}\" {why}", self.program.display(), self.name))
    }

    fn run(&self, what: &str) -> Result<Child, Error> {
        let mut command = Command::new(&self.program);
        command.args([what, &self.name, &self.value]).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map_err(|error| self.error(&format!("cannot be started ({})", Errno::from(&error))))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // A record that stays does no harm, and the next one for the name stands beside it.
        if let Ok(mut child) = self.run("cleanup") {
            let _ = thread::Builder::new().name("acme cleanup".to_owned()).spawn(move || child.wait());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already, which is no error.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tw_testkit::{TempDir, wait};

    use super::*;

    fn on_thread<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn a_record_is_made_and_removed() {
        let dir = TempDir::new("acme-dns").unwrap();
        let said = dir.join("said");
        let script = format!("echo \"$@\" >> {}", said.display());
        let path = dir.write_program("program", &script, 0o700).unwrap();
        drop(on_thread(Record::present(&path, "example.com", "abc")).unwrap());
        let expected = "present _acme-challenge.example.com. abc\ncleanup _acme-challenge.example.com. abc\n";
        let has_both = || fs::read_to_string(&said).is_ok_and(|text| text == expected);
        assert!(wait::until(Duration::from_secs(10), has_both));
    }

    #[test]
    fn failures_are_reported() {
        let dir = TempDir::new("acme-dns").unwrap();
        let error =
            |path: &Path| on_thread(Record::present(path, "a.example", "x")).err().unwrap().to_string();
        let path = dir.write_program("program", "exit 3", 0o700).unwrap();
        assert_eq!(
            error(&path),
            format!("\"{} present _acme-challenge.a.example.\" has failed (exit status: 3)", path.display())
        );
        assert!(error(&dir.join("none")).ends_with("cannot be started (2: No such file or directory)"));
    }
}
