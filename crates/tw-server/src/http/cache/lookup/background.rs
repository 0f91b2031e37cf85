//! Background fetches of a cache: responses that are requested from the upstream server beside the requests of clients, to
//! update entries (`cache_background_update`, `cache_refresh_ahead`) and to overtake a slow disk (`hedge=`).

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use tw_http::Method;

use super::Lookup;
use crate::http::background_subrequest;
use crate::http::cache::entry::open_entries::OpenEntry;
use crate::http::cache::guard::background::{FetchPermit, FetchPurpose};
use crate::http::cache::miss_reason::MissReason;
use crate::http::cache::settings::CacheSettings;
use crate::http::cache::zone::FillLead;
use crate::http::request::Request;

/// Fetch that a background request carries out.
pub(crate) struct BackgroundFetch {
    pub(crate) purpose: FetchPurpose,
    pub(crate) permit: FetchPermit,
    /// Permit to fill the entry; without it, the request looks it up first.
    pub(crate) lead: Option<FillLead>,
    /// Entry that is validated.
    pub(crate) entry: Option<Rc<OpenEntry>>,
    /// `Vary` of the entry with the key, if the fetched response is another variant.
    pub(crate) other: Option<Bytes>,
}

/// Fetch of a background request, until its lookup takes it.
struct PendingFetch(Cell<Option<BackgroundFetch>>);

impl BackgroundFetch {
    /// Starts the fetch in the background of `r`. Returns false if that is not possible.
    pub(crate) fn start(self, r: &Request) -> bool {
        let prepare = |r: &mut Request| {
            r.upstream.cache.is_update = true;
            r.extensions.put(Rc::new(PendingFetch(Cell::new(Some(self)))));
        };
        background_subrequest::run_again(r, prepare).is_ok()
    }

    /// Takes the fetch that `r` carries out.
    pub(crate) fn take(r: &Request) -> Option<Self> {
        if !r.upstream.cache.is_update {
            return None;
        }
        r.extensions.get::<PendingFetch>()?.0.take()
    }
}

impl Lookup {
    /// Starts an update of a stale entry in the background. Returns false if the client's request has to update it. With too many
    /// background fetches the entry is used without an update.
    pub(crate) fn update_in_background(&self, r: &mut Request, settings: &CacheSettings) -> bool {
        let purpose = FetchPurpose::Update;
        let Some(permit) = FetchPermit::take(&self.cache.zone.background, purpose, settings.background_max)
        else {
            r.upstream.cache.why = Some(MissReason::BackgroundMax);
            return true;
        };
        BackgroundFetch { purpose, permit, lead: None, entry: None, other: None }.start(r)
    }

    /// Returns true if the response to `r`, fetched in the background, could answer other requests, too.
    pub(crate) fn may_fetch_for_others(&self, r: &mut Request, settings: &CacheSettings) -> bool {
        if !matches!(r.method(), Method::Get | Method::Head) || self.is_range_beyond_max(r, settings) {
            return false;
        }
        let why = r.upstream.cache.why;
        let may = self.permits_storing(r, settings);
        r.upstream.cache.why = why;
        may
    }
}
