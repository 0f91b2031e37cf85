//! Storage and reuse policy: pure functions of a stored response, a request, the time and the [`Rules`].
//!
//! ```text
//! a response arrives ── may_store ─► Lifetime, which is stored        or NoStoreReason
//! a request arrives  ── may_use ───► Reuse: Fresh, Stale, Validate …
//! a 304 arrives      ── freshen ───► Lifetime, and merge updates the fields
//! ```
//!
//! There are two tables of rules. [`Ruleset::Nginx`] is what nginx does (`ngx_http_upstream.c`,
//! `ngx_http_file_cache.c`): an accelerator in front of a site that its operator knows, which obeys the site's fields
//! and not its clients. [`Ruleset::Rfc9111`] is a shared cache as RFC 9111 has it, with RFC 5861 (`stale-*`), RFC
//! 8246 (`immutable`) and RFC 9213 (targeted fields). Each rule names its section.
//!
//! Times are seconds since 1970. A fresh hit allocates nothing here.

mod cache_status;
mod directive;
mod exclusion;
mod ignored;
mod invalidate;
mod lifetime;
mod merge;
mod nginx;
mod no_store_reason;
mod resume;
mod reuse;
mod rfc9111;
mod store;
mod targeted;
#[cfg(test)]
mod tests;
mod validators;
mod vary;

pub use cache_status::{CacheStatus, ForwardReason};
pub use directive::{CacheControl, DELTA_MAX, Directives, NAME_LISTS_MAX, Names};
pub use exclusion::exclude;
pub use ignored::IgnoredFields;
pub use invalidate::{UriOrigin, invalidated};
pub use lifetime::{Duties, Lifetime, current_age};
pub use merge::{freshen, is_about, merge};
pub use no_store_reason::NoStoreReason;
pub use resume::{MissingRange, Resumption, continues, strong_validator};
pub use reuse::{Reuse, ValidateReason, Window, may_use, wants_nothing_stored, wants_only_stored};
pub use store::may_store;
pub use validators::validators;
pub use vary::{NGINX_VARY_MAX, VARY_MAX, describe_variant, variant, vary};

use bytes::Bytes;
use tw_http::{Fields, Method, RequestHead};

tw_base::limits! {
    /// The limits kept here.
    pub(crate) const LIMITS;

    /// Bytes of the Vary of a response that is cached, by the rules of nginx.
    constant bytes NGINX_VARY_MAX, "the response is not cached";
    /// Bytes of the Vary of a response that is cached, by the rules of RFC 9111.
    constant bytes VARY_MAX, "the response is not cached";
    /// Lists of fields in the no-cache and private of a response, of each.
    constant count NAME_LISTS_MAX, "the directive is taken for one of the whole response";
}

/// Set of rules by which fields of responses and requests are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruleset {
    /// As nginx does.
    Nginx,
    /// Rules of RFC 9111 for a shared cache.
    Rfc9111,
}

/// A table of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Base rules.
    pub reading: Ruleset,
    /// The longest lifetime that is guessed from `Last-Modified`, in seconds; 0 means that none is (RFC 9111 section
    /// 4.2.2).
    pub heuristic_max_s: u32,
    /// Names of fields that replace `Cache-Control` and `Expires`, the most important first, such as
    /// `CDN-Cache-Control` (RFC 9213 section 2.2). They apply with both rule sets.
    pub targeted: Vec<Bytes>,
}

impl Rules {
    /// Rules of nginx: no heuristic freshness, no targeted fields.
    pub const NGINX: Rules = Rules { reading: Ruleset::Nginx, heuristic_max_s: 0, targeted: Vec::new() };

    /// Rules of RFC 9111 for a shared cache. Heuristic freshness is at most a day: section 4.2.2 wants a warning
    /// beyond that.
    pub const RFC9111: Rules =
        Rules { reading: Ruleset::Rfc9111, heuristic_max_s: 86_400, targeted: Vec::new() };
}

/// Access to the parts of a request that the rules depend on.
pub trait Request {
    /// The method as it was sent to the origin.
    fn method(&self) -> Method;

    /// Shows the value of every field of this name (in any case), in order.
    fn each_field(&self, name: &[u8], see: &mut dyn FnMut(&[u8]));
}

impl Request for RequestHead {
    fn method(&self) -> Method {
        self.method()
    }

    fn each_field(&self, name: &[u8], see: &mut dyn FnMut(&[u8])) {
        self.field_all(name).for_each(see);
    }
}

impl Request for (Method, &Fields) {
    fn method(&self) -> Method {
        self.0
    }

    fn each_field(&self, name: &[u8], see: &mut dyn FnMut(&[u8])) {
        self.1.get_all(name).for_each(see);
    }
}

/// Response of the origin.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The status code.
    pub status: u16,
    /// All fields.
    pub fields: &'a Fields,
    /// Time at which the request for this response was sent; seconds since 1970.
    pub request_time: i64,
    /// True if a partial response (206) may be stored because the key includes the range (`slice`).
    pub is_slice: bool,
}

/// Configured settings for a response, beyond the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSettings {
    /// `proxy_cache_valid` for this status, in seconds.
    pub valid_s: Option<u32>,
    /// `proxy_ignore_headers`.
    pub ignored: IgnoredFields,
}
