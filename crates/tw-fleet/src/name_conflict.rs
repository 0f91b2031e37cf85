//! Notices that another server has the name of this node: both write the summary of the name in turn.

use std::time::Duration;

/// Summaries of another process after one of ours, until that is a conflict. During an upgrade the process before may write one more.
const TURNS: u32 = 2;
/// Time without a summary of another process after which the conflict is over.
const OVER_AFTER: Duration = Duration::from_secs(30);

/// Writers of the summary of this node, as they are read back.
#[derive(Debug, Default)]
pub(crate) struct NameWatch {
    was_ours: bool,
    turns: u32,
    last_other: Duration,
}

impl NameWatch {
    /// Notes the writer of a summary. Returns true while another server has the name.
    pub(crate) fn note(&mut self, is_ours: bool, now: Duration) -> bool {
        if is_ours {
            if now.saturating_sub(self.last_other) >= OVER_AFTER {
                self.turns = 0;
            }
        } else {
            self.turns = self.turns.saturating_add(u32::from(self.was_ours));
            self.last_other = now;
        }
        self.was_ours = is_ours;
        self.turns >= TURNS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_in_turn_are_a_conflict_until_one_is_silent() {
        let mut watch = NameWatch::default();
        let at = Duration::from_secs;
        // The process before this one, and the last summary of it.
        assert!(!watch.note(false, at(0)) && !watch.note(true, at(1)) && !watch.note(false, at(2)));
        assert!(!watch.note(true, at(6)));
        assert!(watch.note(false, at(7)) && watch.note(true, at(11)));
        assert!(watch.note(true, at(36)) && !watch.note(true, at(37)));
    }
}
