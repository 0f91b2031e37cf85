//! State of the programs of one request, and the variables that show it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use tw_core::vars::write::{put, put_number, put_seconds};
use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

pub(super) const VARIABLES: &[VarDef] = &[
    VarDef::one("echo_it", item, "The part of a text that echo_foreach_split is at."),
    VarDef::one(
        "echo_timer_elapsed",
        elapsed,
        "Seconds with milliseconds since the request began, or since echo_reset_timer.",
    ),
    VarDef::one("echo_request_body", request_body, "Body of the request, if it was read and is in memory."),
    VarDef::one(
        "echo_request_method",
        |r, out| put(out, r.method_name()),
        "Method of the request or subrequest.",
    ),
    VarDef::one(
        "echo_client_request_method",
        |r, out| put(out, r.client_method_name()),
        "Method of the client's request, also in a subrequest.",
    ),
    VarDef::one(
        "echo_client_request_headers",
        request_head,
        "Request line and fields of the client's request, as they are now.",
    ),
    VarDef::cached(
        "echo_cacheable_request_uri",
        |r, out| put(out, &r.uri.path),
        "Path of the request or subrequest that uses it first.",
    ),
    VarDef::one("echo_request_uri", |r, out| put(out, &r.uri.path), "Path of the request or subrequest."),
    VarDef::one(
        "echo_incr",
        count,
        "Count of its uses so far in a client's request, subrequests included; 1 if no location with echo answers that.",
    ),
    VarDef::one(
        "echo_response_status",
        |r, out| put_number(out, r.response.status.into()),
        "Code of the response.",
    ),
];

/// State of the program of one request or subrequest.
#[derive(Default)]
pub(super) struct ProgramState {
    /// Last `echo_reset_timer`.
    timer: Cell<Option<Instant>>,
    /// `$echo_it`
    pub(super) item: RefCell<Vec<u8>>,
}

/// Uses of `$echo_incr` in the client's request.
#[derive(Default)]
struct UseCount(Cell<u64>);

impl ProgramState {
    pub(super) fn reset_timer(&self) {
        self.timer.set(Some(tw_rt::clock::now()));
    }
}

/// Gives `r` a state of its own: a subrequest shares what its parent has until then.
pub(super) fn begin(r: &mut Request) {
    r.extensions.put(Rc::new(ProgramState::default()));
    begin_counting(r);
}

/// Makes the uses of `$echo_incr` counted.
pub(super) fn begin_counting(r: &mut Request) {
    if r.extensions.get::<UseCount>().is_none() {
        r.extensions.put(Rc::new(UseCount::default()));
    }
}

/// The state of the program of `r`.
pub(super) fn of(r: &Request) -> Option<Rc<ProgramState>> {
    r.extensions.get()
}

fn item(r: &Request, out: &mut Vec<u8>) -> Value {
    match of(r) {
        Some(state) => put(out, &state.item.borrow()),
        None => Value::Missing,
    }
}

fn elapsed(r: &Request, out: &mut Vec<u8>) -> Value {
    let began = of(r).and_then(|state| state.timer.get()).unwrap_or(r.context.started.at);
    put_seconds(out, tw_rt::clock::now().saturating_duration_since(began))
}

fn request_body(r: &Request, out: &mut Vec<u8>) -> Value {
    r.body.memory().map_or(Value::Missing, |body| put(out, body))
}

fn request_head(r: &Request, out: &mut Vec<u8>) -> Value {
    out.extend_from_slice(r.head.request_line());
    out.extend_from_slice(b"\r\n");
    for (name, value) in r.head.fields() {
        for piece in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(piece);
        }
    }
    Value::Found
}

fn count(r: &Request, out: &mut Vec<u8>) -> Value {
    let count = r.extensions.get::<UseCount>().map_or(1, |count| {
        count.0.set(count.0.get() + 1);
        count.0.get()
    });
    put_number(out, count)
}
