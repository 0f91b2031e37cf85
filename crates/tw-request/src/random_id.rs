//! Random identifiers: `$request_id`, keys of WebSocket handshakes.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

/// 16 bytes that cannot be guessed from outside: two hashes of a count under a key that the kernel made for this thread. No
/// system call.
pub fn random_id() -> [u8; 16] {
    thread_local! {
        static KEY: RandomState = RandomState::new();
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }
    let count = COUNT.replace(COUNT.get().wrapping_add(1));
    let half = |which: u8| KEY.with(|key| key.hash_one((count, which)));
    (u128::from(half(0)) << 64 | u128::from(half(1))).to_be_bytes()
}
