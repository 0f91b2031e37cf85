//! Worker processes that die, hang, leave by themselves or send invalid messages, and those that do not end.

use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitStatus};
use tailwater_commands::output::console::Console;
use tw_log::Level;

use super::super::child::{Child, Failure, ProcessEnd};
use super::super::handover::Handover;
use super::super::liveness::{LIVENESS_TIMEOUT, LivenessTimer};
use super::super::processes::ProcessState;
use super::super::script_processes::WorkerState;
use super::Workers;
use super::start::begin;
use crate::ipc::channel::{ReadResult, WorkerReply};

/// After two worker processes in a row that lived shorter than this, the next one waits as long.
pub(super) const SHORT_LIFE: Duration = Duration::from_secs(1);

impl Workers {
    /// Replaces the current worker after it has given no sign of life. The new one serves `handover`, or the current
    /// configuration.
    pub(super) fn replace_silent(
        &mut self,
        handover: Option<&Handover>,
        console: &Console,
    ) -> Result<(), Failure> {
        let Some(pid) = self.current.as_ref().map(Child::pid) else { return Ok(()) };
        let timeout = LIVENESS_TIMEOUT.as_secs();
        console.report(
            Level::Alert,
            format_args!(
                "worker process {pid} has given no sign of life for {timeout} s, another one takes its place"
            ),
        );
        self.end_silent(console);
        let handover = handover.unwrap_or(&self.handover);
        let rules = handover.rules.clone();
        let another = begin(handover, &mut self.leaving, &self.inbox, &mut self.links, console);
        if let Some(child) = &mut self.current {
            child.is_silent = another.is_ok();
            // If no other worker can be started, this one stays for as long again.
            child.silence = LivenessTimer::begin(Instant::now());
        }
        self.replace_by(another?, rules);
        Ok(())
    }

    /// Ends those that were replaced because they gave no sign of life: they have had their time to go on.
    pub(super) fn end_silent(&mut self, console: &Console) {
        for child in self.leaving.iter_mut().filter(|child| child.is_silent) {
            let pid = child.pid();
            console.report(Level::Alert, format_args!("worker process {pid} was silent, too, killing it"));
            child.kill();
        }
    }

    /// Starts a process if none serves, with what the last one had.
    pub(super) fn start_missing(&mut self, console: &Console) {
        if self.current.is_some() {
            return;
        }
        self.again_at = None;
        match begin(&self.handover, &mut self.leaving, &self.inbox, &mut self.links, console) {
            Ok(child) => {
                self.begins(child.links.own);
                self.current = Some(child);
                self.rules = self.handover.rules.clone();
                self.send_reloads();
            }
            Err(failure) => {
                console.fault(&failure.into());
                self.again_at = Some(Instant::now() + SHORT_LIFE);
            }
        }
    }

    /// Takes note of the end of a process; `false` if it was none of ours.
    pub(super) fn ended(&mut self, pid: Pid, status: WaitStatus, console: &Console) -> bool {
        let end = ProcessEnd::from(status);
        let now = Instant::now();
        let leaving = self.leaving.iter_mut().map(|child| (child, WorkerState::Leaving));
        let mut all = leaving.chain(self.current.iter_mut().map(|child| (child, WorkerState::Serving)));
        let is_of = |child: &mut Child, worker| child.scripts.ended(pid, end, worker, now, console);
        if let Some(child) = all.find_map(|(child, worker)| is_of(child, worker).then_some(child)) {
            child.start_scripts(now, console);
            return true;
        }
        let reply = |is_discarded: bool| {
            let level = if end.is_clean() || is_discarded { Level::Notice } else { Level::Alert };
            console.report(level, format_args!("worker process {pid} {end}"));
        };
        if let Some(at) = self.leaving.iter().position(|child| child.pid() == pid) {
            self.follow_processes();
            reply(self.leaving.swap_remove(at).is_discarded);
            return true;
        }
        let Some(child) = self.current.take_if(|child| child.pid() == pid) else { return false };
        reply(false);
        self.links.set_state(child.links.own, ProcessState::Gone);
        self.start_another(child.since, console);
        true
    }

    /// Removes a process that does not serve any more without an order to leave.
    pub(super) fn remove_current(&mut self, end: impl FnOnce(&mut Child), console: &Console) {
        if let Some(mut child) = self.current.take() {
            let since = child.since;
            end(&mut child);
            child.stop_listening();
            self.links.set_state(child.links.own, ProcessState::Leaving);
            self.leaving.push(child);
            self.start_another(since, console);
        }
    }

    /// Starts one in the place of one that lived `since` then.
    fn start_another(&mut self, since: Instant, console: &Console) {
        let now = Instant::now();
        let lived_short = now.duration_since(since) < SHORT_LIFE;
        if std::mem::replace(&mut self.short_life, lived_short) && lived_short {
            console.report(
                Level::Alert,
                format_args!("worker processes do not live long, the next one starts in a second"),
            );
            self.again_at = Some(now + SHORT_LIFE);
        } else {
            self.start_missing(console);
        }
    }

    /// Does what is due: starts a worker again, replaces one that is silent, ends those that do not end.
    pub(super) fn expire(&mut self, now: Instant, console: &Console) {
        if self.again_at.is_some_and(|at| at <= now) {
            self.start_missing(console);
        }
        for child in self.leaving.iter_mut().chain(&mut self.current) {
            child.start_scripts(now, console);
        }
        if self.current.as_mut().is_some_and(|child| child.silence.is_too_long(now)) {
            let replaced = self.replace_silent(None, console);
            replaced.unwrap_or_else(|failure| console.fault(&failure.into()));
        }
        for child in &mut self.leaving {
            if child.until.take_if(|until| *until <= now).is_some() {
                console.report(
                    Level::Alert,
                    format_args!("worker process {} does not end, killing it", child.pid()),
                );
                child.kill();
            }
        }
        self.leaving.retain_mut(|child| {
            let is_stuck = child.is_stuck(now);
            if is_stuck {
                let pid = child.pid();
                let why = "has ended except for threads that a disk holds, it is not waited for";
                console.report(Level::Alert, format_args!("worker process {pid} {why}"));
            }
            !is_stuck
        });
    }

    /// Reads unrequested messages of the current worker. Returns true if its loops have turned.
    pub(super) fn listen(&mut self, console: &Console) -> bool {
        let Some(child) = &mut self.current else { return false };
        let pid = child.pid();
        let owed_answer = child.owes_answer;
        let alert = |what: &str| console.report(Level::Alert, format_args!("worker process {pid} {what}"));
        match child.listen() {
            ReadResult::Message(WorkerReply::Turning) => return true,
            ReadResult::Nothing => {}
            ReadResult::Message(WorkerReply::ScriptProcessHangs(script)) => {
                child.scripts.kill(script, console)
            }
            ReadResult::Message(WorkerReply::Refused { .. }) if owed_answer => {}
            ReadResult::Message(WorkerReply::Serving) if owed_answer => {
                alert("took a configuration too late, another one takes its place");
                self.remove_current(|child| child.hang_up(), console);
            }
            // A worker that did not get its log files would go on in those that were moved away, so another one takes
            // its place.
            ReadResult::Message(WorkerReply::Full) => self.replace(console),
            ReadResult::Message(WorkerReply::Leaving) => self.remove_current(|_| {}, console),
            // The worker is about to end, and a signal will tell how. One that has only closed the channel is ended.
            ReadResult::Gone => {
                self.remove_current(|child| child.until = Some(Instant::now() + SHORT_LIFE), console)
            }
            ReadResult::Message(
                WorkerReply::Serving
                | WorkerReply::Refused { .. }
                | WorkerReply::Purged { .. }
                | WorkerReply::Keys(_),
            )
            | ReadResult::Malformed => {
                alert("sent an invalid message, killing it");
                self.remove_current(|child| child.kill(), console);
            }
        }
        false
    }
}
