//! The worker processes: one that serves, and those that finish open requests.
//!
//! ```text
//! start ─ Begin ─► current ─ Configure ─► current            a reload in place
//!                     ├───── Quit ──────► leaving ─► ended   WINCH, QUIT, or another process takes over
//!                     └ dies, leaves by itself, talks nonsense, cannot be told anything, gives no sign of life
//!                                                            └─► another one, with the same sockets
//! ```
//! A silent process may be stopped or hang. The master orders it to leave, which it does when it continues; if a
//! second one is silent, the first is killed.
//!
//! Whatever a worker process does, the master stays in control: it waits for answers only, at most [`LOAD_TIMEOUT`](super::timeouts::LOAD_TIMEOUT),
//! and not when a signal orders an end meanwhile.

mod serving;
mod start;
mod supervise;

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use tailwater_commands::output::console::{Console, Fault};
use tw_core::event_loop::Reloads;

use self::start::{begin, configure, follow_scripts, sessions_to};
use super::child::{Child, Failure};
use super::handover::Handover;
use super::processes::{ProcessState, Processes};
use super::serving::Serving;
use super::signal_queue::SignalQueue;
use crate::ipc::channel::WorkerCommand;
use crate::worker::sandbox::SandboxRules;

/// Way of adopting a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdoptionMode {
    /// By the process that runs.
    InPlace,
    /// By another process, because this one cannot change as far as that.
    NewProcess,
}

/// All worker processes.
#[derive(Debug)]
pub(super) struct Workers {
    current: Option<Child>,
    leaving: Vec<Child>,
    handover: Handover,
    /// Rights of the serving process: those it needed since its start.
    rules: SandboxRules,
    /// Set if the last process ended too soon.
    short_life: bool,
    /// Time of the next start, if it is delayed.
    again_at: Option<Instant>,
    /// Numbers of reloads, which every process that serves gets.
    reloads: Reloads,
    /// Signals that may be more urgent than the answer of a worker process.
    inbox: Rc<SignalQueue>,
    /// Worker processes of all binaries, which pass datagrams to each other.
    pub(super) links: Processes,
}

impl Workers {
    /// Starts the first one, and waits until it serves. There is none when a signal came that orders the end.
    pub(super) fn start(
        handover: Handover,
        inbox: Rc<SignalQueue>,
        mut links: Processes,
        console: &Console,
    ) -> Result<Self, Fault> {
        let mut leaving = Vec::new();
        let current = match begin(&handover, &mut leaving, &inbox, &mut links, console) {
            Ok(child) => Some(child),
            // The signal stays in the queue and is handled next.
            Err(Failure::Interrupted(_)) => None,
            Err(failure) => return Err(failure.into()),
        };
        let rules = handover.rules.clone();
        let short_life = false;
        let reloads = Reloads::default();
        let mut this =
            Self { current, leaving, handover, rules, short_life, again_at: None, reloads, inbox, links };
        this.begins(this.current.as_ref().and_then(|child| child.links.own));
        Ok(this)
    }

    /// Makes the worker serve `handover`, and waits until it does. On an error the one that runs goes on as before.
    pub(super) fn change(
        &mut self,
        handover: Handover,
        way: AdoptionMode,
        console: &Console,
    ) -> Result<(), Fault> {
        let handover = Handover { keys: self.handover.keys.clone(), ..handover };
        let can_follow = way == AdoptionMode::InPlace && self.can_follow(&handover);
        let followed = match self.current.as_mut().filter(|_| can_follow) {
            Some(child) => configure(child, &handover, &self.inbox).map(|()| {
                follow_scripts(child, &handover, console);
                true
            }),
            None => Ok(false),
        };
        match followed {
            Ok(true) => {}
            Ok(false) | Err(Failure::Full(_)) => {
                let child = begin(&handover, &mut self.leaving, &self.inbox, &mut self.links, console)?;
                self.replace_by(child, handover.rules.clone());
            }
            Err(Failure::Unresponsive(_)) => self.replace_silent(Some(&handover), console)?,
            Err(failure) => {
                if let Failure::Lost(_) = failure {
                    self.remove_current(|child| child.kill(), console);
                }
                return Err(failure.into());
            }
        }
        self.again_at = None;
        self.handover = handover;
        Ok(())
    }

    /// Lets another process take the place of the one that serves.
    fn replace_by(&mut self, child: Child, rules: SandboxRules) {
        // First, so that the other one leaves receiving to this one.
        self.begins(child.links.own);
        self.release(true, sessions_to(&child));
        self.current = Some(child);
        self.rules = rules;
        self.send_reloads();
    }

    /// Takes note that the process with this identity serves.
    fn begins(&mut self, own: Option<u32>) {
        self.links.set_state(own, ProcessState::Serving);
        self.tell_of_processes();
    }

    /// Tells the worker processes of others that they do not know.
    fn tell_of_processes(&mut self) {
        for child in self.leaving.iter_mut().chain(&mut self.current) {
            child.tell_of_processes(&self.links);
        }
    }

    /// Takes note of processes of other binaries, and of those that have ended.
    pub(super) fn follow_processes(&mut self) {
        self.links.follow();
        self.tell_of_processes();
    }

    /// Replaces the process for the configuration that is served already. If no other process can be started, the
    /// serving one continues.
    fn replace(&mut self, console: &Console) {
        match begin(&self.handover, &mut self.leaving, &self.inbox, &mut self.links, console) {
            Ok(child) => self.replace_by(child, self.handover.rules.clone()),
            Err(failure) => console.fault(&failure.into()),
        }
    }

    /// Returns `true` if the serving process can serve `handover` as well: it has the user and the rights, and is known
    /// to serve the configuration that the master has.
    fn can_follow(&self, handover: &Handover) -> bool {
        let fixed = |handover: &Handover| (handover.identity.clone(), handover.env.clone());
        fixed(&self.handover) == fixed(handover)
            && self.rules.covers(&handover.rules)
            && self.current.as_ref().is_some_and(|child| !child.owes_answer)
    }

    /// Sends the numbers of reloads to the process that serves. A process that cannot be reached is noticed by what it has to answer.
    fn send_reloads(&self) {
        let Reloads { succeeded, failed, has_last_failed, last_success } = self.reloads;
        let order = WorkerCommand::Reloads { succeeded, failed, has_last_failed, last_success };
        if let Some(child) = self.current.as_ref().filter(|_| self.reloads != Reloads::default()) {
            let _ = child.order(&order, &[]);
        }
    }

    /// Lets the one that serves take over sessions over datagrams. Without them it serves all the same.
    pub(super) fn take_sessions(&self, from: &OwnedFd) {
        if let Some(child) = &self.current {
            let _ = child.order(&WorkerCommand::TakeSessions, &[from.as_fd()]);
        }
    }
}

#[cfg(test)]
mod tests;
