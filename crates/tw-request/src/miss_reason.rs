//! `$cache_why`: the reason, in a word, why a response was not stored or not taken from the cache.

use tw_cache::format::EncodeError;
use tw_cache::policy::NoStoreReason;

/// Reason why a response was not stored, or not taken from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissReason {
    /// Fields of the response or the request forbid it.
    Policy(NoStoreReason),
    /// The response does not fit the file format.
    Unfit(EncodeError),
    /// `no_cache`
    NoCacheSet,
    /// `cache_min_uses`
    MinUses,
    /// `cache_max_range_offset`
    RangeOffset,
    /// The wait for another request ended by `cache_lock_timeout`.
    LockTimeout,
    /// The response was purged while it was received.
    Purged,
    /// The response has more tags than an entry may have.
    TooManyTags,
    /// The client sent `only-if-cached`, and no response is stored (RFC 9111 section 5.2.1.7).
    OnlyIfCached,
    /// The upstream server validated another representation (RFC 9111 section 4.3.4).
    AnotherEtag,
    /// The validated response varies with other fields than before.
    AnotherVary,
    /// There is no thread pool to write a file.
    NoThreadPool,
    /// The disk of the cache is slow or fails (`slow=`).
    SlowDisk,
    /// The upstream server answered before the disk (`hedge=`).
    Hedged,
    /// `cache_background_max`: the stale response is not updated now.
    BackgroundMax,
    /// `cache_quota`: the response is larger than the quota.
    Quota,
    /// The request has a body that is not in the key.
    RequestBody,
}

impl MissReason {
    /// Returns all words.
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
            Self::SlowDisk,
            Self::Hedged,
            Self::BackgroundMax,
            Self::Quota,
            Self::RequestBody,
        ];
        let policy = NoStoreReason::ALL.into_iter().map(Self::Policy);
        // What has no room gets a new file, and two may have one word.
        let unfit = [EncodeError::TooLong, EncodeError::Fields].map(Self::Unfit);
        policy.chain(unfit).chain(own).map(Self::word)
    }

    /// Word of the reason.
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
            Self::SlowDisk => "slow-disk",
            Self::Hedged => "hedged",
            Self::BackgroundMax => "background-max",
            Self::Quota => "quota",
            Self::RequestBody => "request-body",
        }
    }
}

impl From<NoStoreReason> for MissReason {
    fn from(why: NoStoreReason) -> Self {
        Self::Policy(why)
    }
}

impl From<EncodeError> for MissReason {
    fn from(why: EncodeError) -> Self {
        Self::Unfit(why)
    }
}
