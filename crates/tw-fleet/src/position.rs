//! Position of a node in the log, and its comparison with the log of the engine: the engine is not believed.

use serde::{Deserialize, Serialize};

use crate::engine::LogState;

/// Record up to which everything is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Identity of the log.
    pub identity: String,
    /// Sequence of the record; 0 before the first one.
    pub sequence: u64,
    /// Time of the record at the engine, in nanoseconds since 1970; 0 if it is not known.
    pub time_ns: u64,
}

/// Relation of a log to a position in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuity {
    /// The log continues the position.
    Continues,
    /// Nothing is known of before.
    FirstTime,
    /// Records behind the position were dropped.
    Gap,
    /// The log is one of before the position: it was restored, or has lost records.
    WentBack,
    /// The log was made anew.
    OtherLog,
}

/// Compares a position with the log of an engine. `time_ns` is that of the record at the position, if the log has it.
pub fn judge(position: Option<&Position>, log: &LogState, time_ns: Option<u64>) -> Continuity {
    let Some(position) = position else { return Continuity::FirstTime };
    if position.identity != log.identity {
        return Continuity::OtherLog;
    }
    if position.sequence > log.last {
        return Continuity::WentBack;
    }
    if position.sequence.saturating_add(1) < log.first {
        return Continuity::Gap;
    }
    // Without the record at the position it is unknown whether the log went back and has grown since. An empty log has
    // not grown.
    if position.sequence != 0 && position.sequence < log.first && log.first <= log.last {
        return Continuity::Gap;
    }
    // A log that went back and has grown since has another record there.
    match time_ns {
        Some(time_ns) if position.time_ns != 0 && position.sequence != 0 && time_ns != position.time_ns => {
            Continuity::WentBack
        }
        _ => Continuity::Continues,
    }
}

impl Continuity {
    /// Reason why everything stored is stale from now on, in words of the log; `None` if nothing was missed.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self::Continues => None,
            Self::FirstTime => Some("this node has not followed the log before"),
            Self::Gap => Some("the log has dropped records that this node has not read"),
            Self::WentBack => Some("the log has lost records that this node has read"),
            Self::OtherLog => Some("the log was created again"),
        }
    }

    /// True if the records that are left of the log may be others than those that were applied.
    pub(crate) fn restarts(self) -> bool {
        matches!(self, Self::WentBack | Self::OtherLog)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_compared_with_the_position() {
        let at = |sequence| Position { identity: "one".to_owned(), sequence, time_ns: 70 };
        let log = |first, last| LogState { identity: "one".to_owned(), first, last };
        for (position, log, time, expected) in [
            (None, log(1, 0), None, Continuity::FirstTime),
            (Some(at(5)), log(1, 5), Some(70), Continuity::Continues),
            (Some(at(5)), log(1, 9), Some(70), Continuity::Continues),
            (Some(at(5)), log(6, 9), None, Continuity::Gap),
            (Some(at(5)), log(6, 5), None, Continuity::Continues),
            (Some(at(5)), log(7, 9), None, Continuity::Gap),
            (Some(at(5)), log(7, 6), None, Continuity::Gap),
            (Some(at(5)), log(1, 4), None, Continuity::WentBack),
            (Some(at(5)), log(1, 9), Some(71), Continuity::WentBack),
            (Some(at(0)), log(1, 0), None, Continuity::Continues),
            (Some(at(0)), log(1, 3), None, Continuity::Continues),
            (Some(at(0)), log(2, 3), None, Continuity::Gap),
            (Some(at(u64::MAX)), log(1, 3), None, Continuity::WentBack),
            (
                Some(at(5)),
                LogState { identity: "two".to_owned(), first: 1, last: 5 },
                Some(70),
                Continuity::OtherLog,
            ),
        ] {
            assert_eq!(judge(position.as_ref(), &log, time), expected, "{position:?} {log:?} {time:?}");
        }
    }
}
