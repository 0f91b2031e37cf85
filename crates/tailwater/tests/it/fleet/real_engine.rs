//! Real servers of NATS and etcd, if this machine has them: `TAILWATER_NATS_SERVER` and `TAILWATER_ETCD` name them, or they are in the
//! search path.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tw_testkit::etcd::RealEtcd;
use tw_testkit::{Lacks, TempDir, leave_out, wait};

use super::{fill, nodes, wait_connected, wait_for};
use crate::support::request;

pub(super) struct RealNats {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl RealNats {
    /// Starts a server, or leaves out the test.
    pub(super) fn start() -> Option<Self> {
        let dir = TempDir::new("nats").unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        match spawn(&dir, port) {
            Some(child) => Some(Self { child, port, dir }),
            None => {
                leave_out(Lacks::Machine, "no nats-server, which TAILWATER_NATS_SERVER names");
                None
            }
        }
    }

    /// Address for a configuration.
    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(super) fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it with what it had.
    pub(super) fn start_again(&mut self) {
        self.child = spawn(&self.dir, self.port).unwrap();
    }
}

impl Drop for RealNats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &TempDir, port: u16) -> Option<Child> {
    let program = std::env::var_os("TAILWATER_NATS_SERVER").unwrap_or_else(|| "nats-server".into());
    let mut command = Command::new(program);
    command.arg("-js").arg("-sd").arg(dir.path()).args(["-a", "127.0.0.1", "-p", &port.to_string()]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    assert!(wait::until(wait::TIMEOUT, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()));
    Some(child)
}

/// Purges with an engine, and while it is away: `restart` stops it, calls its argument, and starts it again.
fn purge_over_a_restart(url: &str, restart: impl FnOnce(&dyn Fn())) {
    let nodes = nodes::<3>(url);
    fill(&nodes, "/a");
    assert_eq!(request(&nodes[0], "PURGE /a", &[]).status, 204);
    nodes.iter().for_each(|node| wait_for(node, "/a", "MISS"));
    fill(&nodes, "/a");
    restart(&|| assert_eq!(request(&nodes[0], "PURGE /a", &[]).status, 202));
    nodes[1..].iter().for_each(|node| wait_for(node, "/a", "MISS"));
    nodes.iter().for_each(wait_connected);
}

#[test]
fn purges_reach_all_nodes_over_restarts_of_a_real_server() {
    let Some(mut engine) = RealNats::start() else { return };
    purge_over_a_restart(&engine.url(), |meanwhile| {
        engine.stop();
        meanwhile();
        engine.start_again();
    });
}

#[test]
fn purges_reach_all_nodes_over_restarts_of_a_real_etcd() {
    let Some(mut engine) = RealEtcd::start(&[]) else { return };
    purge_over_a_restart(&engine.url(), |meanwhile| {
        engine.stop();
        meanwhile();
        engine.start_again();
    });
}
