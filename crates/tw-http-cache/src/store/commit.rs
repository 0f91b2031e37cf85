//! Order of the fills of one key: one at a time puts its response in place.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::Notify;
use tw_cache::{Claim, Commit, CommitRefused, EntryState};

use super::CopiedEntry;
use super::context::StoreContext;

/// Fills of a cache that wait until another one of the same key is in place; its stores share them.
#[derive(Clone, Default)]
pub(super) struct CommitWaiters(Arc<Notify>);

/// Guard of a response that is being put in place: at its end, fills that wait are woken.
pub(super) struct CommitGuard<'a>(&'a CommitWaiters);

impl Drop for CommitGuard<'_> {
    fn drop(&mut self) {
        self.0.notify();
    }
}

impl CommitWaiters {
    /// Begins to put a response in place.
    pub(super) fn begin(&self) -> CommitGuard<'_> {
        CommitGuard(self)
    }

    /// Wakes fills that wait: a response is in place, or will not get there.
    pub(super) fn notify(&self) {
        self.0.notify_waiters();
    }

    /// Returns the permit to put a response in place; `None` if it was purged, or a younger one is there. A new response waits behind
    /// another fill of the same key: a younger one is not lost because an older one is being stored. A copy is not needed then.
    pub(super) async fn take(
        &self,
        cx: StoreContext<'_>,
        mut claim: Claim,
        copied: Option<&CopiedEntry>,
    ) -> Option<Commit> {
        if let Some(copied) = copied {
            return commit_over(cx, claim, copied);
        }
        loop {
            let mut placed = pin!(self.0.notified());
            placed.as_mut().enable();
            claim = match claim.try_commit() {
                Ok(commit) => return Some(commit),
                Err(CommitRefused::Refused(_)) => return None,
                Err(CommitRefused::Busy(claim)) => claim,
            };
            placed.await;
        }
    }
}

/// Returns the permit to change an entry, if that is still the same: another head belongs to another body.
pub(super) fn commit_over(cx: StoreContext<'_>, claim: Claim, was: &CopiedEntry) -> Option<Commit> {
    let key = claim.key();
    let commit = claim.commit().ok()?;
    let entry = cx.index()?.peek(key)?;
    let is_same = (entry.sequence, entry.address) == (was.sequence, was.address);
    (entry.holds == EntryState::File && is_same).then_some(commit)
}
