//! Silence of a script process that owes something: it is asked for a sign of life, and reported if it gives none.

use std::task::{Context, Poll};
use std::time::Duration;

use tw_rt::Deadline;
use tw_script::{Environment, HostMessage, Load, ScriptId, Settings};

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Time in which a script process answers a question of the server.
    const SILENCE_MAX: Duration = Duration::from_secs(5), time, "the process is killed, and another one is started";
}

/// Time without a message after which a process with calls is asked whether it answers.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// Script of that question, without modules, and its limits.
const PROBE: ScriptId = ScriptId::MAX;
const PROBE_TIMEOUT_MS: u32 = 1000;
const PROBE_MEMORY_SIZE: u64 = 4 << 20;

/// Reason why a connection goes on.
pub(crate) enum Woken {
    ToRead,
    ToProbe,
    /// The process has not answered.
    Silent,
}

/// Time without a message of a process that has calls.
pub(crate) struct Silence {
    deadline: Deadline,
    stage: SilenceStage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SilenceStage {
    /// The process has nothing to say.
    Unwatched,
    Watched,
    /// The process was asked for a sign of life.
    Probed,
}

/// Question to which a process answers with a sign of life: that it has loaded nothing, under a number of its own.
pub(crate) fn probe_messages() -> [HostMessage; 2] {
    let settings =
        Settings { timeout_ms: PROBE_TIMEOUT_MS, memory_size: PROBE_MEMORY_SIZE, context_reuse_count: 0 };
    let load = Load {
        script: PROBE,
        modules: Vec::new(),
        sources: Vec::new(),
        imports: Vec::new(),
        settings,
        environment: Environment::default(),
    };
    [HostMessage::Load(Box::new(load)), HostMessage::Unload { script: PROBE }]
}

impl Silence {
    pub(crate) fn new() -> Self {
        Self { deadline: Deadline::new(), stage: SilenceStage::Unwatched }
    }

    /// A message has arrived.
    pub(crate) fn end(&mut self) {
        self.stage = SilenceStage::Unwatched;
    }

    /// Polls for the end of a wait; `is_watched` is true while the process owes something.
    pub(crate) fn poll(&mut self, is_watched: bool, cx: &mut Context<'_>) -> Poll<Woken> {
        if !is_watched {
            self.stage = SilenceStage::Unwatched;
            return Poll::Pending;
        }
        if self.stage == SilenceStage::Unwatched {
            self.stage = SilenceStage::Watched;
            self.deadline.set(PROBE_AFTER);
        }
        if self.deadline.poll_elapsed(cx).is_pending() {
            return Poll::Pending;
        }
        if self.stage == SilenceStage::Probed {
            return Poll::Ready(Woken::Silent);
        }
        self.stage = SilenceStage::Probed;
        self.deadline.set(SILENCE_MAX);
        Poll::Ready(Woken::ToProbe)
    }
}
