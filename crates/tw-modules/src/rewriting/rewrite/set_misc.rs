//! `set_md5`, `set_escape_uri` and their like: functions of values (set-misc-nginx-module, and `upstream_list` of
//! ngx_devel_kit). They are operations of the same programs as `set` and `if`, and run in the order they are written in.

mod base32;
mod call;
pub(super) mod directives;
mod random;
mod text;
mod upstream_list;

pub(super) use self::base32::{Base32, RawBase32};
pub(super) use self::call::{Call, CallFailed, CallResult, RawCall};
use self::random::SECURE_RANDOM_MAX;
pub(super) use self::upstream_list::{UpstreamList, UpstreamLists, join_lists};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Characters of a text of `set_secure_random_alphanum` and `set_secure_random_lcalpha`.
    constant count SECURE_RANDOM_MAX, "500";
}
