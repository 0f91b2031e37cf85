//! Lookup that goes to the upstream server, with its permits.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tw_cache::{Claim, Key};
use tw_http::range::ByteRange;

use super::permission;
use crate::entry::open_entries::OpenEntry;
use crate::fill::Continuation;
use crate::guard::background::FetchPurpose;
use crate::settings::CacheSettings;
use crate::zone::{Cache, FillLead};
use tw_request::request::Request;

/// Lookup of a request that goes to the upstream server, with its permits.
pub struct Lookup {
    pub(crate) cache: Arc<Cache>,
    /// Text of the key.
    pub(crate) text: Bytes,
    pub(crate) key: Key,
    /// `Vary` of the entry with the key, if this request is for another variant.
    pub(crate) other: Option<Bytes>,
    /// Stale entry that may be served if the upstream server fails.
    pub(crate) stale: Option<Rc<OpenEntry>>,
    /// Permit to store; `None` if the response is not stored.
    pub(crate) lead: Option<StorePermit>,
    /// Time of the request to the upstream server, in seconds since 1970.
    pub(crate) request_time: i64,
    /// Range of the content that the key names.
    pub(crate) part: Option<ByteRange>,
    /// Fill that the response is to continue.
    pub(crate) continuation: Option<Continuation>,
    /// Purpose of a background fetch.
    pub(crate) purpose: Option<FetchPurpose>,
}

/// Permit to store, with the fill that other requests can join.
pub(crate) struct StorePermit {
    pub(crate) lead: FillLead,
    pub(crate) claim: Claim,
}

impl Lookup {
    /// Returns true if the response is stored, should it be storable.
    pub fn leads(&self) -> bool {
        self.lead.is_some() || self.continuation.is_some()
    }

    /// Returns true if `GET` is sent for `HEAD`.
    pub fn asks_for_body(&self, r: &Request, settings: &CacheSettings) -> bool {
        permission::asks_for_body(r, settings)
    }
}
