//! Configurations of a fleet: pushed, rolled out in waves, refused, rolled back, and kept while the engine is away.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tw_fleet::{ConfigurationOrder, ConfigurationReport, SigningKey};
use tw_testkit::etcd::RealEtcd;
use tw_testkit::nats::FakeNats;
use tw_testkit::process::Group;
use tw_testkit::{Client, Server, TempDir, wait};

use crate::support::metrics::{metrics_text, try_metric};
use crate::support::server;

/// Store of configurations of the fleet.
const BUCKET: &str = "tailwater_configuration-edge";

/// Main file of all versions. What differs between nodes is in `local`, two directories above a version.
fn main_file(engine: &str, site: &str) -> String {
    format!(
        "include ../../local/main.conf;\n\
         fleet edge {{ include ../../local/node.conf; engine {engine}; }}\n\
         http {{ server {{ include ../../local/listen.conf;\n\
         location = /metrics {{ metrics; }}\n\
         {site}\n\
         }} }}\n"
    )
}

/// Command of the program under test, with the configuration of a prefix.
fn program(prefix: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command.args(words).arg("-p").arg(prefix).stdin(Stdio::null());
    command
}

/// A server, whose `conf` is the link of a program that follows the fleet for it.
struct Node {
    server: Server,
    follower: Group,
    /// The server after a restart.
    restarted: Option<Group>,
}

impl Node {
    fn start(engine: &str, key: &Path, at: usize) -> Self {
        let first = format!(
            "user root root; fleet edge {{ node n{at}; engine {engine}; }} http {{ server {{ listen 127.0.0.1:{{port}}; \
             location = /metrics {{ metrics; }} location / {{ return 200 first; }} }} }}"
        );
        let server = server().with_master().start(&first).unwrap();
        let prefix = server.prefix().to_owned();
        write_local(&prefix, &format!("n{at}"), server.addr().port());
        fs::create_dir(prefix.join("fleet")).unwrap();
        fs::rename(prefix.join("conf"), prefix.join("fleet/first")).unwrap();
        symlink("first", prefix.join("fleet/current")).unwrap();
        symlink("fleet/current", prefix.join("conf")).unwrap();
        let follower = follow(&server, key);
        Self { server, follower, restarted: None }
    }

    fn body(&self) -> String {
        Client::get(self.server.addr(), "/").map(|response| response.text()).unwrap_or_default()
    }

    fn wait_body(&self, expected: &str) {
        let mut last = String::new();
        let is_served = || {
            last = self.body();
            last == expected
        };
        assert!(wait::until(wait::TIMEOUT, is_served), "{last:?} is not {expected:?}: {}", self.said());
    }

    /// Output of the program that follows.
    fn said(&self) -> String {
        fs::read_to_string(self.server.prefix().join("follow.log")).unwrap_or_default()
    }

    fn wait_said(&self, expected: &str) {
        assert!(wait::until(wait::TIMEOUT, || self.said().contains(expected)), "{}", self.said());
    }
}

/// Starts the program that follows for a server.
fn follow(server: &Server, key: &Path) -> Group {
    let prefix = server.prefix();
    let log = fs::OpenOptions::new().append(true).create(true).open(prefix.join("follow.log")).unwrap();
    let mut command = program(prefix, &["fleet", "follow", "-c", "nginx.conf"]);
    command.arg("--trust").arg(key).arg("--directory").arg(prefix.join("fleet"));
    command.arg("--metrics").arg(format!("http://{}/metrics", server.addr()));
    Group::new(command.stderr(log).stdout(Stdio::null()).process_group(0).spawn().unwrap())
}

/// Files that a node, or the operator, does not push.
fn write_local(prefix: &Path, name: &str, port: u16) {
    fs::create_dir_all(prefix.join("local")).unwrap();
    let main = "user root root; daemon off; pid logs/server.pid; error_log logs/error.log info; events { }\n";
    for (file, text) in [
        ("main.conf", main.to_owned()),
        ("node.conf", format!("node {name};\n")),
        ("listen.conf", format!("listen 127.0.0.1:{port};\n")),
        ("own.conf", String::new()),
    ] {
        fs::write(prefix.join("local").join(file), text).unwrap();
    }
}

/// Engine, nodes, and the place where versions are written and pushed.
struct TestFleet<E = FakeNats> {
    engine: E,
    /// Address of the engine.
    url: String,
    place: TempDir,
    nodes: Vec<Node>,
}

impl TestFleet {
    fn start(count: usize) -> Self {
        let engine = FakeNats::start();
        let url = engine.url();
        Self::with(engine, url, count)
    }
}

impl<E> TestFleet<E> {
    fn with(engine: E, url: String, count: usize) -> Self {
        let place = TempDir::new("rollout").unwrap();
        write_local(place.path(), "operator", 1);
        for directory in ["logs", "conf/src"] {
            fs::create_dir_all(place.join(directory)).unwrap();
        }
        let fleet = Self { engine, url, place, nodes: Vec::new() };
        for name in ["key", "rogue"] {
            let made = program(fleet.place.path(), &["fleet", "key"])
                .arg("--key")
                .arg(fleet.place.join(name))
                .output();
            assert!(made.unwrap().status.success());
        }
        let nodes = (0..count).map(|at| Node::start(&fleet.url, &fleet.trusted(), at)).collect();
        let fleet = Self { nodes, ..fleet };
        // Nodes learn from the store that they report, and the command reads the reports of all.
        let all_report = || {
            let prefix = fleet.nodes[0].server.prefix();
            let mut status = program(prefix, &["fleet", "status"]);
            let output = status.arg("-c").arg(prefix.join("conf/nginx.conf")).output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            let reports = text.rsplit("\nconfiguration ").next().unwrap_or_default().to_owned();
            text.contains("\nconfiguration ") && (0..count).all(|at| reports.contains(&format!("\nn{at} ")))
        };
        assert!(wait::until(wait::TIMEOUT, all_report), "{}", fleet.nodes[0].said());
        fleet
    }

    fn trusted(&self) -> PathBuf {
        self.place.join("key.pub")
    }

    fn command(&self, words: &[&str], key: &str) -> Command {
        let mut command = program(self.place.path(), &[&["fleet"], words].concat());
        command.arg("-c").arg(self.place.join("conf/src/nginx.conf"));
        command.arg("--key").arg(self.place.join(key));
        command
    }

    /// Runs a command of the operator.
    fn run(&self, words: &[&str]) -> (bool, String) {
        self.run_with(words, "key")
    }

    /// Orders the version before as soon as the engine is there again.
    fn wait_rollback(&self) {
        let mut last = String::new();
        let is_back = || {
            let (is_done, text) = self.run(&["rollback"]);
            last = text;
            is_done
        };
        assert!(wait::until(3 * wait::TIMEOUT, is_back), "{last}");
    }

    fn run_with(&self, words: &[&str], key: &str) -> (bool, String) {
        let output = self.command(words, key).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    fn write(&self, site: &str) {
        fs::write(self.place.join("conf/src/nginx.conf"), main_file(&self.url, "include site/a.conf;"))
            .unwrap();
        fs::create_dir_all(self.place.join("conf/src/site")).unwrap();
        fs::write(self.place.join("conf/src/site/a.conf"), format!("{site}\n")).unwrap();
    }

    fn push(&self, site: &str) {
        self.write(site);
        let (is_done, text) = self.run(&["push"]);
        assert!(is_done, "{text}");
    }

    fn roll_out(&self, settle: &str) -> (bool, String) {
        self.run(&["rollout", "--waves", "1", "--settle", settle])
    }

    fn serve(&self, body: &str) {
        self.push(&format!("location / {{ return 200 {body}; }}"));
        let (is_done, text) = self.roll_out("1");
        assert!(is_done, "{text}");
        self.nodes.iter().for_each(|node| node.wait_body(body));
    }
}

#[test]
fn versions_are_pushed_compared_and_rolled_out_in_waves() {
    let fleet = TestFleet::start(3);
    fleet.write("location / { return 200 one; }");
    let (is_done, text) = fleet.run(&["diff"]);
    assert!(!is_done && text.contains("no version was pushed"), "{text}");
    let (is_done, text) = fleet.run(&["push", "--author", "ops"]);
    assert!(is_done && text.starts_with("version 1, 2 files, digest "), "{text}");
    assert_eq!(text.matches("not pushed, each node has its own: ").count(), 3, "{text}");
    assert_eq!(fleet.run(&["diff"]), (true, "no difference from version 1\n".to_owned()));
    assert_eq!(fleet.nodes[0].body(), "first", "a push alone changes nothing");
    let (is_done, text) = fleet.roll_out("1");
    assert!(is_done, "{text}");
    assert_eq!(
        text,
        "wave 1 of 2: version 1 for n0\nwave 2 of 2: version 1 for n1, n2\nversion 1 is served by 3 nodes\n"
    );
    fleet.nodes.iter().for_each(|node| node.wait_body("one"));
    fleet.write("location / { return 200 two; }");
    let (is_done, text) = fleet.run(&["diff"]);
    assert!(is_done, "{text}");
    assert_eq!(
        text,
        "--- version 1 site/a.conf\n+++ site/a.conf\n@@ line 1 @@\n\
         -location / { return 200 one; }\n+location / { return 200 two; }\n"
    );
    fleet.serve("two");
    let (is_done, text) = fleet.run(&["rollback"]);
    assert!(is_done && text.matches("serves version 1 again").count() == 3, "{text}");
    fleet.nodes.iter().for_each(|node| node.wait_body("one"));
    // A second rollback goes further back, not to the version that was just rolled back.
    let (is_done, text) = fleet.run(&["rollback"]);
    assert!(is_done && text.matches("serves version 0 again").count() == 3, "{text}");
    fleet.nodes.iter().for_each(|node| node.wait_body("first"));
    let (is_done, text) = fleet.run(&["rollback"]);
    assert!(!is_done && text.contains("no node serves a version that was pushed"), "{text}");
}

#[test]
fn version_that_a_node_refuses_is_rolled_back_on_all() {
    let fleet = TestFleet::start(2);
    fleet.serve("one");
    // Valid for the operator and the first node.
    fs::write(fleet.nodes[1].server.prefix().join("local/own.conf"), "no_such_directive on;\n").unwrap();
    fleet.push("include ../../local/own.conf; location / { return 200 two; }");
    let (is_done, text) = fleet.roll_out("1");
    assert!(!is_done, "{text}");
    for expected in [
        "wave 2 of 2: version 2 for n1\n",
        "version 2 is rolled back: n1 refuses it: ",
        "unknown directive \"no_such_directive\"",
        "n0 serves version 1 again\n",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
    fleet.nodes.iter().for_each(|node| node.wait_body("one"));
    let link = fs::read_link(fleet.nodes[1].server.prefix().join("fleet/current")).unwrap();
    assert_eq!(link, Path::new("v1"));
}

#[test]
fn version_that_answers_errors_is_rolled_back_and_never_the_previous_one() {
    let fleet = TestFleet::start(2);
    fleet.serve("one");
    fleet.push("location / { return 500 bad; }");
    let address = fleet.nodes[0].server.addr();
    let is_over = AtomicBool::new(false);
    let (is_done, text) = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                let _ = Client::get(address, "/");
                wait::pause(Duration::from_millis(20));
            }
        });
        let done = fleet.roll_out("30");
        is_over.store(true, Relaxed);
        done
    });
    assert!(!is_done, "{text}");
    assert!(
        text.contains("version 2 is rolled back: n0 answers ") && text.contains(" requests with 5xx"),
        "{text}"
    );
    assert!(text.contains("n0 serves version 1 again\n") && !text.contains("wave 2 of 2: "), "{text}");
    fleet.nodes.iter().for_each(|node| node.wait_body("one"));
    let (is_done, text) = fleet.run(&["rollback"]);
    assert!(is_done && text.matches("serves version 0 again").count() == 2, "{text}");
    fleet.nodes.iter().for_each(|node| node.wait_body("first"));
}

#[test]
fn versions_and_orders_of_another_key_are_refused() {
    let fleet = TestFleet::start(2);
    fleet.write("location / { return 200 forged; }");
    assert!(fleet.run_with(&["push"], "rogue").0);
    let (is_done, text) = fleet.roll_out("1");
    assert!(
        !is_done && text.contains("n0 refuses it: its signature is not that of the trusted key"),
        "{text}"
    );
    assert_eq!(fleet.nodes[0].body(), "first");
    // An order of the right key, on the way to another node.
    let order = fleet.engine.values(BUCKET)["order.n0"].clone();
    fleet.engine.set_value(BUCKET, "order.n1", &order);
    fleet.nodes[1].wait_said("an order for this node is ignored: it is for another node");
    let mut command = fleet.command(&["rollout", "--waves", "1"], "rogue");
    let rollout = command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap();
    let rollout = Group::new(rollout);
    fleet.nodes[0]
        .wait_said("an order for this node is ignored: its signature is not that of the trusted key");
    drop(rollout);
    assert_eq!(fleet.nodes[0].body(), "first");
}

#[test]
fn restarted_node_without_engine_serves_its_last_version() {
    let mut fleet = TestFleet::start(1);
    fleet.serve("one");
    fleet.serve("two");
    fleet.engine.go_away();
    let key = fleet.trusted();
    let node = &mut fleet.nodes[0];
    node.server.stop().unwrap();
    assert_eq!(node.body(), "");
    let prefix = node.server.prefix().to_owned();
    let mut command = program(&prefix, &[]);
    command.arg("-c").arg(prefix.join("conf/nginx.conf")).stdout(Stdio::null()).stderr(Stdio::null());
    node.restarted = Some(Group::new(command.process_group(0).spawn().unwrap()));
    node.follower = follow(&node.server, &key);
    node.wait_body("two");
    node.wait_said("the engine is away, the configuration stays as it is");
    let (is_done, text) = fleet.run(&["rollback"]);
    assert!(!is_done && text.contains("the engine of the fleet: "), "{text}");
    fleet.engine.come_back();
    fleet.wait_rollback();
    fleet.nodes[0].wait_body("one");
}

#[test]
fn node_goes_back_by_itself_when_the_command_is_gone() {
    let fleet = TestFleet::start(2);
    fleet.serve("one");
    fleet.push("location / { return 500 bad; }");
    // For a while, the version to go back to cannot be loaded.
    let main = fleet.nodes[0].server.prefix().join("fleet/v1/nginx.conf");
    let aside = main.with_extension("aside");
    fs::rename(&main, &aside).unwrap();
    let mut command = fleet.command(&["rollout", "--waves", "1", "--settle", "60"], "key");
    let rollout = command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap();
    let rollout = Group::new(rollout);
    fleet.nodes[0].wait_body("bad");
    drop(rollout);
    let address = fleet.nodes[0].server.addr();
    let is_stuck = || {
        let _ = Client::get(address, "/");
        fleet.nodes[0].said().contains(", and cannot go back from version 2: ")
    };
    assert!(wait::until(3 * wait::TIMEOUT, is_stuck), "{}", fleet.nodes[0].said());
    assert_eq!(fleet.nodes[0].body(), "bad");
    fs::rename(&aside, &main).unwrap();
    let is_back = || {
        let _ = Client::get(address, "/");
        fleet.nodes[0].said().contains(" requests with 5xx with version 2: version 1 is served again")
    };
    assert!(wait::until(3 * wait::TIMEOUT, is_back), "{}", fleet.nodes[0].said());
    fleet.nodes[0].wait_body("one");
    assert_eq!(fleet.nodes[1].body(), "one", "the second wave was never ordered");
    let is_reported = || {
        let report = fleet.engine.values(BUCKET)["report.n0"].clone();
        String::from_utf8(report).unwrap().contains("went back from version 2 by itself, because it answers ")
    };
    assert!(wait::until(wait::TIMEOUT, is_reported), "{}", fleet.nodes[0].said());
    // The node does not try version 2 again, and takes a better one.
    fleet.serve("three");
}

#[test]
fn order_back_from_a_version_that_is_not_served_changes_nothing() {
    let fleet = TestFleet::start(1);
    fleet.serve("one");
    fleet.serve("two");
    let key = SigningKey::read(&fs::read_to_string(fleet.place.join("key")).unwrap()).unwrap();
    let order = |serial: u64, leaves: u64| {
        let order = ConfigurationOrder {
            fleet: "edge".to_owned(),
            node: "n0".to_owned(),
            number: 0,
            digest: String::new(),
            serial,
            settle_s: 0,
            max_errors: 0,
            leaves: Some(leaves),
        };
        fleet.engine.set_value(BUCKET, "order.n0", &order.sign(&key));
        let mut report = ConfigurationReport::default();
        let is_noted = || {
            let value = fleet.engine.values(BUCKET)["report.n0"].clone();
            report = ConfigurationReport::decode("n0", &value).unwrap_or_default();
            report.serial == serial
        };
        assert!(wait::until(wait::TIMEOUT, is_noted), "{report:?} {}", fleet.nodes[0].said());
        report.number
    };
    assert_eq!(order(u64::MAX - 1, 3), 2);
    fleet.nodes[0].wait_body("two");
    assert_eq!(order(u64::MAX, 2), 1);
    fleet.nodes[0].wait_body("one");
}

#[test]
fn versions_are_rolled_out_and_back_over_etcd() {
    let Some(engine) = RealEtcd::start(&[]) else { return };
    let url = engine.url();
    let mut fleet = TestFleet::with(engine, url, 2);
    fleet.write("location / { return 200 one; }");
    let (is_done, text) = fleet.run(&["diff"]);
    assert!(!is_done && text.contains("no version was pushed"), "{text}");
    fleet.serve("one");
    fleet.serve("two");
    let is_counted = || {
        let series = "fleet_configuration_version{fleet=\"edge\",state=\"serving\"}";
        fleet.nodes.iter().all(|node| try_metric(&node.server, series) == Some(2_u64))
    };
    assert!(wait::until(wait::TIMEOUT, is_counted), "{}", metrics_text(&fleet.nodes[0].server));
    fs::write(fleet.nodes[1].server.prefix().join("local/own.conf"), "no_such_directive on;\n").unwrap();
    fleet.push("include ../../local/own.conf; location / { return 200 bad; }");
    let (is_done, text) = fleet.roll_out("1");
    assert!(!is_done && text.contains("version 3 is rolled back: n1 refuses it: "), "{text}");
    fleet.nodes.iter().for_each(|node| node.wait_body("two"));
    // While the engine is down, the configuration stays in effect. When it returns, rollouts work as before.
    fleet.engine.stop();
    fleet.nodes[0].wait_said("the engine is away, the configuration stays as it is");
    fleet.nodes.iter().for_each(|node| node.wait_body("two"));
    fleet.engine.start_again();
    fleet.wait_rollback();
    fleet.nodes.iter().for_each(|node| node.wait_body("one"));
}
