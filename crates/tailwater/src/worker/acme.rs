//! Automatic certificates: one thread of a process orders them, started when the first is needed.

use std::fmt;
use std::sync::Arc;

use tailwater_commands::output::console::Console;
use tw_acme::{Agent, LogFn};
use tw_app::Generation;
use tw_base::Errno;
use tw_log::Level;

/// Client that orders certificates, once one is needed.
#[derive(Debug, Default)]
pub(super) struct Acme {
    agent: Option<Agent>,
    role: OrderingRole,
}

/// Role of this process in ordering.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum OrderingRole {
    /// Orders nothing: it does not serve yet, or leaves that to another process.
    #[default]
    Standby,
    Active,
}

impl Acme {
    /// Sees to the certificates of `generation`. Waits until those are there that are kept, or too long.
    pub(super) fn follow(&mut self, generation: &Generation, console: &Console) {
        if self.agent.is_none() && !generation.acme().works.is_empty() {
            match Agent::start() {
                Ok(agent) => self.agent = Some(agent),
                Err(error) => {
                    // The servers go on with temporary certificates.
                    let errno = Errno::from(&error);
                    let message =
                        format_args!("acme: starting a thread failed ({errno}), no certificates are ordered");
                    console.report(Level::Alert, message);
                    return;
                }
            }
        }
        let Some(agent) = &self.agent else { return };
        let log = (*generation.error_log).clone();
        let log_line: LogFn =
            Arc::new(move |level, message: fmt::Arguments<'_>| log.write(level, None, message));
        agent.set_config(generation.acme().clone(), log_line);
        if self.role == OrderingRole::Active {
            agent.start_ordering();
        }
    }

    /// Orders what is wanted, from now on.
    pub(super) fn begin(&mut self) {
        self.role = OrderingRole::Active;
        if let Some(agent) = &self.agent {
            agent.start_ordering();
        }
    }

    /// Leaves it to another process.
    pub(super) fn retire(&mut self) {
        self.role = OrderingRole::Standby;
        // The agent ends with its last message, and releases the locks of the state directories.
        if let Some(agent) = self.agent.take() {
            agent.stop();
        }
    }
}
