//! Real clients and servers of other protocols, if they are installed: Redis, PostgreSQL, dig and drill, OpenSSL, Mosquitto.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tw_testkit::dns::{Data, DnsServer, kind};
use tw_testkit::ports::{Port, listening};
use tw_testkit::process::Group;
use tw_testkit::tls::Authority;
use tw_testkit::{Lacks, Server, TempDir, leave_out, wait};

use super::start;
use crate::support::program::run;
use crate::support::server;

/// User without privileges, for servers that refuse to run as root.
const NOBODY: u32 = 65_534;

/// Server of another protocol. Dropping it ends it.
struct OtherServer {
    _group: Group,
    port: Port,
    dir: TempDir,
}

impl OtherServer {
    /// Starts what `command` makes of the port and a directory; `None`, with a message, if the program is not installed.
    fn start(program: &str, command: impl FnOnce(u16, &TempDir) -> Command) -> Option<Self> {
        let port = Port::reserve().unwrap();
        let dir = TempDir::new(program).unwrap();
        let mut command = command(port.number(), &dir);
        let output = File::create(dir.join("output")).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let Ok(child) = command.process_group(0).spawn() else {
            leave_out(Lacks::Machine, format_args!("no {program} to connect to"));
            return None;
        };
        let group = Group::new(child);
        let listens = wait::until(wait::TIMEOUT, || group.ended() || listening(port.number()));
        let other = Self { _group: group, port, dir };
        assert!(listens && listening(other.port.number()), "{}", other.output());
        Some(other)
    }

    fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    fn output(&self) -> String {
        fs::read_to_string(self.dir.join("output")).unwrap_or_default()
    }
}

fn port_of(server: &Server, index: usize) -> String {
    server.addr_of(index).port().to_string()
}

fn redis() -> Option<OtherServer> {
    OtherServer::start("redis-server", |port, dir| {
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--dir").arg(dir.path());
        command
    })
}

#[test]
fn redis_cli_works_through_tcp_and_tls() {
    let Some(redis) = redis() else { return };
    let authority = Authority::new();
    let dir = TempDir::new("redis-cli").unwrap();
    dir.write("ca.crt", authority.pem()).unwrap();
    let addr = redis.addr();
    let server = server()
        .certificate("one", &authority.certify(&["localhost", "127.0.0.1"]))
        .start(&format!(
            "stream {{ server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}
             server {{ listen 127.0.0.1:{{port1}} ssl; ssl_certificate one.crt; ssl_certificate_key one.key; proxy_pass {addr}; }} }}"
        ))
        .unwrap();
    let long = "x".repeat(200_000);
    let commands = format!("SET greeting hello\nGET greeting\nSET long {long}\nSTRLEN long\nGET long\n");
    for (index, tls) in [(0, &[][..]), (1, &["--tls", "--cacert", "ca.crt"])] {
        let port = port_of(&server, index);
        let args = [&["-h", "127.0.0.1", "-p", &port][..], tls].concat();
        let Some(output) = run("redis-cli", &dir, &args, &commands) else { return };
        if output.starts_with("Unrecognized option") {
            return leave_out(Lacks::Machine, "this redis-cli has no TLS");
        }
        assert!(output == format!("OK\nhello\nOK\n200000\n{long}\n"), "{:.300}", output);
    }
}

/// Directory of the server programs of PostgreSQL, which are not on the PATH.
fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|version| version.path().join("bin")).find(|dir| dir.join("initdb").is_file())
}

/// Takes the privileges of root, with which the server refuses to start.
fn unprivileged(program: &Path) -> Command {
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

#[test]
fn psql_works_through_tcp() {
    let Some(programs) = postgres_programs() else {
        return leave_out(Lacks::Machine, "no PostgreSQL to connect to");
    };
    let data = TempDir::new("postgres-data").unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(data.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut initdb = unprivileged(&programs.join("initdb"));
    initdb.args(["--username", "user", "--auth", "trust", "--no-sync", "--pgdata"]).arg(data.path());
    let made = initdb.current_dir("/").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let postgres = OtherServer::start("postgres", |port, _| {
        let mut command = unprivileged(&programs.join("postgres"));
        command.arg("-D").arg(data.path()).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        command.arg("-k").arg(data.path()).args(["-F", "-c", "shared_buffers=16MB"]).current_dir("/");
        command
    });
    let Some(postgres) = postgres else { return };
    let server = start(&format!(
        "upstream database {{ server 127.0.0.1:9; server {} backup; }}
         server {{ listen 127.0.0.1:{{port}} so_keepalive=on; proxy_pass database; proxy_connect_timeout 5s; }}",
        postgres.addr()
    ));
    let dir = TempDir::new("psql").unwrap();
    let port = port_of(&server, 0);
    let args = ["-h", "127.0.0.1", "-p", &port, "-U", "user", "-d", "postgres", "-A", "-t", "-q"];
    let commands = "CREATE TABLE t (a int, b text);
        INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 5000) n;
        SELECT count(*), sum(length(b)) FROM t;
        COPY t (a) TO STDOUT;\n";
    // PostgreSQL listens before it accepts sessions.
    let output = wait::some(wait::TIMEOUT, || {
        let output = run("psql", &dir, &args, commands);
        output.filter(|output| !output.contains("starting up"))
    });
    let Some(output) = output else { return };
    let mut lines = output.lines();
    assert_eq!(lines.next(), Some("5000|500000"), "{output:.300}");
    assert!(lines.eq((1..=5000).map(|number| number.to_string())));
}

/// Name server with a short answer for `short.example`, and one that needs TCP or a large datagram for `long.example`.
fn name_server() -> DnsServer {
    DnsServer::start(|query, out| {
        let mut answer = query.answer();
        if query.kind == kind::A {
            let count = if query.name == "long.example" { 200 } else { 1 };
            for last in 1..=count {
                answer = answer.record(&query.name, 60, Data::A([192, 0, 2, last].into()));
            }
        }
        out.send(answer.bytes());
    })
}

#[test]
fn dig_and_drill_work_through_udp_and_tcp() {
    let resolver = name_server();
    let addr = resolver.addr();
    let server = start(&format!(
        "log_format l '$protocol $status'; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_responses 1; proxy_timeout 5s; }}
         server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}"
    ));
    let dir = TempDir::new("dig").unwrap();
    let port = port_of(&server, 0);
    let common = ["@127.0.0.1", "-p", &port, "+short", "+tries=1", "+time=10", "+bufsize=8192"];
    for (transport, nth) in [("+notcp", 1), ("+tcp", 2)] {
        let dig = |name| run("dig", &dir, &[&common[..], &[transport, "+ignore", name, "A"]].concat(), "");
        let Some(short) = dig("short.example") else { break };
        assert_eq!(short, "192.0.2.1\n", "{transport}");
        let long = dig("long.example").unwrap();
        assert!(long.lines().eq((1..=200).map(|last| format!("192.0.2.{last}"))), "{transport}: {long}");
        let lines = server.access_log(2 * nth).unwrap();
        let protocol = if nth == 1 { "UDP 200" } else { "TCP 200" };
        assert!(lines[2 * (nth - 1)..].iter().all(|line| line == protocol), "{lines:?}");
    }
    for transport in ["-u", "-t"] {
        let args = ["-p", &port, transport, "short.example", "@127.0.0.1", "A"];
        let Some(answer) = run("drill", &dir, &args, "") else { return };
        assert!(answer.contains("NOERROR") && answer.contains("192.0.2.1"), "{transport}: {answer}");
    }
}

#[test]
fn openssl_reaches_the_server_of_its_name() {
    let authority = Authority::new();
    let dir = TempDir::new("s_client").unwrap();
    dir.write("ca.crt", authority.pem()).unwrap();
    let server = server()
        .certificate("one", &authority.certify(&["one.example"]))
        .certificate("two", &authority.certify(&["two.example", "a.two.example"]))
        .start(
            "stream {
                 map $ssl_preread_server_name $backend {
                     hostnames;
                     one.example 127.0.0.1:{port1};
                     .two.example 127.0.0.1:{port2};
                     default 127.0.0.1:{port3};
                 }
                 log_format l '[$ssl_preread_server_name] $ssl_preread_protocol [$ssl_preread_alpn_protocols]';
                 server { listen 127.0.0.1:{port}; ssl_preread on; proxy_pass $backend; access_log logs/access.log l; }
                 server { listen 127.0.0.1:{port1} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                          return 'one $ssl_protocol $ssl_server_name'; }
                 server { listen 127.0.0.1:{port2} ssl; ssl_certificate two.crt; ssl_certificate_key two.key;
                          return 'two $ssl_protocol $ssl_server_name'; }
                 server { listen 127.0.0.1:{port3} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                          return 'default [$ssl_server_name]'; }
             }",
        )
        .unwrap();
    let addr = server.addr().to_string();
    let common = ["s_client", "-quiet", "-connect", &addr, "-CAfile", "ca.crt", "-verify_return_error"];
    let cases = [
        (
            &["-servername", "one.example", "-alpn", "h2,x"][..],
            "one TLSv1.3 one.example",
            "[one.example] TLSv1.3 [h2,x]",
        ),
        (
            &["-servername", "a.two.example", "-tls1_2"],
            "two TLSv1.2 a.two.example",
            "[a.two.example] TLSv1.2 []",
        ),
        (&["-servername", "other.example"], "default [other.example]", "[other.example] TLSv1.3 []"),
        (&["-noservername"], "default []", "[] TLSv1.3 []"),
    ];
    for (index, (args, expected, logged)) in cases.into_iter().enumerate() {
        let Some(output) = run("openssl", &dir, &[&common[..], args].concat(), "") else { return };
        assert!(output.contains(expected), "{args:?}: {output}");
        assert_eq!(server.access_log(index + 1).unwrap()[index], logged);
    }
}

#[test]
fn mosquitto_works_behind_mqtt_preread() {
    let broker = OtherServer::start("mosquitto", |port, dir| {
        let conf = format!("listener {port} 127.0.0.1\nallow_anonymous true\nuser root\nlog_type all\n");
        let mut command = Command::new("mosquitto");
        command.arg("-c").arg(dir.write("mosquitto.conf", conf).unwrap());
        command
    });
    let Some(broker) = broker else { return };
    let addr = broker.addr();
    let server = start(&format!(
        "log_format l '[$mqtt_preread_clientid] [$mqtt_preread_username] $status'; access_log logs/access.log l;
         upstream brokers {{ hash $mqtt_preread_clientid consistent; server {addr}; }}
         server {{ listen 127.0.0.1:{{port}}; mqtt_preread on; proxy_pass brokers; }}
         server {{ listen 127.0.0.1:{{port1}}; mqtt_preread on; mqtt on; proxy_pass {addr};
                   mqtt_set_connect clientid changed-$mqtt_preread_clientid; }}"
    ));
    let dir = TempDir::new("mosquitto-clients").unwrap();
    for (nth, (index, version)) in
        [(0, "mqttv311"), (0, "mqttv5"), (1, "mqttv311"), (1, "mqttv5")].into_iter().enumerate()
    {
        let port = port_of(&server, index);
        let topic = format!("topic/{nth}");
        let id = format!("client-{nth}");
        let message = format!("message {nth} {}", "x".repeat(50_000));
        let common = ["-h", "127.0.0.1", "-p", &port, "-V", version, "-t", &topic, "-q", "1"];
        let publish = [&common[..], &["-i", &id, "-u", "name", "-r", "-m", &message]].concat();
        let Some(output) = run("mosquitto_pub", &dir, &publish, "") else { return };
        assert_eq!(output, "");
        let reader = format!("{id}-reader");
        let subscribe = [&common[..], &["-i", &reader, "-C", "1", "-W", "10"]].concat();
        let Some(output) = run("mosquitto_sub", &dir, &subscribe, "") else { return };
        assert!(output == format!("{message}\n"), "{output:.200}");
        let lines = server.access_log(2 * nth + 2).unwrap();
        assert!(lines.contains(&format!("[{id}] [name] 200")), "{lines:?}");
        assert!(lines.contains(&format!("[{reader}] [] 200")), "{lines:?}");
        let name = if index == 0 { format!(" as {id} ") } else { format!(" as changed-{id} ") };
        assert!(wait::until(wait::TIMEOUT, || broker.output().contains(&name)), "{}", broker.output());
    }
}
