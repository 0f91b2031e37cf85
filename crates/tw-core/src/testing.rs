//! Session and configuration for unit tests, without a protocol.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use tw_conf::{Cx, Diagnostics, NginxVariables, Sources};
use tw_disk::Pool;
use tw_log::Level;
use tw_net::Addr;

use crate::generation::{Config, DebugLines, Generation, ProcessGeneration};
use crate::log::Logs;
use crate::pools::{Disks, UringUse};
use crate::process::{MainSettings, RawMainSettings};
use crate::reach::Reach;
use crate::session::Session;
use crate::shared_objects::SharedObjects;
use crate::vars::{Bindings, Preparations, Slots, Value, VarDef, VarTable};

/// A session that has variables, and remembers what it would write into a log.
pub(crate) struct Plain {
    slots: Slots<Self>,
    bindings: Bindings,
    pub(crate) logged: RefCell<Vec<String>>,
    scratch: Cell<Vec<u8>>,
    kept_objects: Vec<Rc<dyn Any>>,
}

impl Plain {
    /// One with these variables.
    pub(crate) fn new(vars: VarTable<Self>) -> Self {
        vars.check().unwrap_or_else(|error| panic!("{}", error.message));
        let slots = vars.finish();
        Self {
            slots,
            bindings: Bindings::default(),
            logged: RefCell::default(),
            scratch: Cell::default(),
            kept_objects: Vec::new(),
        }
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

    fn scratch(&self) -> &Cell<Vec<u8>> {
        &self.scratch
    }

    fn hold<T: 'static>(&mut self, value: Rc<T>) {
        self.kept_objects.push(value);
    }
}

static SOME: &[VarDef<Plain>] = &[
    VarDef::one("found", |_, out| put(out, b"f"), ""),
    VarDef::one("missing", |_, _| Value::Missing, ""),
    VarDef::one("open", |_, out| put(out, b"o"), "").assigned_by(|_, _| {}),
    VarDef::one("slow", |_, _| Value::Missing, "").prepared(Preparations(1)),
    VarDef::one("late", |_, _| Value::Missing, "").prepared(Preparations(4)),
    VarDef::family("in_", |_, suffix, out| put(out, suffix), ""),
    VarDef::one("own", |_, out| put(out, b"o"), ""),
    VarDef::one("changeable", |_, out| put(out, b"c"), ""),
    VarDef::stored("kept", ""),
    VarDef::family("in_deep_", |_, suffix, out| put(out, &[b"deep ", suffix].concat()), ""),
];

fn put(out: &mut Vec<u8>, value: &[u8]) -> Value {
    out.extend_from_slice(value);
    Value::Found
}

/// The names of some variables.
pub(crate) fn table() -> VarTable<Plain> {
    let mut vars = VarTable::new(NginxVariables::new("found missing slow late in_fixed", "changeable open"));
    vars.declare(SOME);
    vars
}

/// A generation of a configuration in which nothing is written.
pub(crate) fn generation() -> ProcessGeneration {
    let cx = Cx {
        sources: &Sources::default(),
        diagnostics: &mut Diagnostics::default(),
        prefix: b"/prefix/",
        conf_prefix: b"/prefix/",
        context: tw_conf::MAIN,
    };
    let main = MainSettings::resolve(RawMainSettings::default(), b"stderr", &cx);
    let mut logs = Logs::default();
    let error_log = logs.error_log(&main.error_log);
    let config = Config {
        main,
        listens: Vec::new(),
        logs,
        error_log,
        debug_lines: DebugLines::Never,
        ring: UringUse::Unused,
        reach: Reach::default(),
        is_secured: false,
        locks: Arc::default(),
        lock_max: 0,
        hot_files_size: 0,
        hostname: (*b"host.example").into(),
        metrics: Arc::default(),
        shared_objects: SharedObjects::default(),
    };
    let disks = Disks::new([Pool::with_defaults().unwrap()], UringUse::Unused).into();
    Generation { id: 1, config: Arc::new(config), disks }
}
