//! Address validation tokens that were used: each proves the address of one connection only (RFC 9000, section 8.1.4).

use std::collections::HashSet;
use std::mem;
use std::time::{Duration, SystemTime};

use quinn_proto as engine;
use tw_base::FatalMutex;

/// Tokens that are remembered, twice. One that was forgotten can be used once more: the address that it proves is still its own.
const USED_TOKENS_MAX: usize = 4096;

/// Used tokens of an endpoint, the newest and those before them.
#[derive(Default)]
pub(crate) struct UsedTokens(FatalMutex<[HashSet<u128>; 2]>);

impl engine::TokenLog for UsedTokens {
    fn check_and_insert(
        &self,
        nonce: u128,
        _issued: SystemTime,
        _lifetime: Duration,
    ) -> Result<(), engine::TokenReuseError> {
        let mut used = self.0.lock();
        let [newest, older] = &mut *used;
        if older.contains(&nonce) || !newest.insert(nonce) {
            return Err(engine::TokenReuseError);
        }
        if newest.len() >= USED_TOKENS_MAX {
            *older = mem::take(newest);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use engine::TokenLog;

    use super::*;

    #[test]
    fn token_is_used_once() {
        let used = UsedTokens::default();
        let check = |nonce| used.check_and_insert(nonce, SystemTime::UNIX_EPOCH, Duration::ZERO).is_ok();
        assert!(check(1) && !check(1) && check(2));
        for nonce in 0..USED_TOKENS_MAX as u128 {
            check(1000 + nonce);
        }
        assert!(!check(1000), "it is one of the older ones");
    }
}
