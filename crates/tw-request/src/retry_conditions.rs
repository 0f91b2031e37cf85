//! Words of `proxy_next_upstream` and `proxy_cache_use_stale` as bits.

use tw_connect::UpstreamFailure;

/// Words of a directive that takes conditions.
pub struct RetryWords {
    /// Syntax of its arguments.
    pub syntax: &'static str,
    /// Bit of each word.
    pub words: &'static [(&'static str, u32)],
}

/// Conditions on which a request goes to the next server: words of `proxy_next_upstream`, and the failure that occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOn(u32);

impl RetryOn {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// `error`
    pub const ERROR: Self = Self(1);
    /// `timeout`
    pub const TIMEOUT: Self = Self(1 << 1);
    /// `invalid_header`
    pub const INVALID_HEADER: Self = Self(1 << 2);
    /// `non_idempotent`
    pub const NON_IDEMPOTENT: Self = Self(1 << 3);
    /// `denied`
    pub const DENIED: Self = Self(1 << 4);
    /// `updating`: another request is revalidating the expired response.
    pub const UPDATING: Self = Self(1 << 5);
    const STATUSES: [(u16, Self); 7] = [
        (500, Self(1 << 8)),
        (502, Self(1 << 9)),
        (503, Self(1 << 10)),
        (504, Self(1 << 11)),
        (403, Self(1 << 12)),
        (404, Self(1 << 13)),
        (429, Self(1 << 14)),
    ];

    const OFF: u32 = 1 << 31;
    /// Words common to all directives; `off` is none of them.
    const COMMON: &'static [(&'static str, u32)] =
        &[("error", Self::ERROR.0), ("timeout", Self::TIMEOUT.0), ("off", Self::OFF)];
    const STATUS_WORDS: &'static [(&'static str, u32)] = &[
        ("invalid_header", Self::INVALID_HEADER.0),
        ("http_500", Self::STATUSES[0].1.0),
        ("http_503", Self::STATUSES[2].1.0),
        ("http_403", Self::STATUSES[4].1.0),
        ("http_404", Self::STATUSES[5].1.0),
        ("http_429", Self::STATUSES[6].1.0),
    ];
    /// Words for HTTP servers, which may be gateways themselves.
    const GATEWAY_WORDS: &'static [(&'static str, u32)] =
        &[("http_502", Self::STATUSES[1].1.0), ("http_504", Self::STATUSES[3].1.0)];
    const DENIED_WORD: &'static [(&'static str, u32)] = &[("denied", Self::DENIED.0)];
    const RISKY_WORD: &'static [(&'static str, u32)] = &[("non_idempotent", Self::NON_IDEMPOTENT.0)];
    const UPDATING_WORD: &'static [(&'static str, u32)] = &[("updating", Self::UPDATING.0)];

    /// Words of `next_upstream`.
    pub const WORDS: RetryWords = RetryWords {
        syntax: "error | timeout | denied | invalid_header | http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | non_idempotent | off …",
        words: &joined::<13>(&[
            Self::COMMON,
            Self::STATUS_WORDS,
            Self::GATEWAY_WORDS,
            Self::DENIED_WORD,
            Self::RISKY_WORD,
        ]),
    };
    /// Words of `next_upstream` for applications, which are not gateways.
    pub const WORDS_OF_APPLICATIONS: RetryWords = RetryWords {
        syntax: "error | timeout | denied | invalid_header | http_500 | http_503 | http_403 | http_404 | http_429 | non_idempotent | off …",
        words: &joined::<11>(&[Self::COMMON, Self::STATUS_WORDS, Self::DENIED_WORD, Self::RISKY_WORD]),
    };
    /// Words of `next_upstream` for memcached.
    pub const WORDS_OF_MEMCACHED: RetryWords = RetryWords {
        syntax: "error | timeout | denied | invalid_response | not_found | off …",
        words: &joined::<6>(&[
            Self::COMMON,
            Self::DENIED_WORD,
            &[("invalid_response", Self::INVALID_HEADER.0), ("not_found", Self::STATUSES[5].1.0)],
        ]),
    };
    /// Words of `next_upstream` for tunnels, whose servers send no response that could be read.
    pub const WORDS_OF_TUNNELS: RetryWords = RetryWords {
        syntax: "error | timeout | denied | off …",
        words: &joined::<4>(&[Self::COMMON, Self::DENIED_WORD]),
    };
    /// Words of `cache_use_stale`.
    pub const STALE_WORDS: RetryWords = RetryWords {
        syntax: "error | timeout | invalid_header | updating | http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | off …",
        words: &joined::<12>(&[Self::COMMON, Self::STATUS_WORDS, Self::GATEWAY_WORDS, Self::UPDATING_WORD]),
    };
    /// Words of `cache_use_stale` for applications.
    pub const STALE_WORDS_OF_APPLICATIONS: RetryWords = RetryWords {
        syntax: "error | timeout | invalid_header | updating | http_500 | http_503 | http_403 | http_404 | http_429 | off …",
        words: &joined::<10>(&[Self::COMMON, Self::STATUS_WORDS, Self::UPDATING_WORD]),
    };

    /// Creates it from the bits of words; `off` clears all others.
    pub fn of_bits(bits: u32) -> Self {
        if bits & Self::OFF == 0 { Self(bits) } else { Self::NONE }
    }

    /// The word for a status; nothing for others.
    pub fn of_status(status: u16) -> Self {
        Self::STATUSES
            .iter()
            .find(|(candidate, _)| *candidate == status)
            .map_or(Self::NONE, |(_, next)| *next)
    }

    /// The word of `proxy_next_upstream` that a failure is.
    pub fn of_failure(failure: &UpstreamFailure) -> Self {
        use UpstreamFailure as F;
        match failure {
            // DIFF(nginx): whom a server of HTTP/2 has refused is asked for again elsewhere, as after an error.
            F::Connect(_)
            | F::Handshake(_)
            | F::Alpn
            | F::Send(_)
            | F::Receive(_)
            | F::Refused(_)
            | F::Closed => Self::ERROR,
            F::NoPeer
            | F::QueueFull
            | F::QueueTimeout
            | F::NoName(_)
            | F::Identity(_)
            | F::ConnectionLimit(_)
            | F::Unsent
            | F::Unsayable(_) => Self::NONE,
            F::Shared(failure) => Self::of_failure(failure),
            F::Denied => Self::DENIED,
            F::ConnectTimeout | F::SendTimeout | F::ReceiveTimeout => Self::TIMEOUT,
            F::Invalid(_) => Self::INVALID_HEADER,
            F::Status(status) => Self::of_status(*status),
        }
    }

    /// The word of `cache_use_stale` that a failure is.
    pub fn stale_of_failure(failure: &UpstreamFailure) -> Self {
        use UpstreamFailure as F;
        match failure {
            F::NoPeer | F::QueueFull | F::QueueTimeout | F::NoName(_) => Self::ERROR,
            _ => Self::of_failure(failure),
        }
    }

    /// Returns true if the server could not respond, rather than would not: an error in the terms of RFC 5861.
    pub fn is_failure(self) -> bool {
        let refusals = [403, 404, 429].map(Self::of_status);
        self != Self::NONE && !refusals.contains(&self)
    }

    /// Returns true if all of `what`, which is not empty, is in it.
    pub fn has(self, what: Self) -> bool {
        what != Self::NONE && self.0 & what.0 == what.0
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// All words of several lists, `N` in all.
const fn joined<const N: usize>(lists: &[&[(&'static str, u32)]]) -> [(&'static str, u32); N] {
    let mut all = [("", 0); N];
    let mut list = 0;
    let mut filled = 0;
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            all[filled] = lists[list][at];
            (at, filled) = (at + 1, filled + 1);
        }
        list += 1;
    }
    assert!(filled == N, "N is the number of words");
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directive_has_its_own_words() {
        let has = |words: &[(&str, u32)], word: &str| words.iter().any(|(candidate, _)| *candidate == word);
        let lists = [
            RetryOn::WORDS,
            RetryOn::STALE_WORDS,
            RetryOn::WORDS_OF_APPLICATIONS,
            RetryOn::STALE_WORDS_OF_APPLICATIONS,
            RetryOn::WORDS_OF_MEMCACHED,
            RetryOn::WORDS_OF_TUNNELS,
        ];
        for (word, expected) in [
            ("error", [true, true, true, true, true, true]),
            ("off", [true, true, true, true, true, true]),
            ("http_429", [true, true, true, true, false, false]),
            ("http_502", [true, true, false, false, false, false]),
            ("http_504", [true, true, false, false, false, false]),
            ("non_idempotent", [true, false, true, false, false, false]),
            ("denied", [true, false, true, false, true, true]),
            ("updating", [false, true, false, true, false, false]),
            ("not_found", [false, false, false, false, true, false]),
            ("invalid_response", [false, false, false, false, true, false]),
        ] {
            assert_eq!(lists.each_ref().map(|list| has(list.words, word)), expected, "{word}");
        }
    }
}
