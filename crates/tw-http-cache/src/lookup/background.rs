//! Background fetches of a cache: responses that are requested from the upstream server beside the requests of clients, to
//! update entries (`cache_background_update`, `cache_refresh_ahead`) and to overtake a slow disk (`hedge=`).

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;

use crate::entry::open_entries::OpenEntry;
use crate::guard::background::{FetchPermit, FetchPurpose};
use crate::settings::CacheSettings;
use crate::zone::{Cache, FillLead};
use tw_phases::background_subrequest;
use tw_request::request::Request;

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

/// Start of an update in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpdateStart {
    Started,
    /// There are too many background fetches: the entry is used without an update.
    TooMany,
    /// The request of the client has to update the entry.
    Impossible,
}

/// Starts an update of a stale entry of `cache` in the background of `r`.
pub(crate) fn update_in_background(r: &Request, cache: &Cache, settings: &CacheSettings) -> UpdateStart {
    let purpose = FetchPurpose::Update;
    let Some(permit) = FetchPermit::take(&cache.zone.background, purpose, settings.background_max) else {
        return UpdateStart::TooMany;
    };
    match (BackgroundFetch { purpose, permit, lead: None, entry: None, other: None }).start(r) {
        true => UpdateStart::Started,
        false => UpdateStart::Impossible,
    }
}
