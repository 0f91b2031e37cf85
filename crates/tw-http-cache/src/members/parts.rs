//! Parts of a cache that has several directories: each of its members is a cache.

use std::sync::Arc;
use std::time::Duration;

use tw_cache::{EntryState, Key};
use tw_core::pools::Disks;
use tw_disk::Disk;

use crate::time::seconds;
use crate::zone::{Cache, CacheGroup};
use tw_request::event_loop::Loop;

/// Time after which an operation of a member is slow, if `slow=` does not say another one: no disk that works takes so long.
const MEMBER_SLOW: Duration = Duration::from_secs(2);

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
    pub(crate) fn group(&self) -> Option<Arc<CacheGroup>> {
        match &self.members {
            Some(members) => Some(members.group.clone()),
            None => self.zone.member.group().cloned(),
        }
    }

    /// The member that stores responses with this key, or the cache itself.
    pub(crate) fn owner(self: &Arc<Self>, key: Key) -> &Arc<Self> {
        self.members.as_ref().and_then(|members| members.owner(key)).unwrap_or(self)
    }

    /// Another member that may have a fresh response with this key: it was the owner before, and the owner has none.
    pub(crate) fn elsewhere(self: &Arc<Self>, owner: &Arc<Self>, key: Key) -> Option<&Arc<Self>> {
        let members = self.members.as_ref()?;
        let has_file = |member: &Self| {
            let entry = member.index()?.peek(key)?;
            (entry.holds == EntryState::File).then_some(entry)
        };
        if has_file(owner).is_some() {
            return None;
        }
        let now = seconds(tw_rt::clock::unix().secs);
        // Of a file that was found on the disk it is not known.
        let is_fresh = |valid_until: u32| valid_until == 0 || valid_until > now;
        members.list.iter().find(|member| {
            !Arc::ptr_eq(member, owner) && has_file(member).is_some_and(|entry| is_fresh(entry.valid_until))
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
                let entry = index.peek(key).filter(|entry| entry.holds == EntryState::File)?;
                index.remove_if_sequence(key, entry.sequence)
            });
            member.delete(event_loop, disk, old);
        }
    }

    /// Time after which an operation of the disk is slow; `None` without a breaker.
    pub(crate) fn slow(&self) -> Option<Duration> {
        self.place.slow.or_else(|| self.zone.member.group().map(|_| MEMBER_SLOW))
    }

    /// Disk for the manager of the cache.
    pub(crate) fn manager_disk(&self, disks: &Disks) -> Disk {
        self.own_disk(disks).unwrap_or_else(|| disks.default_disk()).clone()
    }
}
