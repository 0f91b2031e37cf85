//! `cache_purge`: which requests purge, in the syntax of nginx's commercial version and in that of the free purge module
//! (ngx_cache_purge).
//!
//! ```text
//! proxy_cache_purge $condition …;                          purges if a value is neither empty nor 0
//! proxy_cache_purge PURGE [purge_all] [from address …];    requests with this method do, from these addresses
//! proxy_cache_purge zone key;                              the location purges this key and does nothing else
//! ```

use std::sync::Arc;

use tw_cache::Purge;
use tw_conf::network::Network;
use tw_conf::{ConfError, Word};

use crate::zone::{Cache, Caches};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// The method of `on`.
const PURGE: &[u8] = b"PURGE";

/// `cache_purge` of one location.
#[derive(Clone)]
pub(crate) enum PurgeRule {
    /// A request purges if one of these is neither empty nor 0; `soft` makes it a soft purge.
    Conditions(Arc<[Template]>),
    /// A request with this method does.
    Method(Arc<MethodRule>),
    /// The location purges a key.
    Location(Arc<PurgeLocation>),
}

/// The form of the free module beside a `proxy_pass`.
pub(crate) struct MethodRule {
    method: Box<[u8]>,
    /// `None`: from anywhere.
    from: Option<Box<[Network]>>,
    /// True if all of the cache is purged in the place of one key.
    whole: bool,
}

/// Purge that a request asks for.
pub(crate) struct PurgeRequest {
    pub(crate) mode: Purge,
    /// True if all of the cache is meant.
    pub(crate) whole: bool,
    /// Status of a purge that found something.
    pub(crate) status: u16,
}

/// Relation of a request to the rule of its location.
pub(crate) enum PurgeTarget {
    /// The request is none to purge.
    Nothing,
    /// The request purges.
    Purge(PurgeRequest),
    /// The request would purge, but not from this address.
    Forbidden,
}

impl PurgeRule {
    /// No request purges.
    pub(crate) fn none() -> Self {
        Self::Conditions([].into())
    }

    /// Reads the words of the directive.
    ///
    /// # Errors
    /// A cache that is not there, an address that is none, a condition that always holds.
    pub(crate) fn read(words: &[Word], caches: &Caches, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let is_variable = |word: &Word| word.bytes.contains(&b'$');
        match words {
            [only] if only.is("off") => Ok(Self::none()),
            [method, rest @ ..] if is_method(method) && rest.first().is_none_or(is_option) => {
                MethodRule::read(method, rest).map(|rule| Self::Method(Arc::new(rule)))
            }
            [zone, key] if !is_variable(zone) && !is_false(zone) => {
                let Some(cache) = caches.get(&zone.bytes) else {
                    let message = format!("cache purge zone \"{zone}\" is unknown");
                    return Err(ConfError::new(message).at(zone.span).hint(
                        "\"zone key\" purges this key of a cache; conditions are variables, \"METHOD from ADDRESS\" a method",
                    ));
                };
                let (cache, key) = (cache.clone(), cx.template(key)?);
                Ok(Self::Location(Arc::new(PurgeLocation { cache, key })))
            }
            conditions => {
                if let Some(always) = conditions.iter().find(|word| !is_variable(word) && !is_false(word)) {
                    let message = format!("cache purge condition \"{always}\" always holds");
                    return Err(ConfError::new(message)
                        .at(always.span)
                        .hint("every request would purge; a variable made by \"map\" says which ones do"));
                }
                conditions
                    .iter()
                    .map(|word| cx.template(word))
                    .collect::<Result<_, _>>()
                    .map(Self::Conditions)
            }
        }
    }

    /// Decides what `r` purges.
    pub(crate) fn purge_target(&self, r: &Request) -> PurgeTarget {
        match self {
            Self::Conditions(conditions) => {
                let mode = conditions.iter().find_map(|condition| match &*condition.value(r) {
                    b"" | b"0" => None,
                    b"soft" => Some(Purge::Soft),
                    _ => Some(Purge::Hard),
                });
                mode.map_or(PurgeTarget::Nothing, |mode| {
                    PurgeTarget::Purge(PurgeRequest { mode, whole: false, status: 204 })
                })
            }
            Self::Method(rule) if r.method_name() == &*rule.method => match rule.allows(r) {
                true => {
                    PurgeTarget::Purge(PurgeRequest { mode: Purge::Hard, whole: rule.whole, status: 200 })
                }
                false => PurgeTarget::Forbidden,
            },
            Self::Method(_) | Self::Location(_) => PurgeTarget::Nothing,
        }
    }

    /// The handler of a location that purges and does nothing else.
    pub(crate) fn location(&self) -> Option<Arc<PurgeLocation>> {
        match self {
            Self::Location(location) => Some(location.clone()),
            Self::Conditions(_) | Self::Method(_) => None,
        }
    }
}

/// `on`, or a method in capitals as nobody names a cache.
fn is_method(word: &Word) -> bool {
    word.is("on") || !word.bytes.is_empty() && word.bytes.iter().all(u8::is_ascii_uppercase)
}

fn is_option(word: &Word) -> bool {
    word.is("from") || word.is("purge_all")
}

/// A condition that never holds.
fn is_false(word: &Word) -> bool {
    word.bytes.is_empty() || word.is("0")
}

impl MethodRule {
    fn read(method: &Word, mut rest: &[Word]) -> Result<Self, ConfError> {
        let invalid = |word: &Word| {
            ConfError::new(format!("invalid parameter \"{word}\" of a cache purge"))
                .at(word.span)
                .hint("METHOD [purge_all] [from all | ADDRESS | ADDRESS/BITS …]")
        };
        let mut rule = Self {
            method: if method.is("on") { PURGE.into() } else { (&*method.bytes).into() },
            from: None,
            whole: false,
        };
        if let [word, more @ ..] = rest
            && word.is("purge_all")
        {
            (rule.whole, rest) = (true, more);
        }
        match rest {
            [] => {}
            [from, addresses @ ..] if from.is("from") && !addresses.is_empty() => {
                if !addresses.iter().any(|word| word.is("all")) {
                    let network = |word: &Word| Network::parse(&word.bytes).ok_or_else(|| invalid(word));
                    let networks = addresses.iter().map(|word| network(word).map(|read| read.network));
                    rule.from = Some(networks.collect::<Result<_, _>>()?);
                }
            }
            [word, ..] => return Err(invalid(word)),
        }
        Ok(rule)
    }

    fn allows(&self, r: &Request) -> bool {
        let Some(networks) = &self.from else { return true };
        let client = r.client_addr().inet().map(|addr| addr.ip());
        client.is_some_and(|ip| networks.iter().any(|network| network.contains(ip)))
    }
}

/// A location that purges a key of a cache, whatever the method.
pub struct PurgeLocation {
    pub(crate) cache: Arc<Cache>,
    pub(crate) key: Template,
}
