//! Server with a master in the background, controlled by signals as by an operator.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tw_testkit::ports::Port;
use tw_testkit::{TempDir, wait};

use super::clients::OnDemandClient;
use crate::Outcome;
use crate::contestant::{Binary, configuration, prepare, server_args};
use crate::exec::RunPlacement;
use crate::usage::{self, Memory};

/// The pid file, below the prefix.
const PID_FILE: &str = "logs/server.pid";
/// Time limit for a signal to take effect.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A server that runs. Dropping it ends it.
pub(super) struct Daemon {
    prefix: TempDir,
    port: Port,
    binary: Binary,
    /// Directives of `http {}` in addition to the server; `{port}` is its port.
    more: String,
    turn: u64,
}

impl Daemon {
    /// Starts it with its first configuration.
    pub(super) fn start(binary: &Binary, place: &RunPlacement, more: String) -> Outcome<Self> {
        let (prefix, port) = prepare()?;
        let daemon = Self { prefix, port, binary: binary.clone(), more, turn: 1 };
        let args = server_args(&daemon.prefix, &daemon.conf())?;
        let log = fs::File::create(daemon.prefix.join("logs/stderr.log"))?;
        let mut command = place.command(&binary.path);
        command.args(args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let status = command.status()?;
        let serves = || daemon.pid().is_some() && daemon.answers_by() == Some(daemon.turn);
        if status.success() && wait::until(wait::TIMEOUT, serves) {
            Ok(daemon)
        } else {
            Err(format!("{}: does not start: {}", binary.path.display(), daemon.said()).into())
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()))
    }

    /// Changes the configuration a little, sends HUP, and waits for the first answer that is made by the new one.
    pub(super) fn reload(&mut self) -> Outcome<Duration> {
        self.turn += 1;
        fs::write(self.prefix.join("conf/nginx.conf"), self.conf())?;
        let began = Instant::now();
        kill_process(self.pid().ok_or("no pid file")?, Signal::HUP)?;
        let done = wait::until(TIMEOUT, || self.answers_by() == Some(self.turn));
        if done { Ok(began.elapsed()) } else { Err(format!("no reload: {}", self.said()).into()) }
    }

    /// Lets a new binary, the same, take over: USR2, a new pid file, QUIT to the old master, its end.
    pub(super) fn upgrade(&self) -> Outcome<Duration> {
        let old = self.pid().ok_or("no pid file")?;
        let began = Instant::now();
        kill_process(old, Signal::USR2)?;
        let has_new = || self.pid().is_some_and(|pid| pid != old) && self.answers_by().is_some();
        if !wait::until(TIMEOUT, has_new) {
            return Err(format!("no upgrade: {}", self.said()).into());
        }
        kill_process(old, Signal::QUIT)?;
        if wait::until(TIMEOUT, || has_ended(old)) {
            Ok(began.elapsed())
        } else {
            Err("the old master does not end".into())
        }
    }

    /// Tests its configuration.
    pub(super) fn check_command(&self) -> Command {
        let mut command = Command::new(&self.binary.path);
        command.args([Path::new("-t"), Path::new("-q"), Path::new("-p"), self.prefix.path()]);
        command.arg("-c").arg(self.prefix.join("conf/nginx.conf")).stdin(Stdio::null());
        command
    }

    /// Memory of all its processes.
    pub(super) fn memory(&self) -> Outcome<Memory> {
        let pid = self.pid().ok_or("no pid file")?;
        usage::memory(pid.as_raw_nonzero().get().cast_unsigned())
    }

    fn conf(&self) -> String {
        let Self { more, turn, .. } = self;
        let port = self.port.number();
        let more = format!("access_log off; {}", more.replace("{port}", &port.to_string()));
        let metrics = if self.binary.is_tailwater() { "location = /metrics { metrics; }" } else { "" };
        let server =
            format!("add_header X-Turn {turn}; location / {{ return 200 \"a small answer\\n\"; }} {metrics}");
        configuration("daemon on;", port, &self.binary, &more, &server)
    }

    /// By which configuration a new connection is answered.
    fn answers_by(&self) -> Option<u64> {
        OnDemandClient::open(self.addr()).ok()?.send_requests().ok()?.turn
    }

    fn pid(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.prefix.join(PID_FILE)).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }

    /// The end of its log.
    fn said(&self) -> String {
        let logs = ["logs/stderr.log", "logs/error.log"].map(|log| self.prefix.join(log));
        let said: String = logs.iter().filter_map(|log| fs::read_to_string(log).ok()).collect();
        let lines: Vec<_> = said.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let old = fs::read_to_string(self.prefix.join(format!("{PID_FILE}.oldbin")));
        let old = old.ok().and_then(|text| Pid::from_raw(text.trim().parse().ok()?));
        for pid in self.pid().into_iter().chain(old) {
            // A process that has ended already needs no signal.
            let _ = kill_process(pid, Signal::TERM);
            if !wait::until(TIMEOUT, || has_ended(pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Returns `true` if a process has ended, even if it was not reaped yet.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}
