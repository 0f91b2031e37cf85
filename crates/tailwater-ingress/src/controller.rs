//! The program: threads, the loop that applies changes, and the end.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tw_sys::signal::SignalFd;

use crate::cluster::client::ApiClient;
use crate::cluster::object::ObjectName;
use crate::cluster::store::Store;
use crate::cluster::watch::{self, RESOURCES};
use crate::journal::{self, Journal};
use crate::options::Options;
use crate::server::applier::{Applier, Outcome};
use crate::server::process::ServerProcess;
use crate::site::certificate;
use crate::status::{self, Election};

/// Changes are applied when there was none for this time.
const QUIET: Duration = Duration::from_millis(100);
/// Changes are applied after this time at the latest.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// Time after which a configuration that could not be loaded is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Shortest time between two starts of the server.
const RESTART: Duration = Duration::from_secs(1);
/// Longest wait for the server at the end. Kubernetes ends the pod after its `terminationGracePeriodSeconds`.
const END_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs until a signal ends it.
///
/// # Errors
/// The program cannot start.
pub fn run(mut options: Options) -> Result<(), String> {
    let numbers = [Signal::TERM, Signal::INT, Signal::QUIT, Signal::HUP, Signal::CHILD].map(Signal::as_raw);
    let signals = SignalFd::new(&numbers).map_err(|error| format!("signals: {error}"))?;
    let client = ApiClient::new(&options.access)?;
    options.site.default_certificate = certificate::self_signed()?;
    options.site.ipv6 = fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| !text.trim().is_empty());
    options.site.user = rustix::process::geteuid().is_root().then(|| "root".to_owned());
    if options.site.resolvers.is_empty() {
        options.site.resolvers = system_resolvers();
    }
    let (journal, events) = Journal::new();
    let store = Arc::new(Store::new(RESOURCES.len()));
    let binary = program(&options.binary);
    let server = Arc::new(ServerProcess::new(binary, &options.site.dir, options.control.clone()));
    let directory = options.site.dir.display().to_string();
    let applier = Applier::new(Arc::clone(&server), Arc::clone(&journal), options.site.clone());
    let mut applier = applier.map_err(|error| format!("{directory}: {error}"))?;
    applier.begin()?;
    watch::start(&client, &store, &journal, options.namespace.as_deref())
        .map_err(|error| error.to_string())?;
    let threads = Threads { client, store: Arc::clone(&store), journal: Arc::clone(&journal) };
    threads.start(events, applier, &options).map_err(|error| error.to_string())?;
    supervise(&signals, &server, &store, &journal);
    Ok(())
}

/// Values that the threads share.
struct Threads {
    client: ApiClient,
    store: Arc<Store>,
    journal: Arc<Journal>,
}

impl Threads {
    fn start(
        &self,
        events: std::sync::mpsc::Receiver<(String, serde_json::Value)>,
        applier: Applier,
        options: &Options,
    ) -> io::Result<()> {
        let client = self.client.clone();
        let journal = Arc::clone(&self.journal);
        thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || journal::send_events(&client, &journal, &events))?;
        let verdicts = applier.verdicts();
        let store = Arc::clone(&self.store);
        let journal = Arc::clone(&self.journal);
        thread::Builder::new()
            .name("apply".to_owned())
            .spawn(move || apply_changes(&store, &journal, applier))?;
        let published = options.published.clone();
        let lease = ObjectName::new(own_namespace(), &*options.election);
        let election = Election::new(self.client.clone(), &lease, identity());
        let client = self.client.clone();
        let store = Arc::clone(&self.store);
        let journal = Arc::clone(&self.journal);
        let site = options.site.clone();
        thread::Builder::new().name("status".to_owned()).spawn(move || {
            status::run(&client, &store, &journal, &site, election, published.as_ref(), &verdicts)
        })?;
        Ok(())
    }
}

/// Applies changes until the program ends.
fn apply_changes(store: &Store, journal: &Journal, mut applier: Applier) {
    let mut seen_count = 0;
    let mut failed = false;
    while !store.ends() {
        let entry = store.wait(if failed { u64::MAX } else { seen_count }, QUIET, QUIET_MAX, RETRY);
        let (changes, snapshot) = match entry {
            Some(entry) => entry,
            // A port that was unavailable may be free now.
            None if applier.lacks_ports() && store.is_complete() => (seen_count, store.snapshot()),
            None => continue,
        };
        seen_count = changes;
        let began = Instant::now();
        let outcome = applier.apply(&snapshot);
        let took = began.elapsed().as_millis();
        failed = matches!(outcome, Outcome::Failed(_));
        match outcome {
            Outcome::Unchanged => {}
            Outcome::Endpoints(count) => {
                journal.line(&format!("endpoints of {count} groups changed without a reload, {took} ms"))
            }
            Outcome::Reloaded => journal.line(&format!("configuration loaded, {took} ms")),
            Outcome::Failed(error) => {
                journal.line(&format!("the configuration in use stays: {error}"));
                if store.pause(RETRY) {
                    return;
                }
            }
        }
    }
}

/// Starts the server again when it ends, until a signal ends the program.
fn supervise(signals: &SignalFd, server: &ServerProcess, store: &Store, journal: &Journal) {
    let mut started = Instant::now();
    let mut end: Option<Instant> = None;
    loop {
        let mut fds = [PollFd::new(signals, PollFlags::IN)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        // An error is a signal that interrupts, or nothing that would not come again.
        let _ = poll(&mut fds, Some(&second));
        while let Ok(arrived) = signals.read() {
            let is = |signal: Signal| arrived.signal == signal.as_raw();
            if is(Signal::TERM) || is(Signal::INT) || is(Signal::QUIT) {
                // Requests are finished, whichever signal it was; the second one ends them.
                let signal = if end.is_some() { Signal::TERM } else { Signal::QUIT };
                journal.line("the server finishes its requests");
                end.get_or_insert_with(Instant::now);
                store.end();
                server.signal(signal);
            }
        }
        if let Some(status) = server.reap()
            && end.is_none()
        {
            journal.line(&format!("the server has ended ({status}) and is started again"));
        }
        match end {
            Some(since) if !server.runs() || since.elapsed() > END_TIMEOUT => return,
            Some(_) => {}
            None if !server.runs() && started.elapsed() > RESTART => {
                started = Instant::now();
                if let Err(error) = server.start() {
                    journal.line(&format!("the server cannot be started: {error}"));
                }
            }
            None => {}
        }
    }
}

/// The server's program: as named, or beside this one.
fn program(named: &std::path::Path) -> PathBuf {
    if named.components().count() > 1 {
        return named.to_owned();
    }
    let beside = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.join(named)));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| named.to_owned())
}

/// DNS servers of the pod.
fn system_resolvers() -> Vec<IpAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok());
    servers.take(3).collect()
}

fn own_namespace() -> String {
    let of_account = || fs::read_to_string("/var/run/secrets/kubernetes.io/serviceaccount/namespace").ok();
    let name = std::env::var("POD_NAMESPACE").ok().or_else(of_account).unwrap_or_default();
    let name = name.trim().to_owned();
    if crate::cluster::object::is_name(&name) { name } else { "default".to_owned() }
}

fn identity() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = std::env::var("POD_NAME").unwrap_or_else(|_| host.trim().to_owned());
    format!("{name}_{}", std::process::id())
}
