//! Requests of one client go to one server (`sticky`): by a cookie that is set here, by a route in the request, or by a session
//! that the server begins and that is remembered here.

use std::sync::Arc;
use std::time::Duration;

use tw_connect::group::now_ms;
use tw_http::date;
use tw_http::fields::{Name, Value};
use tw_upstream::{Lease, PeerSelection, StickySessions};

use crate::cookie::find_cookie;
use crate::request::Request;
use crate::vars::Template;

/// `31 Dec 2037 23:55:55 GMT` and a span of ten years, for `expires=max`. Source: nginx.
const MAX: (i64, u64) = (2_145_916_555, 315_360_000);

/// Words of `samesite=`.
const SAME_SITE: [&[u8]; 3] = [b"strict", b"lax", b"none"];

/// Method by which a request is bound to a server.
pub enum Sticky {
    /// A cookie names the server.
    Cookie(StickyCookie),
    /// The first of these that is not empty is the `route` of the server.
    Route(Vec<Template>),
    /// Sessions are learned from responses.
    Learn(StickyLearn),
}

/// `sticky cookie`
pub struct StickyCookie {
    /// Name of the cookie.
    pub name: Box<[u8]>,
    /// Lifetime in the browser; `None` is until its session ends.
    pub expires: Option<CookieExpires>,
    /// `domain=`; without one if it is empty.
    pub domain: Option<Template>,
    /// `path=`
    pub path: Option<Box<[u8]>>,
    /// `samesite=`; without one if it is empty, and `strict` if it is unknown.
    pub same_site: Option<Template>,
    /// `httponly`
    pub http_only: bool,
    /// `secure`
    pub secure: bool,
}

/// Lifetime of a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieExpires {
    /// To the end of 2037.
    Max,
    /// For this long.
    After(Duration),
}

/// `sticky learn`
pub struct StickyLearn {
    /// The first that is not empty is a session that the server begins.
    pub create: Vec<Template>,
    /// The first that is not empty is the session of a request.
    pub lookup: Vec<Template>,
    /// Known sessions.
    pub sessions: Arc<StickySessions>,
    /// `header`: a session is stored once the response head has been read, instead of with the end of the response.
    pub in_head: bool,
}

/// Identifier of a server or session that a request carries; empty if none.
#[derive(Default)]
pub struct StickyId {
    id: Vec<u8>,
}

/// A session that is learned when this is dropped: the response went well, or the client did not want all of it.
pub struct PendingSession {
    sessions: Arc<StickySessions>,
    session: Option<Vec<u8>>,
    sid: Arc<[u8]>,
    creates: bool,
}

impl Sticky {
    /// Reads the identifier that `r` carries.
    pub fn read_id(&self, r: &Request) -> StickyId {
        let id = match self {
            Self::Cookie(cookie) => {
                let mut lines = r.head.field_all(b"cookie");
                lines.find_map(|line| find_cookie(line, &cookie.name)).map(<[u8]>::to_vec)
            }
            Self::Route(templates) => first(templates, r),
            Self::Learn(learn) => first(&learn.lookup, r),
        };
        StickyId { id: id.unwrap_or_default() }
    }

    /// Binds the next choice of a server. Looks a session up under a lock.
    pub fn bind(&self, selection: &mut PeerSelection, sticky_id: &StickyId) {
        let id = Some(&sticky_id.id).filter(|id| !id.is_empty());
        selection.bind(match self {
            Self::Cookie(_) | Self::Route(_) => id.map(|id| id.as_slice().into()),
            Self::Learn(learn) => {
                id.and_then(|id| learn.sessions.lookup(id, now_ms())).map(|sid| (*sid).into())
            }
        });
    }

    /// Prepares the cookie that binds the client to the chosen server.
    pub fn prepare_cookie(&self, r: &mut Request, lease: &Lease) {
        if let Self::Cookie(cookie) = self {
            let value = cookie.value(r, lease.peer().sid());
            r.upstream.cookie = Some(value);
        }
    }

    /// The head of a response is there: a session to be learned when it ends.
    pub fn begin_session(&self, r: &Request, sticky_id: StickyId, lease: &Lease) -> Option<PendingSession> {
        let Self::Learn(learn) = self else { return None };
        let created = first(&learn.create, r);
        let creates = created.is_some();
        let session = created.unwrap_or(sticky_id.id);
        let session = PendingSession {
            sessions: learn.sessions.clone(),
            session: (!session.is_empty()).then_some(session),
            sid: lease.peer().sid().clone(),
            creates,
        };
        // A session to be learned from the head is dropped here, and its `Drop` learns it.
        (!learn.in_head).then_some(session)
    }
}

impl PendingSession {
    /// The response failed: nothing is learned.
    pub fn forget(mut self) {
        self.session = None;
    }
}

impl Drop for PendingSession {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            self.sessions.learn(session, &self.sid, self.creates, now_ms());
        }
    }
}

/// The response gets the cookie of the server that was chosen last.
pub fn set_cookie(r: &mut Request) {
    if let Some(value) = r.upstream.cookie.take() {
        r.response.fields.append(Name::Copy(b"Set-Cookie"), Value::Shared(value.into()));
    }
}

/// Returns true if this is a value of `SameSite`.
pub fn is_same_site(value: &[u8]) -> bool {
    SAME_SITE.iter().any(|candidate| candidate.eq_ignore_ascii_case(value))
}

/// The first that is not empty.
fn first(templates: &[Template], r: &Request) -> Option<Vec<u8>> {
    templates.iter().map(|template| template.value(r)).find(|value| !value.is_empty())
}

impl StickyCookie {
    fn value(&self, r: &Request, sid: &[u8]) -> Vec<u8> {
        let mut out = [&*self.name, b"=", sid].concat();
        let (at, age) = match self.expires {
            None => (None, 0),
            Some(CookieExpires::Max) => (Some(MAX.0), MAX.1),
            Some(CookieExpires::After(span)) => {
                let age = i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
                (Some(tw_rt::clock::unix().secs.saturating_add(age)), span.as_secs())
            }
        };
        if let Some(at) = at {
            out.extend_from_slice(b"; expires=");
            out.extend_from_slice(&date::format_cookie(at));
            out.extend_from_slice(format!("; max-age={age}").as_bytes());
        }
        let mut attribute = |name: &[u8], value: &[u8]| {
            if !value.is_empty() {
                out.extend_from_slice(name);
                out.extend_from_slice(value);
            }
        };
        attribute(b"; domain=", &self.domain.as_ref().map(|domain| domain.value(r)).unwrap_or_default());
        attribute(b"; ", if self.http_only { b"httponly" } else { b"" });
        attribute(b"; ", if self.secure { b"secure" } else { b"" });
        let same_site = self.same_site.as_ref().map(|same_site| same_site.value(r)).unwrap_or_default();
        let is_known = same_site.is_empty() || is_same_site(&same_site);
        attribute(b"; samesite=", if is_known { &same_site } else { b"strict" });
        attribute(b"; path=", self.path.as_deref().unwrap_or_default());
        out
    }
}
