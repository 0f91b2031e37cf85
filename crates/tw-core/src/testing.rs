//! A session for unit tests: of no protocol, served by nobody.

use std::cell::RefCell;
use std::fmt;

use tw_log::Level;
use tw_net::Addr;

use crate::session::Session;
use crate::vars::{Bindings, Slots, Value, VarDef, VarTable};

/// A session that has variables, and remembers what it would write into a log.
pub(crate) struct Plain {
    slots: Slots<Self>,
    bindings: Bindings,
    pub(crate) logged: RefCell<Vec<String>>,
}

impl Plain {
    /// One with these variables.
    pub(crate) fn new(vars: VarTable<Self>) -> Self {
        let slots = vars.finish().unwrap_or_else(|error| panic!("{}", error.message));
        Self { slots, bindings: Bindings::default(), logged: RefCell::default() }
    }
}

impl Session for Plain {
    fn client_addr(&self) -> &Addr {
        &Addr::Unix(None)
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.logged.borrow_mut().push(format!("{}: {message}", level.word()));
    }

    fn slots(&self) -> &Slots<Self> {
        &self.slots
    }

    fn bindings(&self) -> &Bindings {
        &self.bindings
    }
}

static SOME: &[VarDef<Plain>] = &[
    VarDef::one("found", |_, out| put(out, b"f"), ""),
    VarDef::one("missing", |_, _| Value::Missing, ""),
    VarDef::one("open", |_, out| put(out, b"o"), "").assigned_by(|_, _| {}),
    VarDef::one("slow", |_, _| Value::Missing, "").prepared(),
    VarDef::family("in_", |_, suffix, out| put(out, suffix), ""),
    VarDef::family("in_deep_", |_, suffix, out| put(out, &[b"deep ", suffix].concat()), ""),
];

fn put(out: &mut Vec<u8>, value: &[u8]) -> Value {
    out.extend_from_slice(value);
    Value::Found
}

/// The names of some variables.
pub(crate) fn table() -> VarTable<Plain> {
    let mut vars = VarTable::default();
    vars.declare(SOME);
    vars
}
