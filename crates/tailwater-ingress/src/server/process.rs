//! The process of the server, and everything that is sent to it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tw_fetch::{Request, ServerAddress};

use crate::site::GroupName;

/// Longest time of a check of a configuration.
const CHECK_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest time of a request to the server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of a response of the server.
const RESPONSE_SIZE_MAX: u64 = 16 << 20;
/// Most bytes of the messages of a check that are read.
const MESSAGES_SIZE_MAX: u64 = 1 << 20;

/// The server.
#[derive(Debug)]
pub struct ServerProcess {
    binary: PathBuf,
    dir: PathBuf,
    /// Socket of the control API.
    control: PathBuf,
    /// The child; `None` if the server was started by somebody else, or not yet.
    child: Mutex<Option<Child>>,
    /// The controller starts it.
    is_ours: bool,
}

impl ServerProcess {
    /// Server with the configuration in a directory. `control` is the socket of one that runs already.
    pub fn new(binary: PathBuf, dir: &Path, control: Option<PathBuf>) -> Self {
        let is_ours = control.is_none();
        let control = control.unwrap_or_else(|| dir.join("control.sock"));
        Self { binary, dir: dir.to_owned(), control, child: Mutex::new(None), is_ours }
    }

    /// Path of the configuration file in use.
    pub fn config(&self) -> PathBuf {
        self.dir.join("nginx.conf")
    }

    /// Starts the server, if it is ours and does not run.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&self) -> io::Result<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_ours || child.is_some() {
            return Ok(());
        }
        // A file that is left of a server that was killed.
        let _ = fs::remove_file(&self.control);
        let _ = fs::remove_file(self.dir.join("api.sock"));
        let mut command = Command::new(&self.binary);
        command.arg("-c").arg(self.config()).arg("-l").arg(format!("unix:{}", self.control.display()));
        *child = Some(command.stdin(Stdio::null()).spawn()?);
        Ok(())
    }

    /// Notices the end of the server. Returns its status.
    pub fn reap(&self) -> Option<String> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let status = child.as_mut()?.try_wait().ok()??;
        *child = None;
        Some(status.to_string())
    }

    /// Sends a signal to the server, if it is ours.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(child) = &*child {
            // A server that has ended meanwhile needs no signal.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Returns true if the server is ours and has ended; [`reap`](Self::reap) still notices it.
    fn has_ended(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_ours && child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Returns true if the controller starts the server.
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Returns true while the process runs.
    pub fn runs(&self) -> bool {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Checks a configuration file.
    ///
    /// # Errors
    /// The messages of the server, or the reason why it did not check.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.binary);
        command.arg("-t").arg("-q").arg("-c").arg(path);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|error| format!("\"{}\": {error}", self.binary.display()))?;
        let stderr = child.stderr.take();
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut stderr) = stderr {
                let _ = (&mut stderr).take(MESSAGES_SIZE_MAX).read_to_end(&mut text);
                // The rest must not block the program.
                let _ = io::copy(&mut stderr, &mut io::sink());
            }
            String::from_utf8_lossy(&text).into_owned()
        });
        let deadline = Instant::now() + CHECK_TIMEOUT;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => pause(Duration::from_millis(5)),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err("the check of the configuration takes too long".to_owned());
                }
            }
        };
        let messages = reader.join().unwrap_or_default();
        if status.success() { Ok(()) } else { Err(messages) }
    }

    /// Orders a reload, and waits for its result.
    ///
    /// # Errors
    /// The server refuses the configuration, or does not answer.
    pub fn reload(&self) -> Result<(), String> {
        let endpoint = ServerAddress::Unix(self.control.clone());
        let request = Request { method: "PATCH", target: "/1/control/config", ..Request::default() };
        let (status, json) = exchange(&endpoint, &request)?;
        match status {
            200 => Ok(()),
            _ => {
                let logs = json["logs"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let logs: Vec<_> = logs.collect();
                Err(if logs.is_empty() {
                    format!("the server answers a reload with status {status}")
                } else {
                    logs.join("\n")
                })
            }
        }
    }

    /// Waits until the server answers requests of the control API.
    pub fn answers(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let endpoint = ServerAddress::Unix(self.control.clone());
        loop {
            let request = Request { method: "GET", target: "/1/tailwater/status", ..Request::default() };
            if exchange(&endpoint, &request).is_ok_and(|(status, _)| status == 200) {
                return true;
            }
            if Instant::now() > deadline || self.has_ended() {
                return false;
            }
            pause(Duration::from_millis(20));
        }
    }

    /// Changes the servers of a group while it runs.
    ///
    /// # Errors
    /// The group is not as it should be afterwards.
    pub fn set_servers(&self, group: &GroupName, wanted_names: &BTreeSet<String>) -> Result<(), String> {
        let endpoint = ServerAddress::Unix(self.dir.join("api.sock"));
        let path = format!("/api/{}/upstreams/{}/servers", group.block, group.name);
        let (status, list) =
            exchange(&endpoint, &Request { method: "GET", target: &path, ..Request::default() })?;
        let servers =
            list.as_array().filter(|_| status == 200).ok_or_else(|| format!("{path}: status {status}"))?;
        let mut extra = Vec::new();
        let mut missing = wanted_names.clone();
        for server in servers {
            let (Some(id), Some(name)) = (server["id"].as_u64(), server["server"].as_str()) else { continue };
            if !missing.remove(name) {
                extra.push(id);
            }
        }
        for server in missing {
            let content = json!({ "server": server }).to_string().into_bytes();
            let request = Request {
                method: "POST",
                target: &path,
                content: Some(("application/json", content)),
                ..Request::default()
            };
            let (status, answer) = exchange(&endpoint, &request)?;
            if status != 201 {
                return Err(format!("{path}: {server}: status {status}: {}", answer["error"]["text"]));
            }
        }
        for id in extra {
            let target = format!("{path}/{id}");
            let (status, _) =
                exchange(&endpoint, &Request { method: "DELETE", target: &target, ..Request::default() })?;
            if status != 200 {
                return Err(format!("{target}: status {status}"));
            }
        }
        Ok(())
    }
}

fn exchange(endpoint: &ServerAddress, request: &Request<'_>) -> Result<(u16, Value), String> {
    let mut response =
        tw_fetch::send(endpoint, request, REQUEST_TIMEOUT).map_err(|error| format!("the server: {error}"))?;
    let body = response.body.read_all(RESPONSE_SIZE_MAX).map_err(|error| format!("the server: {error}"))?;
    Ok((response.status, serde_json::from_slice(&body).unwrap_or_default()))
}

fn pause(span: Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread that waits for another process; there is no event loop"
    )]
    std::thread::sleep(span);
}
