//! `stub_status`: connections and requests of the process as plain text (nginx: ngx_http_stub_status_module). Content phase.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, LOCATION, SERVER, record};
use tw_core::module::Settings;
use tw_http::Method;
use tw_module_support::connections::Connections;
use tw_request::body::Body;
use tw_request::plan::{Handler, Outcome, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

/// `stub_status` as written.
#[derive(Default)]
pub struct Raw {
    on: bool,
}

/// Set if a location answers with the counters; inherited only by blocks that are parts of it.
pub struct StubStatus {
    on: bool,
}

impl Settings<Http> for StubStatus {
    type Raw = Raw;

    // The argument meant something before 1.7.5, and still does no harm.
    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("stub_status", "", SERVER | LOCATION, Args::range(0, 1))
            .doc("Returns the numbers of connections and requests.")
            .set(|raw, _, _| {
                raw.on = true;
                Ok(())
            })];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::one("connections_active", |r, out| put(r, out, |now| now.active), "Open connections."),
        VarDef::one(
            "connections_reading",
            |r, out| put(r, out, |now| now.reading),
            "Connections of which a part of a request's head has been read.",
        ),
        VarDef::one(
            "connections_writing",
            |r, out| put(r, out, |now| now.writing),
            "Connections with a request that is being served.",
        ),
        VarDef::one(
            "connections_waiting",
            |r, out| put(r, out, |now| now.waiting),
            "Connections that wait for a request.",
        ),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let inherited = cx.block.is_nameless() && outer.is_some_and(|outer| outer.on);
        Ok(Self { on: raw.on || inherited })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.on {
            plan.set_content(self.clone());
        }
    }
}

impl Handler for StubStatus {
    fn only_looks(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !matches!(r.method(), Method::Get | Method::Head) {
            return Step::status(405);
        }
        let counts = &r.client().event_loop.counts;
        let Connections { active, reading, writing, waiting } = Connections::of(counts);
        let accepted = counts.total(|tally| &tally.accepted);
        let handled = accepted.saturating_sub(counts.total(|tally| &tally.refused));
        let requests = counts.total(|tally| &tally.sessions);
        let text = format!(
            "Active connections: {active} \nserver accepts handled requests\n {accepted} {handled} {requests} \n\
             Reading: {reading} Writing: {writing} Waiting: {waiting} \n"
        );
        r.response.status = 200;
        r.response.content_type = Bytes::from_static(b"text/plain");
        Step::Now(Outcome::Respond(Body::Bytes(text.into())))
    }
}

fn put(r: &Request, out: &mut Vec<u8>, number: fn(&Connections) -> u64) -> Value {
    let number = number(&Connections::of(&r.client().event_loop.counts));
    // A Vec takes every write.
    let _ = write!(out, "{number}");
    Value::Found
}
