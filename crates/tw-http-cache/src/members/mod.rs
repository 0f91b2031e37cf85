//! Cache over several directories, its members: each is a cache of its own with index, breaker, loader and limits, and a key
//! belongs to one of them.
//!
//! ```text
//! key ─► rendezvous hashing ─► owner ─► its index ─► hit, or the origin; the owner stores the response
//!                                │ has nothing
//!                                └─► another member has a fresh response: it was the owner before ─► hit
//! ```
//! So a reload that adds, drains or removes members moves no file: a response stays where it is until it is stale, and is fetched
//! for its owner then, which removes the old one. What all members have in common is in [`member_group`](crate::member_group).
//!
//! A member is a cache and not only a store, because its disk may fail by itself: with one index for all, entries of a disk that hangs would
//! have to be found and left out by every search, eviction and snapshot, and a snapshot would wait for the slowest disk.

pub(crate) mod open;
pub(crate) mod open_group;
mod parts;
mod purge;
pub(crate) mod upkeep;
