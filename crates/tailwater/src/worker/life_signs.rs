//! Signs of life of a worker process, by which its master knows that all loops turn.

use std::time::{Duration, Instant};

use super::Server;
use crate::ipc::channel::{Channel, WorkerReply};

/// Signs of life for the master.
#[derive(Debug, Clone, Copy)]
pub(super) struct LifeSigns {
    pub(super) every: Duration,
    pub(super) next: Instant,
}

impl LifeSigns {
    /// The first one is due at once.
    pub(super) fn every(every: Duration) -> Self {
        Self { every, next: Instant::now() }
    }

    /// Schedule with another interval. The next sign is due at the old time or earlier: a sign for each of many reloads
    /// would be more than a master accepts.
    pub(super) fn at(self, every: Duration, now: Instant) -> Self {
        Self { every, next: self.next.min(now + every) }
    }

    /// Tells the master that all loops turn, if they do and it is time to. Returns whether it was.
    pub(super) fn show(&mut self, server: &Server, master: &Channel, now: Instant) -> bool {
        if self.next > now {
            return false;
        }
        self.next = now + self.every;
        // A master that does not read, because it is stopped, is not waited for.
        if server.is_turning(now) {
            let _ = master.send_until(now, &WorkerReply::Turning, &[]);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_reloads_makes_no_storm_of_signs() {
        let now = Instant::now();
        let short = Duration::from_secs(1);
        let long = Duration::from_secs(9);
        let signs = LifeSigns { every: long, next: now + Duration::from_secs(5) };
        let later = (0..100).fold(signs, |signs, nth| signs.at(long, now + Duration::from_millis(nth)));
        assert_eq!(later.next, signs.next, "neither earlier nor put off");
        assert_eq!(signs.at(short, now).next, now + short);
        assert_eq!((signs.at(short, now).every, later.every), (short, long));
    }
}
