//! Cache over several directories, its members: each is a cache of its own with index, breaker, loader and limits, and a key
//! belongs to one of them.
//!
//! ```text
//! key ─► rendezvous hashing ─► owner ─► its index ─► hit, or the origin; the owner stores the response
//!                                │ has nothing
//!                                └─► another member has a fresh response: it was the owner before ─► hit
//! ```
//! So a reload that adds, drains or removes members moves no file: a response stays where it is until it is stale, and is fetched
//! for its owner then, which removes the old one. What all members have in common is in [`group`].

pub(crate) mod file;
pub(crate) mod group;
pub(crate) mod state;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tw_cache::{EntryState, Key, RendezvousMember, rendezvous};
use tw_core::pools::Disks;
use tw_disk::Disk;

use super::cache_path::CachePath;
use super::store::files::temp_file::WRITE_BACK_SIZE;
use super::zone::{Cache, CacheZone};
use crate::event_loop::Loop;
use crate::http::cache::time::seconds;
use group::MemberGroup;

/// Members of a cache.
pub(crate) struct Members {
    pub(crate) list: Box<[Arc<Cache>]>,
    choice: Box<[RendezvousMember]>,
    pub(crate) group: Arc<MemberGroup>,
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

impl Members {
    /// Declares the members of `place`; those of `before` with the same directories go on.
    pub(crate) fn declare(name: &[u8], place: &CachePath, before: Option<&Arc<Cache>>) -> Self {
        let group = before.and_then(|before| before.group()).unwrap_or_default();
        let member = |path: &super::cache_path::MemberPath| {
            let place = place.of_member(path);
            let known = before.and_then(|before| before.parts().find(|part| part.place.goes_on_in(&place)));
            let zone = match known {
                Some(known) => {
                    known.zone.resize(&place);
                    known.zone.clone()
                }
                None => Arc::new(CacheZone::new(&place)),
            };
            zone.member.join(&group);
            Arc::new(Cache {
                name: name.into(),
                place,
                zone,
                write_back_size: WRITE_BACK_SIZE,
                members: None,
                fleet: None,
            })
        };
        let list: Box<[_]> = place.members.iter().map(member).collect();
        let choice = place.members.iter();
        let choice = choice.map(|path| RendezvousMember::new(path.dir.to_bytes(), path.weight)).collect();
        Self { list, choice, group }
    }
}

impl Cache {
    /// The caches that have directories: the members, or this one.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Self> {
        let (own, members) = match &self.members {
            Some(members) => (None, &*members.list),
            None => (Some(self), Default::default()),
        };
        own.into_iter().chain(members.iter().map(|member| &**member))
    }

    /// Caches that have directories, to be held.
    pub(crate) fn held_parts(self: &Arc<Self>) -> &[Arc<Self>] {
        match &self.members {
            Some(members) => &members.list,
            None => std::slice::from_ref(self),
        }
    }

    /// Common state of its members.
    pub(crate) fn group(&self) -> Option<Arc<MemberGroup>> {
        match &self.members {
            Some(members) => Some(members.group.clone()),
            None => self.zone.member.group().cloned(),
        }
    }

    /// The member that stores responses with this key, or the cache itself.
    pub(crate) fn owner(self: &Arc<Self>, key: Key) -> &Arc<Self> {
        let owner = |members: &Members| rendezvous(&members.choice, key);
        self.members.as_ref().and_then(|members| members.list.get(owner(members)?)).unwrap_or(self)
    }

    /// Another member that may have a fresh response with this key: it was the owner before, and the owner has none.
    pub(crate) fn elsewhere(self: &Arc<Self>, owner: &Arc<Self>, key: Key) -> Option<&Arc<Self>> {
        let members = self.members.as_ref()?;
        let has_file = |member: &Self| {
            let found = member.index()?.peek(key)?;
            (found.holds == EntryState::File).then_some(found)
        };
        if has_file(owner).is_some() {
            return None;
        }
        let now = seconds(tw_rt::clock::unix().secs);
        // Of a file that was found on the disk it is not known.
        let is_fresh = |valid_until: u32| valid_until == 0 || valid_until > now;
        members.list.iter().find(|member| {
            !Arc::ptr_eq(member, owner) && has_file(member).is_some_and(|found| is_fresh(found.valid_until))
        })
    }

    /// Removes older responses with this key from the other members, after one was stored in this one.
    pub(crate) fn remove_elsewhere(self: &Arc<Self>, event_loop: &std::rc::Rc<Loop>, disk: &Disk, key: Key) {
        let Some(group) = self.zone.member.group() else { return };
        for member in group.members() {
            if member.zone.id == self.zone.id {
                continue;
            }
            let old = member.index().and_then(|index| {
                let found = index.peek(key).filter(|found| found.holds == EntryState::File)?;
                index.remove_if_sequence(key, found.sequence)
            });
            member.delete(event_loop, disk, old);
        }
    }
}

/// Time after which an operation of a member is slow, if `slow=` does not say another one: no disk that works takes so long.
const MEMBER_SLOW: Duration = Duration::from_secs(2);

impl Cache {
    /// Time after which an operation of the disk is slow; `None` without a breaker.
    pub(crate) fn slow(&self) -> Option<Duration> {
        self.place.slow.or_else(|| self.zone.member.group().map(|_| MEMBER_SLOW))
    }

    /// Disk for the manager of the cache.
    pub(crate) fn manager_disk(&self, disks: &Disks) -> Disk {
        self.own_disk(disks).unwrap_or_else(|| disks.default_disk()).clone()
    }
}
