//! `$cache_why`: why a response was not kept, or not taken from the cache, in a word.

use tw_cache::format::EncodeError;
use tw_cache::policy::NoStoreReason;

/// Why a response was not kept, or not taken from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// What it says of itself, or what the request says.
    Policy(NoStoreReason),
    /// No file can have it.
    Unfit(EncodeError),
    /// `no_cache`
    NoCacheSet,
    /// `cache_min_uses`
    MinUses,
    /// `cache_max_range_offset`
    RangeOffset,
    /// It was waited for until `cache_lock_timeout`.
    LockTimeout,
    /// It was purged while it was on its way.
    Purged,
    /// It has more tags than an entry may have.
    TooManyTags,
    /// The client asked for what is kept, and nothing is (RFC 9111 section 5.2.1.7).
    OnlyIfCached,
    /// The upstream server has found something else to be valid (RFC 9111 section 4.3.4).
    AnotherEtag,
    /// What is valid differs with other fields of requests than before.
    AnotherVary,
    /// There are no threads that could write a file.
    NoThreadPool,
}

impl Reason {
    /// All words that there are.
    pub fn words() -> impl Iterator<Item = &'static str> {
        let own = [
            Self::NoCacheSet,
            Self::MinUses,
            Self::RangeOffset,
            Self::LockTimeout,
            Self::Purged,
            Self::TooManyTags,
            Self::OnlyIfCached,
            Self::AnotherEtag,
            Self::AnotherVary,
            Self::NoThreadPool,
        ];
        let policy = NoStoreReason::ALL.into_iter().map(Self::Policy);
        // What has no room gets a new file, and two may have one word.
        let unfit = [EncodeError::TooLong, EncodeError::Fields].map(Self::Unfit);
        policy.chain(unfit).chain(own).map(Self::word)
    }

    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Policy(why) => why.word(),
            Self::Unfit(why) => why.word(),
            Self::NoCacheSet => "no-cache-set",
            Self::MinUses => "min-uses",
            Self::RangeOffset => "range-offset",
            Self::LockTimeout => "lock-timeout",
            Self::Purged => "purged",
            Self::TooManyTags => "too-many-tags",
            Self::OnlyIfCached => "only-if-cached",
            Self::AnotherEtag => "another-etag",
            Self::AnotherVary => "another-vary",
            Self::NoThreadPool => "no-thread-pool",
        }
    }
}

impl From<NoStoreReason> for Reason {
    fn from(why: NoStoreReason) -> Self {
        Self::Policy(why)
    }
}

impl From<EncodeError> for Reason {
    fn from(why: EncodeError) -> Self {
        Self::Unfit(why)
    }
}
