//! Test protocol besides HTTP, whose sessions have only an address and a log. It registers modules with one line each:
//! they are independent of HTTP.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use tw_conf::{
    Args, ConfError, Contexts, Diagnostics, DirectiveInfo, MAIN, MemoryFiles, Node, Reader, STREAM,
    STREAM_SERVER, Tree,
};
use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::load::{
    ConfigBuilder, Loader, Mistakes, Prefixes, ProtocolBlocks, ProtocolParts, RawSettings, Resolve,
    ResolveContext, Table, block,
};
use tw_core::log::{LogPlan, LoggedSession, SessionLogger};
use tw_core::module::{Module, Protocol};
use tw_core::pools::UringUse;
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_core::shared_objects::SharedObjects;
use tw_core::vars::{Bindings, Slots, Template, Value, VarDef, VarTable};
use tw_log::{Level, PushResult, Sink};
use tw_net::Addr;

/// The modules it has.
static MODULES: [Module<Plain>; 6] = [
    Module::of::<crate::map::Map>("map"),
    Module::of::<crate::geo::Geo>("geo"),
    Module::of::<crate::split_clients::SplitClients>("split_clients"),
    Module::of::<crate::limit_conn::LimitConn<Visit>>("limit_conn"),
    Module::of::<crate::access::Access>("access"),
    Module::of::<crate::log::AccessLog<Visit>>("log"),
];

/// The protocol.
struct Plain;

impl Protocol for Plain {
    const NAME: &'static str = "stream";
    const CONTEXTS: Contexts = STREAM | STREAM_SERVER;

    type Session = Visit;
    type Plan = Plan;
    type Core = ();
    type Block = ();
}

/// A client being served.
struct Visit {
    addr: Addr,
    config: Rc<Loaded>,
    bindings: Bindings,
    scratch: Cell<Vec<u8>>,
    held: Vec<Rc<dyn Any>>,
    logged: RefCell<Vec<String>>,
}

static VARIABLES: &[VarDef<Visit>] = &[VarDef::one(
    "client",
    |s, out| {
        let Some(addr) = s.addr.inet() else { return Value::Missing };
        out.extend_from_slice(addr.ip().to_string().as_bytes());
        Value::Found
    },
    "Address of the client.",
)];

impl Session for Visit {
    fn client_addr(&self) -> &Addr {
        &self.addr
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.logged.borrow_mut().push(format!("{}: {message}", level.word()));
    }

    fn slots(&self) -> &Slots<Self> {
        &self.config.slots
    }

    fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    fn scratch(&self) -> &Cell<Vec<u8>> {
        &self.scratch
    }

    fn hold<T: 'static>(&mut self, value: Rc<T>) {
        self.held.push(value);
    }
}

impl LoggedSession for Visit {
    const FORMAT: Option<(&'static str, &'static str)> = None;
    const FILE: Option<&'static str> = None;

    fn push_to(&self, sink: &Sink, path: &CStr, line: &[u8]) -> PushResult {
        sink.push_to(path.to_bytes(), b"/", tw_log::Links::Follow, line)
    }
}

type Decide = Box<dyn Fn(&mut Visit) -> AccessDecision>;
type Record = Box<dyn Fn(&Visit)>;

/// Judges in their order, and observers of the end of a session.
#[derive(Default)]
struct Plan {
    access_checks: Vec<(AccessStage, Decide)>,
    loggers: Vec<Record>,
}

impl AccessPlan<Visit> for Plan {
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<Visit>>) {
        self.access_checks.push((stage, Box::new(move |s| check.check(s))));
    }
}

impl LogPlan<Visit> for Plan {
    fn add_session_logger(&mut self, logger: Arc<impl SessionLogger<Visit>>) {
        self.loggers.push(Box::new(move |s| logger.record(s)));
    }
}

/// A configuration.
struct Loaded {
    slots: Slots<Visit>,
    plan: Plan,
    /// Text that the test asks for.
    text: Template<Visit>,
}

impl Loaded {
    fn lookup(self: &Rc<Self>, ip: &str) -> Visit {
        Visit {
            addr: Addr::Inet((ip.parse::<IpAddr>().unwrap(), 1).into()),
            config: self.clone(),
            bindings: Bindings::default(),
            scratch: Cell::default(),
            held: Vec::new(),
            logged: RefCell::default(),
        }
    }
}

impl Visit {
    /// Text of the test, evaluated for this client.
    fn text(&self) -> String {
        String::from_utf8(self.config.text.value(self).to_vec()).unwrap()
    }

    /// Decision of the judges, up to the first that does not pass.
    fn decision(&mut self) -> AccessDecision {
        let config = self.config.clone();
        let mut decisions = config.plan.access_checks.iter().map(|(_, check)| check(self));
        decisions.find(|decision| *decision != AccessDecision::Pass).unwrap_or(AccessDecision::Pass)
    }
}

/// Block of the protocol while a configuration is loaded.
struct PlainBlocks {
    table: Table<Plain>,
    vars: VarTable<Visit>,
    raws: RawSettings,
    plan: Plan,
    text: &'static str,
    template: Option<Template<Visit>>,
}

impl ProtocolBlocks for PlainBlocks {
    type Config = Loaded;

    const CONTEXTS: Contexts = Plain::CONTEXTS;
    const STRUCTURE: &'static [DirectiveInfo] = &[block(Plain::NAME, "{ … }", MAIN, Args::NONE)];

    fn directives(&self) -> Vec<DirectiveInfo> {
        self.table.infos().collect()
    }

    fn read(&mut self, node: &Node, loader: &mut Loader<'_>) -> Option<Result<(), ConfError>> {
        node.name.is(Plain::NAME).then(|| {
            loader.check_block(node, MAIN)?;
            loader.walk(node.children()?, STREAM, |loader, node| {
                loader.set(&self.table, &mut self.raws, node, STREAM)
            });
            Ok(())
        })
    }

    fn resolve(&mut self, shared: ResolveContext<'_>, mistakes: &mut Mistakes) {
        let mut cx = Resolve::<Plain>::new(&mut self.vars, shared, ());
        match self.table.resolve(std::mem::take(&mut self.raws), None, &mut cx, |_, _, _| {}) {
            Ok(settings) => {
                for (module, settings) in self.table.modules().iter().zip(&settings) {
                    module.install(settings, &mut self.plan);
                }
            }
            Err(error) => cx.mistakes.add(error),
        }
        match cx.template_text(self.text.as_bytes(), None) {
            Ok(template) => self.template = Some(template),
            Err(error) => cx.mistakes.add(error),
        }
        let later = cx.mistakes;
        mistakes.follow(later, &self.vars);
    }

    fn finish(self, process: ConfigBuilder<'_>) -> Result<Loaded, ConfError> {
        let made = ProtocolParts {
            listens: Vec::new(),
            reach: Reach::default(),
            ring: UringUse::Unused,
            pools: Vec::new(),
        };
        process.build(made)?;
        Ok(Loaded {
            slots: self.vars.finish()?,
            plan: self.plan,
            text: self.template.expect("nothing was wrong with it"),
        })
    }
}

/// Loads `stream { CONF }`; the error is a message.
fn load(conf: &str, text: &'static str) -> Result<Rc<Loaded>, String> {
    let mut tree = Tree::default();
    let conf = format!("events {{ }} stream {{ {conf} }}");
    Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"test.conf", conf.as_bytes()).unwrap();
    let prefixes = Prefixes {
        prefix: b"/prefix/".to_vec(),
        conf: b"/prefix/".to_vec(),
        error_log: b"stderr".to_vec(),
        hostname: b"host.example".to_vec(),
    };
    let table = Table::new(MODULES.iter().collect());
    let mut vars = VarTable::default();
    vars.declare(VARIABLES);
    table.modules().iter().for_each(|module| vars.declare(module.variables()));
    let blocks = PlainBlocks {
        table,
        vars,
        raws: RawSettings::default(),
        plan: Plan::default(),
        text,
        template: None,
    };
    let loaded = tw_core::load::load(
        &mut tree,
        &MemoryFiles::default(),
        &prefixes,
        blocks,
        &SharedObjects::default(),
        &mut Diagnostics::default(),
    );
    loaded.map(Rc::new).map_err(|error| error.message)
}

#[test]
fn variables_use_the_session() {
    let conf = r"
        map $client $kind { default other; 192.0.2.1 known; ~^10\.(?<net>\d+) net$net; }
        geo $zone { default outside; 10.0.0.0/8 inside; }
        geo $kind $odd { default odd; }
        split_clients $client $part { * all; }";
    let loaded = load(conf, "$kind $zone $odd $part").unwrap();
    for (ip, expected) in [
        ("192.0.2.1", "known outside odd all"),
        ("192.0.2.2", "other outside odd all"),
        ("10.6.0.1", "net6 inside odd all"),
    ] {
        assert_eq!(loaded.lookup(ip).text(), expected, "{ip}");
    }
}

#[test]
fn sessions_pass_access_checks() {
    let conf = "limit_conn_zone $client zone=one:32k; limit_conn one 1; allow 192.0.2.0/24; deny all;";
    let loaded = load(conf, "$limit_conn_status").unwrap();
    assert_eq!(
        loaded.plan.access_checks.iter().map(|(stage, _)| *stage).collect::<Vec<_>>(),
        [AccessStage::Limits, AccessStage::Access]
    );
    let [mut first, mut second, mut third] = [(); 3].map(|()| loaded.lookup("192.0.2.1"));
    assert_eq!((first.decision(), first.text()), (AccessDecision::Granted, "PASSED".to_owned()));
    assert_eq!((second.decision(), second.text()), (AccessDecision::Refused(503), "REJECTED".to_owned()));
    assert_eq!(second.logged.take(), ["error: limiting connections by zone \"one\""]);
    drop(first);
    assert_eq!(third.decision(), AccessDecision::Granted);
    let mut other = loaded.lookup("10.0.0.1");
    assert_eq!(other.decision(), AccessDecision::Forbidden("access forbidden by rule"));
}

#[test]
fn sessions_are_logged() {
    let loggers = |conf| load(conf, "").map(|loaded| loaded.plan.loggers.len());
    assert_eq!(loggers(""), Ok(0));
    assert_eq!(loggers("log_format combined $client; access_log x combined;"), Ok(1));
    assert_eq!(loggers("access_log x;"), Err("log format is not specified".to_owned()));
}

#[test]
fn parameters_of_http_are_refused() {
    for (conf, expected) in [
        ("geo $a { proxy 10.0.0.0/8; }", "invalid network \"proxy\""),
        ("limit_conn_status 500;", "\"limit_conn_status\" directive is not allowed here"),
        ("limit_conn one 1;", "zero size shared memory zone \"one\""),
    ] {
        assert_eq!(load(conf, "").err().as_deref(), Some(expected), "{conf}");
    }
}
