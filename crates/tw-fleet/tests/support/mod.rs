//! Nodes and engines of the tests.

#![allow(dead_code, reason = "each test uses a part of this")]

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tw_fleet::{
    Agent, Authentication, EngineSettings, Fleet, FleetKeys, FleetPurge, FleetSettings, FleetStatus,
    NodeCaches, PublishOutcome, ServerList, SharedParts, SharedRate,
};
use tw_testkit::{Lacks, TempDir, leave_out, wait};

pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Caches of a node.
#[derive(Default)]
pub(crate) struct Caches {
    pub(crate) applied: Mutex<Vec<FleetPurge>>,
    /// True while the disk fails.
    pub(crate) fails: Mutex<bool>,
}

impl NodeCaches for Caches {
    fn names(&self) -> Vec<Vec<u8>> {
        vec![b"site".to_vec()]
    }

    fn purge(&self, _: &[u8], purges: Vec<FleetPurge>) -> Pin<Box<dyn Future<Output = Result<(), String>>>> {
        let outcome = if *self.fails.lock().unwrap() {
            Err("write() failed (5: Input/output error)".to_owned())
        } else {
            self.applied.lock().unwrap().extend(purges);
            Ok(())
        };
        Box::pin(async move { outcome })
    }
}

/// A node with its agent.
pub(crate) struct TestNode {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) log: Arc<Mutex<String>>,
    agent: Agent,
}

pub(crate) fn settings(dir: &TempDir, node: &str, url: &str) -> FleetSettings {
    FleetSettings {
        name: "edge".into(),
        node: node.into(),
        state: dir.join(node),
        publish_timeout: Duration::from_secs(1),
        keys: FleetKeys::default(),
        secret_rotation: Duration::from_secs(3600),
        engine: EngineSettings {
            servers: ServerList::parse(url).unwrap(),
            authentication: Authentication::Anonymous,
            tls: false,
            trusted: None,
            replicas: 1,
            max_age: Duration::from_secs(3600),
            max_messages: 1_000_000,
        },
    }
}

pub(crate) fn start(settings: FleetSettings) -> TestNode {
    let fleet = Arc::new(Fleet::new(settings));
    let caches = Arc::new(Caches::default());
    let log = Arc::new(Mutex::new(String::new()));
    let lines = log.clone();
    let agent = Agent::start(
        fleet.clone(),
        caches.clone(),
        Arc::new(move |level, message| *lines.lock().unwrap() += &format!("{level} {message}\n")),
    );
    TestNode { fleet, caches, log, agent: agent.unwrap() }
}

impl TestNode {
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn wait(&self, is_so: impl Fn(&FleetStatus) -> bool) {
        let is_there = wait::until(PATIENCE, || is_so(&self.fleet.status()));
        assert!(is_there, "{:?} {}", self.fleet.status(), self.log.lock().unwrap());
    }

    /// Shares a rate of this many requests per second.
    pub(crate) fn share_rate(&self, per_second: u64) -> Arc<SharedRate> {
        let rate = Arc::new(SharedRate::new("z", self.fleet.clone(), per_second * 1000));
        self.agent.share(SharedParts { rates: vec![rate.clone()], peers: Vec::new() });
        rate
    }

    pub(crate) fn publish(&self, purge: FleetPurge) -> PublishOutcome {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(self.fleet.publish(purge))
    }

    /// Publishes many purges, some hundred at a time. Returns how many are queued.
    pub(crate) fn flood(&self, purges: impl IntoIterator<Item = FleetPurge>) -> usize {
        let purges: Vec<_> = purges.into_iter().collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut queued = 0;
        for batch in purges.chunks(500) {
            queued += runtime.block_on(async {
                let local = tokio::task::LocalSet::new();
                let tasks: Vec<_> = batch
                    .iter()
                    .map(|purge| {
                        let fleet = self.fleet.clone();
                        let purge = purge.clone();
                        local.spawn_local(async move { fleet.publish(purge).await })
                    })
                    .collect();
                local
                    .run_until(async {
                        let mut queued = 0;
                        for task in tasks {
                            match task.await.unwrap() {
                                PublishOutcome::Published => {}
                                PublishOutcome::Queued => queued += 1,
                                PublishOutcome::Unpublished(why) => panic!("{why}"),
                            }
                        }
                        queued
                    })
                    .await
            });
        }
        queued
    }

    pub(crate) fn applied(&self) -> Vec<FleetPurge> {
        self.caches.applied.lock().unwrap().clone()
    }
}

/// A real NATS server, which `TAILWATER_NATS_SERVER` names, or which is in the search path.
pub(crate) struct RealNats {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl RealNats {
    /// Starts a server with these options, or leaves out the test.
    pub(crate) fn start(options: &[&str]) -> Option<Self> {
        let dir = TempDir::new("nats").unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let program = std::env::var_os("TAILWATER_NATS_SERVER").unwrap_or_else(|| "nats-server".into());
        let mut command = Command::new(program);
        command.arg("-js").arg("-sd").arg(dir.path()).args(["-a", "127.0.0.1", "-p", &port.to_string()]);
        let child = command.args(options).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = child else {
            leave_out(Lacks::Machine, "no nats-server, which TAILWATER_NATS_SERVER names");
            return None;
        };
        assert!(wait::until(wait::TIMEOUT, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()));
        Some(Self { child, port, _dir: dir })
    }

    /// Address for a configuration.
    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Drop for RealNats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
