//! A real etcd, which `TAILWATER_ETCD` names, or which is in the search path.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::{Lacks, TempDir, leave_out, wait};

/// Time for the start: it syncs to disk.
const PATIENCE: Duration = Duration::from_secs(180);

/// Ports of one server.
#[derive(Clone, Copy)]
struct Ports {
    client: u16,
    /// For other servers.
    peer: u16,
}

/// A server with an empty store, until it is dropped.
pub struct RealEtcd {
    child: Child,
    ports: Ports,
    options: Vec<String>,
    dir: TempDir,
}

fn spawn(dir: &TempDir, ports: Ports, options: &[String]) -> Option<Child> {
    let program = std::env::var_os("TAILWATER_ETCD").unwrap_or_else(|| "etcd".into());
    let is_tls = options.iter().any(|option| option == "--cert-file");
    let scheme = if is_tls { "https" } else { "http" };
    let (client, peer) =
        (format!("{scheme}://127.0.0.1:{}", ports.client), format!("http://127.0.0.1:{}", ports.peer));
    let mut command = Command::new(program);
    command.arg("--data-dir").arg(dir.join("data")).args(["--listen-client-urls", &client]);
    command.args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer]);
    command.args(["--initial-advertise-peer-urls", &peer, "--initial-cluster", &format!("default={peer}")]);
    let child = command.args(options).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    assert!(wait::until(PATIENCE, || TcpStream::connect((Ipv4Addr::LOCALHOST, ports.client)).is_ok()));
    Some(child)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("this machine has ports");
    listener.local_addr().expect("it is bound").port()
}

impl RealEtcd {
    /// Starts a server with these options; `None` if there is no program, so the test is left out.
    pub fn start(options: &[&str]) -> Option<Self> {
        let dir = TempDir::new("etcd").expect("a directory can be made");
        let ports = Ports { client: free_port(), peer: free_port() };
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let Some(child) = spawn(&dir, ports, &options) else {
            leave_out(Lacks::Machine, "no etcd, which TAILWATER_ETCD names");
            return None;
        };
        Some(Self { child, ports, options, dir })
    }

    /// Kills it.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it with what it had.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.dir, self.ports, &self.options).expect("it was started before");
    }

    /// Address for a configuration.
    pub fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.ports.client)
    }

    /// Port for clients.
    pub fn port(&self) -> u16 {
        self.ports.client
    }
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        self.stop();
    }
}
