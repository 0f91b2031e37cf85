//! Start of a worker process: its configuration, its links to others, and the sessions that it takes over.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use tailwater_commands::output::console::Console;
use tw_conf::MemoryFiles;
use tw_log::Level;

use super::super::child::{Child, Failure};
use super::super::handover::Handover;
use super::super::processes::{Processes, ToldProcesses};
use super::super::signal_queue::SignalQueue;
use super::super::timeouts::{LOAD_TIMEOUT, STOP_TIMEOUT};
use crate::ipc::channel::{Configure, Text, WorkerCommand};
use crate::ipc::packet;

/// Way of the sessions over datagrams of another process to `child`; `None` if there is none: they end in the other process.
pub(super) fn sessions_to(child: &Child) -> Option<OwnedFd> {
    let (ours, theirs) = packet::pair().ok()?;
    child.order(&WorkerCommand::TakeSessions, &[theirs.as_fd()]).ok()?;
    Some(ours)
}

/// Starts a worker process, waits until it can serve, and lets it. One that does not is among those that leave; it has
/// served nobody.
pub(super) fn begin(
    handover: &Handover,
    leaving: &mut Vec<Child>,
    inbox: &SignalQueue,
    processes: &mut Processes,
    console: &Console,
) -> Result<Child, Failure> {
    let mut child = Child::start(&handover.env, handover.keys.clone()).map_err(Failure::Refused)?;
    console.report(Level::Notice, format_args!("start worker process {}", child.pid()));
    let begun = configure(&mut child, handover, inbox).and_then(|()| {
        follow_scripts(&mut child, handover, console);
        join(&mut child, processes);
        child.begin()
    });
    match begun {
        Ok(()) => Ok(child),
        Err(failure) => {
            child.is_discarded = true;
            match failure {
                // A worker that refuses its configuration ends by itself.
                Failure::Refused(_) => child.until = Some(Instant::now() + STOP_TIMEOUT),
                _ => child.kill(),
            }
            leaving.push(child);
            Err(failure)
        }
    }
}

/// Starts the script processes that a configuration needs.
pub(super) fn follow_scripts(child: &mut Child, handover: &Handover, console: &Console) {
    let now = Instant::now();
    child.scripts.follow(handover.scripts.as_ref(), now);
    child.start_scripts(now, console);
}

/// Lets a process that is about to serve pass datagrams to others, and get those of its connections. It does without if that fails.
fn join(child: &mut Child, processes: &mut Processes) {
    let Some((own, socket)) = processes.add() else { return };
    if child.order(&WorkerCommand::JoinProcesses(own), &[socket.as_fd()]).is_ok() {
        child.links = ToldProcesses::of(own);
        child.tell_of_processes(processes);
    }
}

pub(super) fn configure(child: &mut Child, handover: &Handover, inbox: &SignalQueue) -> Result<(), Failure> {
    let (data, mut fds): (Vec<_>, Vec<_>) =
        handover.files.iter_open().map(|(name, file)| (name.to_vec(), file.as_fd())).unzip();
    let (listening, sockets) = handover.sockets.fds();
    fds.extend(listening);
    fds.extend(handover.logs.iter().map(|(_, file)| file.as_fd()));
    let order = WorkerCommand::Configure(Box::new(Configure {
        source: handover.source.clone(),
        files: texts(&handover.files),
        data,
        sockets,
        logs: handover.logs.iter().map(|(name, _)| name.as_os_str().as_bytes().to_vec()).collect(),
        keys: handover.keys.borrow().clone(),
        identity: handover.identity.clone(),
        is_daemon: handover.is_daemon,
        sign_interval: handover.sign_interval,
    }));
    let deadline = Instant::now() + LOAD_TIMEOUT;
    child.order_configuration(&order, &fds)?;
    drop(order);
    handover.checked.free();
    child.wait_until_configured(deadline, inbox, handover.is_daemon)
}

pub(super) fn texts(files: &MemoryFiles) -> Vec<Text> {
    let text = |(name, text): (&[u8], &[u8])| Text { name: name.to_vec(), text: text.to_vec() };
    files.iter().map(text).collect()
}
