//! Test protocol besides HTTP, whose sessions have only an address and a log. It registers modules with one line each:
//! they are independent of HTTP. A loop serves it over TCP: each client gets a line of text, if the modules let it in.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::fmt;
use std::future::pending;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tw_conf::{
    Args, ConfError, Contexts, Diagnostics, DirectiveInfo, MAIN, MemoryFiles, Node, Reader, STREAM,
    STREAM_SERVER, Tree,
};
use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::config_thread::{ConfigThread, GenerationRef};
use tw_core::event_loop::{
    self, AcceptedConnection, Application, Counts, HandoverPhase, LoopCommand, LoopCore,
};
use tw_core::generation::{Configuration, Generation, ProcessConfig};
use tw_core::load::{
    CollectDirectives, ConfigBuilder, LoadedBlocks, Loader, Mistakes, Prefixes, ProtocolBlocks,
    ProtocolParts, RawSettings, Resolve, ResolveContext, Table, block,
};
use tw_core::log::{LogPlan, LoggedSession, SessionLogger};
use tw_core::metrics::Metric;
use tw_core::module::{Module, Protocol};
use tw_core::pools::{Disks, UringUse};
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_core::shared_objects::SharedObjects;
use tw_core::vars::{Bindings, Slots, Template, Value, VarDef, VarTable};
use tw_disk::{Locks, Pool};
use tw_log::{Level, PushResult, Sink};
use tw_net::listen::AcceptingLoops;
use tw_net::{Addr, ListenOptions, ListenSocket};
use tw_rt::{LoopGuard, LoopOptions, LoopThread};

/// The modules it has.
static MODULES: [Module<Plain>; 6] = [
    Module::of::<crate::every_protocol::map::Map>("map"),
    Module::of::<crate::every_protocol::geo::Geo>("geo"),
    Module::of::<crate::every_protocol::split_clients::SplitClients>("split_clients"),
    Module::of::<crate::every_protocol::limit_conn::LimitConn<TestSession>>("limit_conn"),
    Module::of::<crate::every_protocol::access::Access>("access"),
    Module::of::<crate::every_protocol::log::AccessLog<TestSession>>("log"),
];

/// The protocol.
struct Plain;

impl Protocol for Plain {
    const NAME: &'static str = "stream";
    const CONTEXTS: Contexts = STREAM | STREAM_SERVER;

    type Session = TestSession;
    type Plan = Plan;
    type Core = ();
    type Block = ();
    type Config = ProcessConfig;
}

/// A client being served.
struct TestSession {
    addr: Addr,
    config: Arc<SessionConfig>,
    bindings: Bindings,
    scratch: Cell<Vec<u8>>,
    kept_objects: Vec<Rc<dyn Any>>,
    logged: RefCell<Vec<String>>,
}

static VARIABLES: &[VarDef<TestSession>] = &[VarDef::one(
    "client",
    |s, out| {
        let Some(addr) = s.addr.inet() else { return Value::Missing };
        out.extend_from_slice(addr.ip().to_string().as_bytes());
        Value::Found
    },
    "Address of the client.",
)];

impl Session for TestSession {
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
        self.kept_objects.push(value);
    }
}

impl LoggedSession for TestSession {
    const FORMAT: Option<(&'static str, &'static str)> = None;
    const FILE: Option<&'static str> = None;

    fn push_to(&self, sink: &Sink, path: &CStr, line: &[u8]) -> PushResult {
        sink.push_to(path.to_bytes(), b"/", tw_log::Links::Follow, line)
    }
}

type Decide = Box<dyn Fn(&mut TestSession) -> AccessDecision + Send + Sync>;
type Record = Box<dyn Fn(&TestSession) + Send + Sync>;

/// Judges in their order, and observers of the end of a session.
#[derive(Default)]
struct Plan {
    access_checks: Vec<(AccessStage, Decide)>,
    loggers: Vec<Record>,
}

impl AccessPlan<TestSession> for Plan {
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<TestSession>>) {
        self.access_checks.push((stage, Box::new(move |s| check.check(s))));
    }
}

impl LogPlan<TestSession> for Plan {
    fn add_session_logger(&mut self, logger: Arc<impl SessionLogger<TestSession>>) {
        self.loggers.push(Box::new(move |s| logger.record(s)));
    }
}

/// A configuration.
struct Loaded {
    process: ProcessConfig,
    served: Arc<SessionConfig>,
}

impl Configuration for Loaded {
    fn process(&self) -> &ProcessConfig {
        &self.process
    }

    fn free(self) {}
}

/// Parts of a configuration that sessions use.
struct SessionConfig {
    slots: Slots<TestSession>,
    plan: Plan,
    /// Text that the test asks for.
    text: Template<TestSession>,
}

impl Loaded {
    /// Session of a client at this address.
    fn session(&self, ip: &str) -> TestSession {
        TestSession::new(self.served.clone(), Addr::Inet((ip.parse::<IpAddr>().unwrap(), 1).into()))
    }
}

impl TestSession {
    fn new(config: Arc<SessionConfig>, addr: Addr) -> Self {
        Self {
            addr,
            config,
            bindings: Bindings::default(),
            scratch: Cell::default(),
            kept_objects: Vec::new(),
            logged: RefCell::default(),
        }
    }

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
    vars: VarTable<TestSession>,
    raws: RawSettings,
    plan: Plan,
    text: &'static str,
    template: Option<Template<TestSession>>,
}

impl ProtocolBlocks for PlainBlocks {
    type Config = Loaded;

    const CONTEXTS: Contexts = Plain::CONTEXTS;
    const STRUCTURE: &'static [DirectiveInfo] = &[block(Plain::NAME, "{ … }", MAIN, Args::NONE)];

    fn directives(&self) -> CollectDirectives {
        let infos: Vec<_> = self.table.infos().collect();
        Box::new(move || infos.clone())
    }

    fn metrics(&self) -> Vec<(&'static str, &'static [Metric])> {
        self.table.metrics().collect()
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
        mistakes.follow(later, &self.vars, Self::CONTEXTS);
    }

    fn finish(self, _: &mut ConfigBuilder<'_>, mistakes: &mut Mistakes) -> Option<LoadedBlocks<Loaded>> {
        if let Err(error) = self.vars.check() {
            mistakes.add_later(error);
        }
        let parts = ProtocolParts {
            listens: Vec::new(),
            reach: Reach::default(),
            ring: UringUse::Unused,
            pools: Vec::new(),
            is_secured: false,
            locks: Arc::new(Locks::default()),
            lock_max: 0,
            hot_files_size: 0,
        };
        let served = SessionConfig { slots: self.vars.finish(), plan: self.plan, text: self.template? };
        let assemble = Box::new(|process| Loaded { process, served: Arc::new(served) });
        Some(LoadedBlocks { parts, assemble })
    }
}

/// State of the protocol on a loop.
struct PlainLoop {
    core: Rc<LoopCore>,
    generation: RefCell<GenerationRef<Generation<Loaded>>>,
}

impl Application for PlainLoop {
    type Generation = GenerationRef<Generation<Loaded>>;

    fn new(core: Rc<LoopCore>, generation: Self::Generation) -> Rc<Self> {
        Rc::new(Self { core, generation: RefCell::new(generation) })
    }

    fn set_generation(&self, generation: Self::Generation) {
        self.generation.replace(generation);
    }

    /// Writes the text to a client that may have it, and `refused` to others.
    async fn serve(self: Rc<Self>, connection: AcceptedConnection) {
        let served = self.generation.borrow().config.served.clone();
        let mut session = TestSession::new(served, connection.peer);
        let is_refused =
            matches!(session.decision(), AccessDecision::Refused { .. } | AccessDecision::Forbidden(_));
        let text = if is_refused { "refused".to_owned() } else { session.text() };
        let line = format!("{text} by loop {}\n", self.core.index);
        connection.transport.try_write(line.as_bytes()).expect("a new socket takes a line");
        session.config.clone().plan.loggers.iter().for_each(|log| log(&session));
    }

    async fn run_background_tasks(self: Rc<Self>) {
        pending().await
    }

    fn sweep(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn close_files(&self) {}
}

/// Loads `stream { CONF }`; the error is a message.
fn load(conf: &str, text: &'static str) -> Result<Loaded, String> {
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
    loaded.map_err(|rejected| rejected.mistake.message)
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
        assert_eq!(loaded.session(ip).text(), expected, "{ip}");
    }
}

#[test]
fn sessions_pass_access_checks() {
    let conf = "limit_conn_zone $client zone=one:32k; limit_conn one 1; allow 192.0.2.0/24; deny all;";
    let loaded = load(conf, "$limit_conn_status").unwrap();
    assert_eq!(
        loaded.served.plan.access_checks.iter().map(|(stage, _)| *stage).collect::<Vec<_>>(),
        [AccessStage::Limits, AccessStage::Access]
    );
    let [mut first, mut second, mut third] = [(); 3].map(|()| loaded.session("192.0.2.1"));
    assert_eq!((first.decision(), first.text()), (AccessDecision::Granted, "PASSED".to_owned()));
    let refused = AccessDecision::Refused { status: 503, retry_after: Some(1) };
    assert_eq!((second.decision(), second.text()), (refused, "REJECTED".to_owned()));
    assert_eq!(second.logged.take(), ["error: limiting connections by zone \"one\""]);
    drop(first);
    assert_eq!(third.decision(), AccessDecision::Granted);
    let mut other = loaded.session("10.0.0.1");
    assert_eq!(other.decision(), AccessDecision::Forbidden("access forbidden by rule"));
}

#[test]
fn sessions_are_logged() {
    let loggers = |conf| load(conf, "").map(|loaded| loaded.served.plan.loggers.len());
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

#[test]
fn loop_serves_the_protocol_and_takes_over_a_new_generation() {
    let thread = ConfigThread::start(|| {}).unwrap();
    let publish = |id, conf, text| {
        let config = load(conf, text).unwrap();
        let disks = Disks::new([Pool::with_defaults().unwrap()], UringUse::Unused).into();
        thread.publish(Generation { id, config, disks })
    };
    let first = publish(1, "map $client $kind { default other; 127.0.0.1 known; }", "$kind");
    let any_port = Addr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let socket =
        ListenSocket::open(&any_port, &ListenOptions::default(), &mut |report| panic!("{report}")).unwrap();
    let address = socket.addr().inet().unwrap();
    let sockets = || vec![socket.share(AcceptingLoops::All).unwrap()];
    let accepting = sockets();
    let counts = Arc::new(Counts::default());
    let options = LoopOptions { guard: LoopGuard::Enforce, ..LoopOptions::new(5) };
    let running = LoopThread::start(options, |commands| {
        event_loop::run::<PlainLoop>(5, counts, first, accepting, commands)
    })
    .unwrap();
    let command = |command: LoopCommand<_>| assert!(running.send(command).is_ok());
    let read = || {
        let mut line = String::new();
        TcpStream::connect(address).unwrap().read_to_string(&mut line).unwrap();
        line
    };
    command(LoopCommand::Start);
    assert_eq!(read(), "known by loop 5\n");
    let second = publish(2, "deny 127.0.0.1;", "new");
    command(LoopCommand::Generation(second, sockets()));
    while read() == "known by loop 5\n" {}
    assert_eq!(read(), "refused by loop 5\n");
    command(LoopCommand::Quit(HandoverPhase::Closed));
    running.join().unwrap();
}
