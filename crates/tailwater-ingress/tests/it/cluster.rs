//! A cluster for tests: the API server, pods, the controller and the server it starts.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::{Value, json};
use tw_testkit::ports::Port;
use tw_testkit::process::Group;
use tw_testkit::{Client, Lacks, Response, TempDir, leave_out, origin, wait};

use crate::fake::FakeApi;

pub const INGRESSES: &str = "/apis/networking.k8s.io/v1/ingresses";
pub const CLASSES: &str = "/apis/networking.k8s.io/v1/ingressclasses";
pub const SERVICES: &str = "/api/v1/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub const SECRETS: &str = "/api/v1/secrets";
pub const CONFIG_MAPS: &str = "/api/v1/configmaps";

/// A running controller with its server.
pub struct Cluster {
    pub api: FakeApi,
    pub http: Port,
    pub https: Port,
    pub status: Port,
    dir: TempDir,
    args: Vec<String>,
    group: Option<Group>,
}

/// The server that tests of this workspace have built; leaves the test out if there is none.
pub fn server_binary() -> Option<PathBuf> {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_tailwater-ingress")).with_file_name("tailwater");
    if !binary.is_file() {
        leave_out(Lacks::Run, "tailwater is not built: cargo build");
        return None;
    }
    Some(binary)
}

impl Cluster {
    /// An API server with our class; the controller is not started yet.
    pub fn new(args: &[&str]) -> Option<Self> {
        server_binary()?;
        let api = FakeApi::start();
        api.put(CLASSES, json!({"metadata": {"name": "tailwater"}, "spec": {"controller": "tailwater.io/ingress-controller"}}));
        let port = || Port::reserve().unwrap();
        let mut args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        args.push("--configmap=system/settings".to_owned());
        let dir = TempDir::new("ingress").unwrap();
        let cluster = Self { api, http: port(), https: port(), status: port(), dir, args, group: None };
        cluster.set(&[]);
        Some(cluster)
    }

    /// Sets the configuration map. There is one event loop: two of them change their configuration one after the other, and a test that
    /// has seen a response of the first would ask the second too early.
    pub fn set(&self, settings: &[(&str, &str)]) {
        let one_loop = [("worker-processes", "1")];
        let data: serde_json::Map<_, _> =
            one_loop.iter().chain(settings).map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        self.api
            .put(CONFIG_MAPS, json!({"metadata": {"name": "settings", "namespace": "system"}, "data": data}));
    }

    /// Starts the controller, and waits until it has read all objects and its first configuration is gone: if a reload needs another worker
    /// process, the one before accepts connections until it has read the order to leave.
    pub fn start(&mut self) {
        self.spawn();
        assert!(wait::until(wait::TIMEOUT, || self.probe() == Some(200)), "{}", self.log());
        self.wait_for_one_worker();
    }

    /// Waits until one worker process is left.
    pub fn wait_for_one_worker(&self) {
        assert!(wait::until(wait::TIMEOUT, || self.worker_count() == 1), "{}", self.log());
    }

    /// Number of worker processes: children of the server, which is the child of the controller.
    fn worker_count(&self) -> usize {
        let parent = |entry: std::fs::DirEntry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
            let is_there = fields.next()? != "Z";
            Some((pid, fields.next()?.parse::<u32>().ok()?)).filter(|_| is_there)
        };
        let parents: Vec<_> = std::fs::read_dir("/proc").unwrap().flatten().filter_map(parent).collect();
        let children = |of: u32| parents.iter().filter(move |(_, parent)| *parent == of).map(|(pid, _)| *pid);
        let Some(group) = &self.group else { return 0 };
        children(group.pid()).map(|server| children(server).count()).sum()
    }

    pub fn spawn(&mut self) {
        let log = std::fs::OpenOptions::new().append(true).create(true).open(self.dir.join("log")).unwrap();
        let local = |port: &Port| format!("127.0.0.1:{}", port.number());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater-ingress"));
        command.args(["--apiserver", &self.api.url(), "--dir", &self.dir.join("run").display().to_string()]);
        command.args(["--http-port", &local(&self.http), "--https-port", &local(&self.https)]);
        command.args(["--status-port", &local(&self.status), "--resolver", "127.0.0.1"]).args(&self.args);
        command.env("POD_NAMESPACE", "system").env("POD_NAME", "controller-0");
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.group = Some(Group::new(command.process_group(0).spawn().unwrap()));
    }

    /// Kills the controller and its server.
    pub fn kill(&mut self) {
        drop(self.group.take());
    }

    pub fn group(&mut self) -> &mut Group {
        self.group.as_mut().unwrap()
    }

    /// Status of the probe of readiness.
    pub fn probe(&self) -> Option<u16> {
        Client::get(local(&self.status), "/healthz").ok().map(|response| response.status)
    }

    /// Output of the controller and its server.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The configuration in use.
    pub fn config(&self) -> String {
        std::fs::read_to_string(self.dir.join("run/nginx.conf")).unwrap_or_default()
    }

    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub fn wait_log(&self, text: &str) {
        assert!(wait::until(wait::TIMEOUT, || self.log().contains(text)), "no {text:?} in:\n{}", self.log());
    }

    /// Number of reloads so far.
    pub fn reloads(&self) -> usize {
        self.log().matches("configuration loaded").count()
    }

    /// Response to a request of HTTP.
    pub fn get(&self, host: &str, path: &str) -> Response {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    }

    pub fn request(&self, text: &str) -> Response {
        let mut client = Client::connect(local(&self.http)).unwrap();
        client.send(text).unwrap();
        client.read_response().unwrap()
    }

    /// Waits until a request has this response (status, and a part of the body), and no worker process of the configuration before accepts
    /// connections.
    pub fn expect(&self, host: &str, path: &str, status: u16, body: &str) {
        let mut last = None;
        let is_found = wait::until(wait::TIMEOUT, || {
            let response = self.get(host, path);
            let is_right = response.status == status && response.text().contains(body);
            last = Some(response);
            is_right
        });
        assert!(is_found, "{host}{path}: {last:?}\n{}\n{}", self.log(), self.config());
        self.wait_for_one_worker();
    }

    /// Creates a service of a namespace with these pods.
    pub fn service(&self, namespace: &str, name: &str, pods: &[&Pod]) {
        let ports = json!([{"name": "web", "port": 80}]);
        self.api.put(SERVICES, json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"type": "ClusterIP", "clusterIP": "127.0.0.1", "ports": ports}}));
        self.endpoints(namespace, name, pods);
    }

    /// Replaces the endpoints of a service, one slice for each port.
    pub fn endpoints(&self, namespace: &str, name: &str, pods: &[&Pod]) {
        for index in 0..4 {
            let slice = format!("{name}-{index}");
            let pod = pods.get(index);
            let endpoints = pod.map(|_| json!([{"addresses": ["127.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false}}]));
            let port = pod.map_or(1, |pod| pod.addr.port());
            self.api.put(SLICES, json!({
                "metadata": {"name": slice, "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4", "ports": [{"name": "web", "port": port}], "endpoints": endpoints.unwrap_or(json!([])),
            }));
        }
    }
}

pub fn local(port: &Port) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port.number()))
}

/// Pod that answers with its name and the head of the request.
pub struct Pod {
    pub addr: SocketAddr,
    pub count: Arc<AtomicUsize>,
}

impl Pod {
    pub fn start(name: &'static str) -> Self {
        let (addr, count) = origin::counting(move |conn, head, _| conn.answer("", format!("{name}\n{head}")));
        Self { addr, count }
    }

    pub fn count(&self) -> usize {
        self.count.load(SeqCst)
    }
}

/// Ingress with one rule.
pub fn ingress(
    name: &str,
    host: &str,
    path: &str,
    kind: &str,
    service: &str,
    annotations: &[(&str, &str)],
) -> Value {
    let annotations: serde_json::Map<_, _> = annotations
        .iter()
        .map(|(name, value)| (format!("nginx.ingress.kubernetes.io/{name}"), json!(value)))
        .collect();
    json!({
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"ingressClassName": "tailwater", "rules": [{"host": host, "http": {"paths": [
            {"path": path, "pathType": kind, "backend": {"service": {"name": service, "port": {"number": 80}}}},
        ]}}]},
    })
}
