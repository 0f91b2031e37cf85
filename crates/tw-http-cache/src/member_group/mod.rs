//! Common state of the members of a cache of several directories, and the choice of the member that owns a key.

pub(crate) mod file;
pub(crate) mod group;
pub(crate) mod state;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tw_cache::{Key, RendezvousMember, rendezvous};

use group::MemberGroup;

/// Members of a cache, each of which is a cache `C` of its own.
pub(crate) struct Members<C> {
    pub(crate) list: Box<[Arc<C>]>,
    pub(crate) choice: Box<[RendezvousMember]>,
    pub(crate) group: Arc<MemberGroup<C>>,
}

impl<C> Members<C> {
    /// The member that stores responses with this key.
    pub(crate) fn owner(&self, key: Key) -> Option<&Arc<C>> {
        self.list.get(rendezvous(&self.choice, key)?)
    }
}

/// A future of one member.
pub(crate) type MemberFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Waits for all of them.
pub(crate) async fn all<T>(futures: Vec<MemberFuture<'_, T>>) -> Vec<T> {
    let mut done: Vec<_> = futures.iter().map(|_| None).collect();
    let mut futures: Vec<_> = futures.into_iter().map(Some).collect();
    poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if let Some(running) = future
                && let Poll::Ready(result) = running.as_mut().poll(cx)
            {
                (*future, *done) = (None, Some(result));
            }
        }
        if futures.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
