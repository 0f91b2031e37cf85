//! The trunks of one loop: who wants a berth gets one on the trunk that carries most, so that trunks which nobody needs any more run
//! empty and are closed.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use foldhash::HashMap;
use tw_base::Limit;
use tw_net::ConnectOptions;
use tw_rt::Deadline;
use tw_rt::watch::Subject;
use tw_upstream::Peer;

use super::life::{self, Opening};
use super::stream::Stream;
use super::{Berth, Fate, State, Trunk};
use crate::event_loop::Loop;
use crate::http::gateway::fault::{Fault, Stage};
use crate::http::gateway::idle::{KeepAlive, Owner};
use crate::http::gateway::secure::{Doers, Secured};

/// Trunks that a request is sent to another one by in turn, because it came when they carried as much as their servers allow.
const BOARDINGS_MAX: u32 = 3;

pub(super) const LIMIT: Limit = Limit::count(
    "BOARDINGS_MAX",
    BOARDINGS_MAX as u64,
    "Connections of HTTP/2 that a request to an upstream server is offered, one after another, that have no room by the time they are open",
    "the server is taken for one that has refused the request",
);

/// The trunks of one loop.
#[derive(Default)]
pub(crate) struct Trunks {
    of: RefCell<HashMap<Owner, Vec<Rc<Trunk>>>>,
}

/// A berth that is wanted.
pub(in crate::http::gateway) struct Wanted<'a> {
    /// Who is asked.
    pub(in crate::http::gateway) peer: &'a Arc<Peer>,
    /// Where that is.
    pub(in crate::http::gateway) to: &'a tw_net::Addr,
    /// How connections are opened.
    pub(in crate::http::gateway) options: ConnectOptions,
    /// `keepalive` of the group.
    pub(in crate::http::gateway) keepalive: KeepAlive,
    /// Bytes of the head of a response.
    pub(in crate::http::gateway) head_size: usize,
    /// Time for a connection, with its handshake.
    pub(in crate::http::gateway) timeout: Duration,
}

/// A stream on one of the trunks of `owner`, or on a new one. Waits until that is open, at most as long as it takes for a connection.
///
/// # Errors
/// No connection, or none in time.
pub(in crate::http::gateway) async fn shared(
    home: &Rc<Loop>,
    owner: &Owner,
    wanted: Wanted<'_>,
    doers: impl Fn() -> Doers,
) -> Result<Rc<Stream>, (Fault, Stage)> {
    let timeout = wanted.timeout;
    let mut deadline = Deadline::new();
    deadline.set(timeout);
    for _ in 0..BOARDINGS_MAX {
        let berth = match home.app.trunks.take(owner, &wanted) {
            Some(berth) => berth,
            None => {
                let secured = owner.secured.clone().map(|secured| (secured, doers()));
                let trunk = trunk(&wanted, secured.is_some());
                home.app.trunks.add(owner, trunk.clone());
                begin(home, trunk, Opening { timeout, secured })
            }
        };
        opened(&berth, &mut deadline).await?;
        // What its server allows may have come while it was waited for.
        if berth.0.has_room() {
            return Ok(Rc::new(Stream::new(berth)));
        }
    }
    Err((Fault::Refused("upstream takes no requests".into()), Stage::Connecting))
}

/// A stream on a trunk of its own, which ends with it.
///
/// # Errors
/// As [`shared`].
pub(in crate::http::gateway) async fn dedicated(
    home: &Rc<Loop>,
    wanted: Wanted<'_>,
    secured: Option<(Secured, Doers)>,
) -> Result<Rc<Stream>, (Fault, Stage)> {
    let timeout = wanted.timeout;
    let mut deadline = Deadline::new();
    deadline.set(timeout);
    let trunk = trunk(&wanted, secured.is_some());
    // Nobody finds it who could ask for another berth, and it goes with this one.
    trunk.retire();
    let berth = begin(home, trunk, Opening { timeout, secured });
    opened(&berth, &mut deadline).await?;
    Ok(Rc::new(Stream::new(berth)))
}

/// One that nobody uses and nobody opens.
fn trunk(wanted: &Wanted<'_>, is_secured: bool) -> Rc<Trunk> {
    Rc::new(Trunk {
        peer: wanted.peer.id(),
        to: wanted.to.clone(),
        options: wanted.options.clone(),
        list_size: u32::try_from(wanted.head_size).unwrap_or(u32::MAX),
        is_secured,
        keepalive: wanted.keepalive,
        state: RefCell::new(State::Opening),
        fate: Fate::Useful.into(),
        berths: 0.into(),
        requests: 0.into(),
        answered: 0.into(),
        unwanted: 0.into(),
        opened: tw_rt::clock::now(),
        waiting: RefCell::default(),
        life: RefCell::default(),
    })
}

/// Opens a trunk for whoever wants one, and who is its first.
fn begin(home: &Rc<Loop>, trunk: Rc<Trunk>, opening: Opening) -> Berth {
    let berth = trunk.lease();
    let subject = Subject { kind: "http2 connection to an upstream server", id: trunk.peer.0.into() };
    tw_rt::spawn_local(subject, life::run(home.clone(), trunk, opening));
    berth
}

/// Waits until the trunk of a berth is open.
async fn opened(berth: &Berth, deadline: &mut Deadline) -> Result<(), (Fault, Stage)> {
    poll_fn(|cx| match berth.0.poll_open(cx) {
        Poll::Ready(ready) => Poll::Ready(ready),
        Poll::Pending => deadline.poll_elapsed(cx).map(|()| Err((Fault::ConnectTimeout, Stage::Connecting))),
    })
    .await
}

impl Trunks {
    /// A berth on the trunk that carries most of those that have room.
    fn take(&self, owner: &Owner, wanted: &Wanted<'_>) -> Option<Berth> {
        let mut of = self.of.borrow_mut();
        let trunks = of.get_mut(owner)?;
        let may_serve = |trunk: &&Rc<Trunk>| {
            trunk.peer == wanted.peer.id()
                && trunk.to == *wanted.to
                && trunk.options == wanted.options
                && trunk.list_size as usize == wanted.head_size
                && trunk.berths.get() < trunk.capacity()
        };
        let best = trunks.iter().filter(may_serve).max_by_key(|trunk| trunk.berths.get())?;
        Some(best.lease())
    }

    fn add(&self, owner: &Owner, trunk: Rc<Trunk>) {
        self.of.borrow_mut().entry(owner.clone()).or_default().push(trunk);
    }

    /// Forgets a trunk. Those it carries are not touched.
    pub(super) fn remove(&self, trunk: &Rc<Trunk>) {
        self.of.borrow_mut().retain(|_, trunks| {
            trunks.retain(|other| !Rc::ptr_eq(other, trunk));
            !trunks.is_empty()
        });
    }

    /// Whether more trunks like this one rest than may.
    pub(super) fn has_too_many_idle(&self, trunk: &Rc<Trunk>) -> bool {
        let of = self.of.borrow();
        let siblings = of.values().find(|trunks| trunks.iter().any(|other| Rc::ptr_eq(other, trunk)));
        let idle = siblings.into_iter().flatten().filter(|other| other.is_idle()).count();
        idle > trunk.keepalive.connections
    }

    /// Closes the oldest one that carries nothing, for want of a descriptor or a connection. Returns whether there was one.
    pub(crate) fn close_oldest(&self) -> bool {
        let of = self.of.borrow();
        let rests = |trunk: &&Rc<Trunk>| trunk.is_idle() && trunk.fate.get() == Fate::Useful;
        let idle = of.values().flatten().filter(rests).min_by_key(|trunk| trunk.opened);
        idle.inspect(|trunk| trunk.retire()).is_some()
    }
}
