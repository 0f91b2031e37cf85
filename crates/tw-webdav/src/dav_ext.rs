//! `dav_ext_methods`: PROPFIND, OPTIONS, LOCK and UNLOCK, with which `dav_methods` makes a WebDAV server of classes 1 and 2
//! (nginx: third-party module ngx_http_dav_ext_module; RFC 4918). Content phase; locks are checked in the precontent phase.
//!
//! ```text
//! check      locks in the way of PUT, DELETE, MKCOL, COPY and MOVE      if_field   the `If` field
//! lock       LOCK and UNLOCK                                            locks      locks by path
//! propfind   PROPFIND, a directory part by part                         props      properties as XML
//! xml        bodies of PROPFIND and LOCK                                zone       locks that all loops share
//! ```

mod check;
mod if_field;
mod lock;
mod locks;
mod propfind;
mod props;
mod xml;
mod zone;

use std::sync::Arc;

use bytes::Bytes;
use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, SERVER, Setting, record};
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_http::{HeaderName, Method};
use tw_module_support::small_body::{self, SmallBodyError};
use tw_request::body::Body;
use tw_request::config::location::Location;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::Template;

use self::check::{LockCheck, LockRemoval};
use self::zone::{ConfiguredZone, LockZone, LockZones, RawLockZone, RawZone};
use crate::dav::Dav;

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Words of `dav_ext_methods`.
const METHODS: [(&str, u32); 5] =
    [("off", OFF), ("propfind", PROPFIND), ("options", OPTIONS), ("lock", LOCK), ("unlock", UNLOCK)];

const OFF: u32 = 1;
const PROPFIND: u32 = 2;
const OPTIONS: u32 = 4;
const LOCK: u32 = 8;
const UNLOCK: u32 = 16;

/// Directives as written.
#[derive(Default)]
pub struct Raw {
    methods: Setting<u32>,
    zones: Vec<RawZone>,
    lock: Setting<RawLockZone>,
}

/// Methods allowed at one location, and its locks.
pub struct DavExt {
    methods: u32,
    zones: Arc<LockZones>,
    locks: Option<ConfiguredZone>,
    /// `$scheme`, which a whole URI of this server begins with.
    scheme: Template,
    /// `$remote_user`, who owns a lock.
    user: Template,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use xml::LIMITS;
    use if_field::LIMITS;
    use locks::LIMITS;
    use propfind::LIMITS;
    /// Bytes of keys and counters of one zone.
    parameter "dav_ext_lock_zone", "zone=name:", "a size that must be given",
        "LOCK is answered with 503 until a lock expires";
}

impl Settings<Http> for DavExt {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("dav_ext_methods", "off | method …", ALL, Args::at_least(1))
            .default("off")
            .doc("More methods of WebDAV that are allowed: PROPFIND, OPTIONS, LOCK, UNLOCK.")
            .set(|raw, node, cx| raw.methods.add_bits(node, &METHODS, cx)),
        record::new("dav_ext_lock_zone", "zone=name:size [timeout=time]", HTTP, Args::range(1, 2))
            .doc("Declares where locks are kept, and the longest time of a lock: 1 minute by default.")
            .set(|raw, node, _| {
                raw.zones.push(RawZone::read(node)?);
                Ok(())
            }),
        record::new("dav_ext_lock", "zone=name", ALL, Args::exact(1))
            .doc("Zone of the locks; PUT, DELETE, MKCOL, COPY and MOVE respect them. LOCK and UNLOCK have to be allowed, too.")
            .set(|raw, node, _| raw.lock.set_with(node, RawLockZone::read)),
    ];

    const METRICS: &'static [Metric] = &[Metric {
        name: "dav_ext_locks",
        kind: MetricKind::Gauge,
        labels: &["zone"],
        doc: "Locks in a zone of dav_ext; one that has expired counts until the zone is used again.",
        read: LockZone::counts,
    }];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let zones = match outer {
            Some(outer) => outer.zones.clone(),
            None => Arc::new(zone::declare(raw.zones, cx)?),
        };
        let locks = match raw.lock.take() {
            Some(raw) => Some(zone::used(&raw, &zones, cx)?),
            None => outer.and_then(|o| o.locks.clone()),
        };
        Ok(Self {
            methods: raw.methods.or(outer.map(|o| o.methods), OFF),
            zones,
            locks,
            scheme: cx.template_text(b"$scheme", None)?,
            user: cx.template_text(b"$remote_user", None)?,
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.methods & !OFF != 0 {
            plan.add(Phase::Content, self.clone());
        }
        if self.locks.is_some() {
            plan.add(Phase::Precontent, LockCheck(self.clone()));
            plan.add_header_filter(LockRemoval(self.clone()));
        }
    }

    fn reach(&self, core: &Location, reach: &mut Reach) {
        if self.methods & LOCK != 0 && self.locks.is_some() {
            reach.changes(&core.root.path, core.root.at);
        }
    }
}

impl Handler for DavExt {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let method = match r.method() {
            Method::Propfind => PROPFIND,
            Method::Options => OPTIONS,
            Method::Lock => LOCK,
            Method::Unlock => UNLOCK,
            _ => return Step::PASS,
        };
        if self.methods & method == 0 {
            return Step::PASS;
        }
        match (method, &self.locks) {
            (OPTIONS, _) => Step::Now(self.options(r)),
            (PROPFIND, _) => Step::Wait(Box::pin(async { outcome(self.propfind(r).await) })),
            (LOCK, Some(locks)) => Step::Wait(Box::pin(async { outcome(self.lock(locks, r).await) })),
            (_, Some(locks)) => Step::Now(outcome(self.unlock(locks, r))),
            (_, None) => Step::status(405),
        }
    }
}

fn outcome(done: Result<Outcome, u16>) -> Outcome {
    done.unwrap_or_else(Outcome::Status)
}

impl DavExt {
    /// Answers OPTIONS with all methods of the location.
    // DIFF(nginx): the module names every method, allowed or not, and the class 1 or 2.
    fn options(&self, r: &mut Request) -> Outcome {
        let own = METHODS.into_iter().filter(|(_, bit)| self.methods & bit & !OFF != 0);
        let own = own.map(|(name, _)| name.to_ascii_uppercase());
        let files = ["GET", "HEAD"].map(str::to_owned).into_iter();
        let dav = r.plan().parts.get::<Dav>();
        let all: Vec<String> = files.chain(dav.iter().flat_map(|dav| dav.methods())).chain(own).collect();
        r.response.fields.set("DAV", if self.locks.is_some() { "1, 2" } else { "1" });
        r.response.fields.set(HeaderName::Allow, Bytes::from(all.join(", ")));
        r.response.status = 200;
        Outcome::Respond(Body::Bytes(Bytes::new()))
    }
}

/// Reads the body of a request, an XML document.
async fn read_body(r: &mut Request) -> Result<Vec<u8>, u16> {
    small_body::read(r, xml::BODY_MAX).await.map_err(|error| match error {
        SmallBodyError::TooLarge => 413,
        SmallBodyError::Failed(status) => status,
    })
}

/// Sets the head of a response with an XML document.
fn set_xml_head(r: &mut Request, status_line: &'static str, status: u16) {
    r.response.status = status;
    r.response.status_line = Bytes::from_static(status_line.as_bytes());
    r.response.content_type = Bytes::from_static(b"application/xml");
    r.response.charset = Bytes::from_static(b"utf-8");
}

/// Response with the `error` element of a condition that does not hold (RFC 4918 section 16).
fn refuse(r: &mut Request, status_line: &'static str, status: u16, condition: &[u8]) -> Outcome {
    set_xml_head(r, status_line, status);
    let start: &[u8] = b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:error xmlns:D=\"DAV:\">";
    let text = [start, condition, b"</D:error>\n"].concat();
    Outcome::Respond(Body::Bytes(text.into()))
}
