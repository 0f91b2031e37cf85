//! What `packaging/` ships works: units, configurations, scripts and the image's description.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tw_testkit::{Lacks, TempDir, leave_out, wait};

use crate::{ask, page, server};

const HTTP: &str = "http { server { listen 127.0.0.1:{port}; return 200 served; } }";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn shipped(name: &str) -> String {
    let path = root().join("packaging").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether a program is here; says that a test is left out if it is not.
fn has(program: &str) -> bool {
    let is_here = Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success());
    if !is_here {
        leave_out(Lacks::Machine, format_args!("there is no {program}"));
    }
    is_here
}

fn told(run: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
}

#[test]
fn units_are_units() {
    if !has("systemd-analyze") {
        return;
    }
    let dir = TempDir::new("units").unwrap();
    for unit in ["tailwater.service", "tailwater.socket"] {
        let text = shipped(&format!("systemd/{unit}"));
        dir.write(unit, text.replace("/usr/sbin/tailwater", env!("CARGO_BIN_EXE_tailwater"))).unwrap();
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]).args([dir.join("tailwater.service"), dir.join("tailwater.socket")]);
    let run = command.output().unwrap();
    let said = told(&run);
    // Other units of the system may have faults of their own.
    assert!(run.status.success() && !said.contains("tailwater."), "{said}");
}

#[test]
fn the_capabilities_of_the_unit_are_enough() {
    if !rustix::process::geteuid().is_root() {
        return leave_out(Lacks::Run, "only root has capabilities to take away");
    }
    if !has("setpriv") {
        return;
    }
    let unit = shipped("systemd/tailwater.service");
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let kept: String =
        set.split(' ').map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase())).collect();
    let bounding = format!("--bounding-set=-all{kept}");
    let by = ["setpriv", "--no-new-privs", "--inh-caps=-all", &bounding];
    let mut server = server().by(&by).with_master().start(&format!("user daemon daemon; {HTTP}")).unwrap();
    assert_eq!(page(&server, "/").1, "served");
    let owner = fs::metadata(server.prefix().join("client_body_temp")).unwrap();
    assert_ne!(std::os::unix::fs::MetadataExt::uid(&owner), 0, "the directory is the user's");
    assert!(server.stop().unwrap().success());
}

/// A configuration with its paths in `dir`, as a file there.
fn moved(conf: &str, dir: &TempDir) -> PathBuf {
    let here = dir.path().to_string_lossy();
    let mut text = shipped(conf).replace("user tailwater;", "");
    for path in ["/run/tailwater", "/var/log/tailwater", "/var/lib/tailwater", "/srv/www"] {
        text = text.replace(path, &here);
    }
    let types = fs::read(root().join("crates/tailwater/conf/mime.types")).unwrap();
    dir.write("mime.types", types).unwrap();
    dir.write("nginx.conf", text).unwrap()
}

#[test]
fn configurations_pass_their_test() {
    for conf in ["nginx.conf", "container/nginx.conf"] {
        let dir = TempDir::new("shipped").unwrap();
        let conf = moved(conf, &dir);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        let run = command.arg("-t").arg("-p").arg(dir.path()).arg("-c").arg(conf).output().unwrap();
        let said = told(&run);
        assert!(run.status.success() && said.lines().count() == 2, "{said}");
    }
}

#[test]
fn scripts_are_compressed() {
    let elsewhere = ["user ", "pid ", "error_log ", "access_log ", "client_body_temp_path ", "listen [::]"];
    let is_here = |line: &&str| !elsewhere.iter().any(|word| line.trim_start().starts_with(word));
    let conf = shipped("nginx.conf").lines().filter(is_here).collect::<Vec<_>>().join("\n");
    let conf = conf
        .replace("listen 80 default_server;", "listen 127.0.0.1:{port};")
        .replace("/usr/share/tailwater/html", "html");
    let types = fs::read(root().join("crates/tailwater/conf/mime.types")).unwrap();
    let server = server()
        .file("conf/mime.types", types)
        .file("html/a.js", "let a = 1;\n".repeat(100))
        .start(&conf)
        .unwrap();
    let response = ask(&server, "GET /a.js", &["Accept-Encoding: gzip"]);
    assert_eq!(
        (response.status, response.field("Content-Encoding")),
        (200, Some("gzip")),
        "{}",
        response.head
    );
}

#[test]
fn logs_are_rotated_as_the_package_does_it() {
    let mut server = server().with_master().start(HTTP).unwrap();
    let rotate = shipped("debian/tailwater.logrotate");
    let (_, script) = rotate.split_once("postrotate\n").unwrap();
    let (script, _) = script.split_once("endscript").unwrap();
    let (prefix, binary) = (server.prefix().display(), env!("CARGO_BIN_EXE_tailwater"));
    let ours = format!("{binary} -p {prefix} -c {prefix}/conf/nginx.conf");
    let script = script
        .replace("/usr/sbin/tailwater", &ours)
        .replace("/run/tailwater/tailwater.pid", &format!("{prefix}/logs/server.pid"));
    let log = server.prefix().join("logs/error.log");
    fs::rename(&log, server.prefix().join("logs/error.log.1")).unwrap();
    let run = Command::new("sh").args(["-ec", &script]).output().unwrap();
    assert!(run.status.success(), "{}", told(&run));
    assert!(wait::until(wait::PATIENCE, || log.exists()));
    assert!(server.stop().unwrap().success());
    // Nobody is told when nobody runs.
    let run = Command::new("sh").args(["-ec", &script]).output().unwrap();
    assert!(run.status.success(), "{}", told(&run));
}

#[test]
fn scripts_of_the_package_are_scripts() {
    for script in ["tailwater.postinst", "tailwater.postrm"] {
        let path = root().join("packaging/debian").join(script);
        let run = Command::new("sh").arg("-n").arg(&path).output().unwrap();
        assert!(run.status.success(), "{}", told(&run));
        assert!(shipped(&format!("debian/{script}")).contains("\n#DEBHELPER#\n"));
    }
    for line in shipped("debian/tailwater.install").lines() {
        let (from, _) = line.split_once(' ').unwrap();
        assert!(root().join(from).exists(), "{from}");
    }
    let version = env!("CARGO_PKG_VERSION");
    let first = shipped("debian/changelog");
    assert!(first.starts_with(&format!("tailwater ({version})")), "{first}");
}

/// Instructions of a Containerfile, with their words.
fn instructions(text: &str) -> Vec<(String, String)> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

#[test]
fn the_image_is_described_and_what_it_copies_is_here() {
    let all = instructions(&shipped("container/Containerfile"));
    let known = ["FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"];
    for (name, words) in &all {
        assert!(known.contains(&&**name), "{name} {words}");
    }
    assert_eq!(all.iter().filter(|(name, _)| name == "FROM").count(), 2);
    for (_, script) in all.iter().filter(|(name, _)| name == "RUN") {
        let run = Command::new("sh").args(["-nc", script]).output().unwrap();
        assert!(run.status.success(), "{script}: {}", told(&run));
        let copied = script.strip_prefix("cp ").map(|words| words.split(' ').collect::<Vec<_>>());
        if let Some((_, sources)) = copied.as_deref().and_then(<[_]>::split_last) {
            for source in sources.iter().filter(|source| !source.starts_with("target/")) {
                assert!(root().join(source).exists(), "{source}");
            }
        }
    }
    let has = |name: &str, words: &str| all.contains(&(name.to_owned(), words.to_owned()));
    assert!(has("STOPSIGNAL", "SIGQUIT") && has("USER", "65532:0"));
    assert!(has("ENTRYPOINT", "[\"/usr/sbin/tailwater\"]"));
}
