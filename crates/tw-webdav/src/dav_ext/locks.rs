//! Locks of WebDAV (RFC 4918 section 6) by the paths of their files, within a number of bytes. No I/O and no clock.
//!
//! ```text
//! /a/b   depth 0           is locked itself; if it is a collection, no names are added or removed
//! /a/b   depth infinity    and everything below it
//! ```
//! Paths are in the order of their bytes, so that everything below a path is one range, and the locks above it are found
//! by a few looks backwards.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_module_support::zone::slab_cost;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Path of a file that is locked.
    ///
    /// Longest path that can be locked: no file has a longer one.
    pub(super) const PATH_MAX: usize = 4096, bytes, "503";
    /// Shared locks of one file.
    pub(super) const SHARED_MAX: usize = 32, count, "503";
}

/// Memory of a lock besides its texts, bytes.
const LOCK_SIZE: usize = 256;

/// Kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockScope {
    Exclusive,
    Shared,
}

/// Extent of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LockDepth {
    Zero,
    Infinity,
}

/// Random part of a lock token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LockToken(pub(super) [u8; 16]);

/// A lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lock {
    pub(super) token: LockToken,
    pub(super) scope: LockScope,
    pub(super) depth: LockDepth,
    pub(super) expires: Instant,
    /// Number of the lock, given by the table.
    pub(super) number: u64,
    /// URI of the locked resource, escaped.
    pub(super) root: Box<[u8]>,
    /// Description of the owner: XML that is written as it is.
    pub(super) owner: Box<[u8]>,
    /// User of the request that locked; others cannot use the token.
    pub(super) user: Box<[u8]>,
}

/// Locks that a request may use: tokens it has submitted, and its user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LockCredentials {
    pub(super) tokens: Vec<LockToken>,
    pub(super) user: Box<[u8]>,
}

/// Reason why there is no lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LockRefused {
    /// Another lock is in the way; the URI of its root.
    Locked(Box<[u8]>),
    /// The zone has no room.
    Full,
}

/// Path and token of a lock.
type ExpiringLock = (Arc<[u8]>, LockToken);

/// Locks within a number of bytes.
pub(super) struct LockTable {
    by_path: BTreeMap<Arc<[u8]>, Vec<Lock>>,
    /// Paths in the order in which their locks expire, each lock with a number of its own.
    by_expiry: BTreeMap<(Instant, u64), ExpiringLock>,
    next_number: u64,
    used: u64,
    capacity: u64,
}

impl Lock {
    fn cost(&self, path: &[u8]) -> u64 {
        slab_cost(LOCK_SIZE + path.len() + self.root.len() + self.owner.len() + self.user.len())
    }

    /// Returns true if the request may change what is locked.
    fn admits(&self, credentials: &LockCredentials) -> bool {
        credentials.tokens.contains(&self.token) && credentials.user == self.user
    }
}

impl LockTable {
    /// An empty table for `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        Self { by_path: BTreeMap::new(), by_expiry: BTreeMap::new(), next_number: 0, used: 0, capacity }
    }

    /// Number of locks.
    pub(super) fn len(&self) -> usize {
        self.by_expiry.len()
    }

    /// Removes the locks that have expired.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(first) = self.by_expiry.first_entry()
            && first.key().0 <= now
        {
            let (path, token) = first.remove();
            self.forget(&path, token);
        }
    }

    /// Locks of `path` itself.
    pub(super) fn at(&self, path: &[u8]) -> &[Lock] {
        self.by_path.get(path).map_or(&[], Vec::as_slice)
    }

    /// Locks that cover `path`: its own, and those of infinite depth above it, from the inside out.
    pub(super) fn covering(&self, path: &[u8]) -> Vec<&Lock> {
        let mut found_locks: Vec<&Lock> = self.at(path).iter().collect();
        let mut next = parent(path).filter(|_| path.len() <= PATH_MAX);
        while let Some(outer) = next {
            // Find the last locked path, in order, that may be `outer` or lie above it. A locked path above `outer` is
            // no longer than their common prefix.
            let range = (Bound::Unbounded, Bound::Included(outer));
            let Some((name, locks)) = self.by_path.range::<[u8], _>(range).next_back() else { break };
            if **name == *outer {
                found_locks.extend(locks.iter().filter(|lock| lock.depth == LockDepth::Infinity));
                next = parent(outer);
                continue;
            }
            let common = name.iter().zip(outer).take_while(|(a, b)| a == b).count();
            let is_whole = common > 0 && outer.get(common) == Some(&b'/');
            next = if is_whole { outer.get(..common) } else { outer.get(..common).and_then(directory) };
        }
        found_locks
    }

    /// Paths below `path` that are locked, with their locks.
    fn below<'t>(&'t self, path: &[u8]) -> impl Iterator<Item = (&'t Arc<[u8]>, &'t [Lock])> + use<'t> {
        let start = if path.ends_with(b"/") { path.to_vec() } else { [path, b"/"].concat() };
        let range = self.by_path.range::<[u8], _>((Bound::Included(start.as_slice()), Bound::Unbounded));
        range
            .take_while(move |(candidate, _)| candidate.starts_with(&start))
            .map(|(path, locks)| (path, locks.as_slice()))
    }

    /// Locks `path`.
    pub(super) fn lock(&mut self, path: &[u8], mut lock: Lock) -> Result<(), LockRefused> {
        let excludes =
            |other: &&Lock| lock.scope == LockScope::Exclusive || other.scope == LockScope::Exclusive;
        let mut others = self.covering(path);
        if lock.depth == LockDepth::Infinity {
            others.extend(self.below(path).flat_map(|(_, locks)| locks));
        }
        if let Some(other) = others.into_iter().find(excludes) {
            return Err(LockRefused::Locked(other.root.clone()));
        }
        let cost = lock.cost(path);
        let has_room = self.at(path).len() < SHARED_MAX && self.used + cost <= self.capacity;
        if path.len() > PATH_MAX || !has_room {
            return Err(LockRefused::Full);
        }
        let path: Arc<[u8]> = path.into();
        self.used += cost;
        lock.number = self.next_number;
        self.next_number += 1;
        self.by_expiry.insert((lock.expires, lock.number), (path.clone(), lock.token));
        self.by_path.entry(path).or_default().push(lock);
        Ok(())
    }

    /// Has the locks that cover `path`, and that the request may use, begin their time anew; returns a copy of the first.
    pub(super) fn refresh(
        &mut self,
        path: &[u8],
        credentials: &LockCredentials,
        now: Instant,
        timeout: Duration,
    ) -> Option<Lock> {
        let own = self.covering(path).into_iter().filter(|lock| lock.admits(credentials));
        let keys: Vec<_> = own.map(|lock| (lock.expires, lock.number)).collect();
        let mut refreshed = None;
        for key in keys {
            let Some((path, token)) = self.by_expiry.remove(&key) else { continue };
            let locks = self.by_path.get_mut(&path).into_iter().flatten();
            for lock in locks.filter(|lock| lock.token == token) {
                lock.expires = now + timeout;
                self.by_expiry.insert((lock.expires, lock.number), (path.clone(), token));
                refreshed.get_or_insert_with(|| lock.clone());
            }
        }
        refreshed
    }

    /// Removes the lock of a token that covers `path`. Returns `None` if there is none, and `false` if it is another user's.
    pub(super) fn unlock(&mut self, path: &[u8], token: LockToken, user: &[u8]) -> Option<bool> {
        let lock = self.covering(path).into_iter().find(|lock| lock.token == token)?;
        let is_own = *lock.user == *user;
        let key = (lock.expires, lock.number);
        if is_own && let Some((path, _)) = self.by_expiry.remove(&key) {
            self.forget(&path, token);
        }
        Some(is_own)
    }

    /// Removes the lock of a token from `path` itself.
    pub(super) fn withdraw(&mut self, path: &[u8], token: LockToken) {
        if let Some(lock) = self.at(path).iter().find(|lock| lock.token == token) {
            let key = (lock.expires, lock.number);
            self.by_expiry.remove(&key);
            self.forget(path, token);
        }
    }

    /// Removes the locks of `path` and of everything below it, which is gone.
    pub(super) fn remove_tree(&mut self, path: &[u8]) {
        let below: Vec<Arc<[u8]>> = self.below(path).map(|(path, _)| path.clone()).collect();
        for path in below.iter().map(|path| &**path).chain([path]) {
            for lock in self.by_path.remove(path).unwrap_or_default() {
                self.by_expiry.remove(&(lock.expires, lock.number));
                self.used -= lock.cost(path);
            }
        }
    }

    /// Root of a lock that keeps the request from changing the content of `path`.
    pub(super) fn obstacle(&self, path: &[u8], credentials: &LockCredentials) -> Option<&[u8]> {
        first_obstacle(self.covering(path), credentials)
    }

    /// Root of a lock that keeps the request from removing `path`, or anything below it.
    pub(super) fn obstacle_in_tree(&self, path: &[u8], credentials: &LockCredentials) -> Option<&[u8]> {
        let mut below = self.below(path);
        self.obstacle(path, credentials)
            .or_else(|| below.find_map(|(_, locks)| first_obstacle(locks.iter().collect(), credentials)))
    }

    /// Root of a lock that keeps the request from adding the name of `path` to its collection, or from removing it.
    pub(super) fn obstacle_to_membership(&self, path: &[u8], credentials: &LockCredentials) -> Option<&[u8]> {
        self.obstacle(parent(path)?, credentials)
    }

    /// Returns true if a lock of this token covers `path`.
    pub(super) fn has_token(&self, path: &[u8], token: LockToken) -> bool {
        self.covering(path).into_iter().any(|lock| lock.token == token)
    }

    /// Removes a lock that is no longer among those that expire.
    fn forget(&mut self, path: &[u8], token: LockToken) {
        let Some(locks) = self.by_path.get_mut(path) else { return };
        if let Some(at) = locks.iter().position(|lock| lock.token == token) {
            self.used -= locks.remove(at).cost(path);
        }
        if locks.is_empty() {
            self.by_path.remove(path);
        }
    }
}

/// Root of the first lock if the request may use none of these, which cover one resource.
fn first_obstacle<'l>(locks: Vec<&'l Lock>, credentials: &LockCredentials) -> Option<&'l [u8]> {
    let first = locks.first()?;
    (!locks.iter().any(|lock| lock.admits(credentials))).then_some(&*first.root)
}

/// Path of the directory that has the last name of `path`; `None` for the topmost one.
fn parent(path: &[u8]) -> Option<&[u8]> {
    directory(path.strip_suffix(b"/").unwrap_or(path))
}

/// Part in front of the last slash; the slash if there is none.
fn directory(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    path.get(..slash.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    use LockDepth::{Infinity, Zero};
    use LockScope::{Exclusive, Shared};

    const MINUTE: Duration = Duration::from_secs(60);

    fn lock(number: u8, scope: LockScope, depth: LockDepth, now: Instant) -> Lock {
        Lock {
            token: LockToken([number; 16]),
            scope,
            depth,
            expires: now + MINUTE,
            number: 0,
            root: [number].into(),
            owner: [].into(),
            user: (*b"u").into(),
        }
    }

    fn credentials(tokens: &[u8], user: &str) -> LockCredentials {
        let tokens = tokens.iter().map(|number| LockToken([*number; 16])).collect();
        LockCredentials { tokens, user: user.as_bytes().into() }
    }

    fn covering(table: &LockTable, path: &str) -> Vec<u8> {
        table.covering(path.as_bytes()).iter().map(|lock| lock.root[0]).collect()
    }

    fn table(locks: &[(&str, u8, LockScope, LockDepth)]) -> (LockTable, Instant) {
        let mut table = LockTable::new(1 << 20);
        let now = Instant::now();
        for (path, number, scope, depth) in locks {
            table.lock(path.as_bytes(), lock(*number, *scope, *depth, now)).unwrap();
        }
        (table, now)
    }

    #[test]
    fn locks_of_infinite_depth_cover_what_is_below() {
        let (table, _) = table(&[
            ("/", 9, Shared, Infinity),
            ("/a", 1, Shared, Infinity),
            ("/a/b", 2, Shared, Zero),
            ("/a/b/c", 3, Shared, Infinity),
            ("/a/b/c-d", 4, Shared, Infinity),
            ("/a/b/ca", 5, Shared, Infinity),
            ("/ab", 6, Shared, Infinity),
        ]);
        for (path, expected) in [
            ("/", &[9][..]),
            ("/x", &[9]),
            ("/a", &[1, 9]),
            ("/a/b", &[2, 1, 9]),
            ("/a/b/x", &[1, 9]),
            ("/a/b/c", &[3, 1, 9]),
            ("/a/b/c/x/y/z", &[3, 1, 9]),
            ("/a/b/cc/x", &[1, 9]),
            ("/a/b/c-d/x", &[4, 1, 9]),
            ("/abc", &[9]),
            ("/ab/c", &[6, 9]),
            ("/a/z/z/z", &[1, 9]),
        ] {
            assert_eq!(covering(&table, path), expected, "{path}");
        }
    }

    #[test]
    fn conflicting_locks_are_refused() {
        let (mut table, now) =
            table(&[("/s", 1, Shared, Zero), ("/e", 2, Exclusive, Infinity), ("/d/f", 3, Exclusive, Zero)]);
        for (path, scope, depth, refused) in [
            ("/s", Exclusive, Zero, Some(1)),
            ("/e", Shared, Zero, Some(2)),
            ("/e/x/y", Shared, Zero, Some(2)),
            ("/d", Shared, Infinity, Some(3)),
            ("/", Exclusive, Infinity, Some(3)),
            ("/s", Shared, Zero, None),
            ("/d", Exclusive, Zero, None),
            ("/ex", Exclusive, Infinity, None),
        ] {
            let done = table.lock(path.as_bytes(), lock(7, scope, depth, now));
            let expected = refused.map_or(Ok(()), |root: u8| Err(LockRefused::Locked([root].into())));
            assert_eq!(done, expected, "{path}");
        }
    }

    /// Question about a path.
    type Look = for<'t> fn(&'t LockTable, &[u8], &LockCredentials) -> Option<&'t [u8]>;

    #[test]
    fn changes_need_tokens_of_the_same_user() {
        let (table, _) = table(&[
            ("/d", 1, Exclusive, Zero),
            ("/t", 2, Exclusive, Infinity),
            ("/d/x/f", 3, Shared, Zero),
            ("/d/x/f", 4, Shared, Zero),
        ]);
        let (content, tree, member): (Look, Look, Look) =
            (LockTable::obstacle, LockTable::obstacle_in_tree, LockTable::obstacle_to_membership);
        for (look, path, tokens, user, expected) in [
            (content, "/d/f", &[][..], "u", None),
            (member, "/d/f", &[], "u", Some(1)),
            (member, "/d/f", &[1], "u", None),
            (member, "/d/f", &[1], "other", Some(1)),
            (content, "/t/a/b", &[], "u", Some(2)),
            (content, "/t/a/b", &[1, 2], "u", None),
            (content, "/d/x/f", &[], "u", Some(3)),
            (content, "/d/x/f", &[4], "u", None),
            (tree, "/d/x", &[], "u", Some(3)),
            (tree, "/d", &[1], "u", Some(3)),
            (tree, "/d", &[1, 3], "u", None),
            (tree, "/none", &[], "u", None),
        ] {
            let value = look(&table, path.as_bytes(), &credentials(tokens, user)).map(<[u8]>::to_vec);
            assert_eq!(value, expected.map(|root| vec![root]), "{path} {tokens:?} {user}");
        }
    }

    #[test]
    fn locks_expire_are_refreshed_and_removed() {
        let (mut table, now) = table(&[
            ("/a", 1, Exclusive, Infinity),
            ("/b", 2, Exclusive, Zero),
            ("/c/d", 3, Exclusive, Zero),
        ]);
        let token = LockToken([1; 16]);
        assert_eq!(table.refresh(b"/a/x", &credentials(&[1], "other"), now, MINUTE), None);
        let refreshed = table.refresh(b"/a/x", &credentials(&[1], "u"), now, 2 * MINUTE).unwrap();
        assert_eq!((refreshed.token, refreshed.expires), (token, now + 2 * MINUTE));
        table.expire(now + MINUTE);
        assert_eq!((table.len(), covering(&table, "/a/x"), covering(&table, "/b")), (1, vec![1], vec![]));
        assert_eq!(table.unlock(b"/b", token, b"u"), None);
        assert_eq!(table.unlock(b"/a/x", token, b"other"), Some(false));
        assert_eq!(table.unlock(b"/a/x", token, b"u"), Some(true));
        assert_eq!((table.len(), table.used), (0, 0));
        for (path, number) in [("/t", 1), ("/t/u/v", 2), ("/tt", 3)] {
            table.lock(path.as_bytes(), lock(number, Exclusive, Zero, now)).unwrap();
        }
        table.remove_tree(b"/t");
        assert_eq!((table.len(), covering(&table, "/tt")), (1, vec![3]));
    }

    #[test]
    fn full_table_refuses_until_locks_expire() {
        let now = Instant::now();
        let mut table = LockTable::new(1024);
        assert_eq!(table.lock(b"/a", lock(1, Exclusive, Zero, now)), Ok(()));
        assert_eq!(table.lock(b"/b", lock(2, Exclusive, Zero, now + MINUTE)), Ok(()));
        assert_eq!(table.lock(b"/c", lock(3, Exclusive, Zero, now)), Err(LockRefused::Full));
        table.expire(now + MINUTE);
        assert_eq!(table.lock(b"/c", lock(3, Exclusive, Zero, now)), Ok(()));
        let mut table = LockTable::new(1 << 20);
        for number in 0..SHARED_MAX as u8 {
            assert_eq!(table.lock(b"/a", lock(number, Shared, Zero, now)), Ok(()));
        }
        assert_eq!(table.lock(b"/a", lock(99, Shared, Zero, now)), Err(LockRefused::Full));
        let long = ["/".to_owned(), "a".repeat(PATH_MAX)].concat();
        assert_eq!(table.lock(long.as_bytes(), lock(1, Shared, Zero, now)), Err(LockRefused::Full));
    }
}
