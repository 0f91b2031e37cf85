//! Counters by name: for limits, and for variables.

use super::node::{Average, CACHE_WORDS, CLASS_WORDS, TrafficNode};

/// A number of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stat {
    Requests,
    Received,
    Sent,
    /// Responses with a class of statuses, by index.
    Class(usize),
    /// Responses with a cache status, by index.
    Cache(usize),
    /// Sum of all durations.
    Time,
    /// Average of recent durations.
    AverageTime,
}

impl Stat {
    /// Counter that a limit names.
    pub(super) fn of_limit(word: &[u8]) -> Option<Self> {
        match word {
            b"request" => Some(Self::Requests),
            b"in" => Some(Self::Received),
            b"out" => Some(Self::Sent),
            _ => Self::of_class(word).or_else(|| {
                let cache = word.strip_prefix(b"cache_")?;
                CACHE_WORDS.iter().position(|word| word.as_bytes() == cache).map(Self::Cache)
            }),
        }
    }

    /// Number that `vhost_traffic_status_set_by_filter` names.
    pub(super) fn of_set(word: &[u8]) -> Option<Self> {
        match word {
            b"requestCounter" => Some(Self::Requests),
            b"inBytes" => Some(Self::Received),
            b"outBytes" => Some(Self::Sent),
            b"requestMsecCounter" => Some(Self::Time),
            b"requestMsec" => Some(Self::AverageTime),
            _ => Self::of_class(word).or_else(|| {
                let (first, rest) = word.strip_prefix(b"cache")?.split_first()?;
                let is_meant = |word: &&str| {
                    word.as_bytes().split_first().is_some_and(|(candidate, behind)| {
                        candidate.to_ascii_uppercase() == *first && behind == rest
                    })
                };
                CACHE_WORDS.iter().position(is_meant).map(Self::Cache)
            }),
        }
    }

    fn of_class(word: &[u8]) -> Option<Self> {
        CLASS_WORDS.iter().position(|class| class.as_bytes() == word).map(Self::Class)
    }

    /// The number of a node.
    pub(super) fn of(self, node: &TrafficNode, average: Average, now_ms: u64) -> u64 {
        match self {
            Self::Requests => node.requests,
            Self::Received => node.received,
            Self::Sent => node.sent,
            Self::Class(at) => node.classes.get(at).copied().unwrap_or(0),
            Self::Cache(at) => node.cache.get(at).copied().unwrap_or(0),
            Self::Time => node.time_ms,
            Self::AverageTime => node.average(average, now_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_names_in_limits_and_variables() {
        for (limit, set, expected) in [
            ("request", "requestCounter", Stat::Requests),
            ("in", "inBytes", Stat::Received),
            ("out", "outBytes", Stat::Sent),
            ("4xx", "4xx", Stat::Class(3)),
            ("cache_miss", "cacheMiss", Stat::Cache(0)),
            ("cache_revalidated", "cacheRevalidated", Stat::Cache(5)),
            ("cache_scarce", "cacheScarce", Stat::Cache(7)),
        ] {
            assert_eq!(Stat::of_limit(limit.as_bytes()), Some(expected), "{limit}");
            assert_eq!(Stat::of_set(set.as_bytes()), Some(expected), "{set}");
        }
        assert_eq!(Stat::of_set(b"requestMsec"), Some(Stat::AverageTime));
        for word in ["", "cache", "cache_", "6xx", "cachemiss", "requestMsec", "cacheMaxSize"] {
            assert_eq!(Stat::of_limit(word.as_bytes()), None, "{word}");
        }
        for word in ["", "cache", "cachemiss", "weight", "in"] {
            assert_eq!(Stat::of_set(word.as_bytes()), None, "{word}");
        }
    }
}
