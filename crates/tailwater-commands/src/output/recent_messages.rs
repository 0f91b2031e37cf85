//! The last warnings and errors of the master, for the control API.

use std::collections::VecDeque;

use tw_base::FatalMutex;
use tw_log::Level;

use crate::output::console::Fault;

/// Messages that are remembered.
const MESSAGES_MAX: usize = 100;

/// The last messages.
#[derive(Debug, Default)]
pub struct RecentMessages(FatalMutex<VecDeque<RecentMessage>>);

/// A message that is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentMessage {
    /// Time, in seconds since 1970.
    pub time: i64,
    /// The message.
    pub fault: Fault,
}

impl RecentMessages {
    /// Remembers a message, unless it is no warning or worse. The oldest of more than `MESSAGES_MAX` is forgotten.
    pub fn add(&self, fault: Fault) {
        if fault.level > Level::Warn {
            return;
        }
        let mut all = self.0.lock();
        all.truncate(MESSAGES_MAX - 1);
        all.push_front(RecentMessage { time: tw_rt::clock::unix().secs, fault });
    }

    /// The messages, the newest first.
    pub fn newest(&self) -> Vec<RecentMessage> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_warnings_are_remembered_and_no_notices() {
        let recent = RecentMessages::default();
        recent.add(Fault { level: Level::Notice, ..Fault::emerg("notice") });
        for number in 0..MESSAGES_MAX + 5 {
            recent.add(Fault { level: Level::Warn, ..Fault::emerg(number.to_string()) });
        }
        let newest = recent.newest();
        assert_eq!(newest.len(), MESSAGES_MAX);
        assert_eq!((&*newest[0].fault.message, &*newest[MESSAGES_MAX - 1].fault.message), ("104", "5"));
    }
}
