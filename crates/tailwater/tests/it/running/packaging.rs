//! Files of `packaging/`: units, configurations, scripts and the description of the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tw_testkit::{Lacks, TempDir, leave_out, wait};

use crate::support::{page, request, server};

const HTTP: &str = "http { server { listen 127.0.0.1:{port}; return 200 served; } }";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn shipped(name: &str) -> String {
    let path = root().join("packaging").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// True if a program is installed; leaves the test out if not.
fn has(program: &str) -> bool {
    let is_here = Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success());
    if !is_here {
        leave_out(Lacks::Machine, format_args!("there is no {program}"));
    }
    is_here
}

fn output_of(run: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
}

#[test]
fn systemd_units_are_valid() {
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
    let said = output_of(&run);
    // Other units of the system may have errors of their own.
    assert!(run.status.success() && !said.contains("tailwater."), "{said}");
}

#[test]
fn capabilities_of_the_unit_suffice() {
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
    let site = shipped("sites/default").replace("/usr/share/tailwater/html", &here);
    dir.write("sites-enabled/default", site).unwrap();
    dir.write("nginx.conf", text).unwrap()
}

#[test]
fn shipped_configurations_pass_the_configuration_test() {
    for conf in ["nginx.conf", "container/nginx.conf"] {
        let dir = TempDir::new("shipped").unwrap();
        let conf = moved(conf, &dir);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        let run = command.arg("-T").arg("-p").arg(dir.path()).arg("-c").arg(conf).output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        let lines = said.lines().filter(|line| !line.contains("\"sandbox auto\" lets"));
        assert!(run.status.success() && lines.count() == 2, "{said}");
        let listens = String::from_utf8_lossy(&run.stdout).matches("default_server;").count();
        assert_eq!(listens, 2, "one server, over both families: {}", output_of(&run));
    }
}

#[test]
fn default_site_is_served_and_compressed() {
    let elsewhere = ["user ", "pid ", "error_log ", "access_log ", "client_body_temp_path ", "listen [::]"];
    let is_here = |line: &&str| !elsewhere.iter().any(|word| line.trim_start().starts_with(word));
    let here = |file: &str| {
        let text = shipped(file).lines().filter(is_here).collect::<Vec<_>>().join("\n");
        text.replace("/usr/share/tailwater/html", "html")
    };
    // Ports are filled in where the server is described.
    let conf = here("nginx.conf");
    let site = here("sites/default").replace("listen 80 ", "listen 127.0.0.1:{port} ");
    let conf = conf.replace("include sites-enabled/*;", &site);
    let types = fs::read(root().join("crates/tailwater/conf/mime.types")).unwrap();
    let index = shipped("html/index.html");
    let server = server()
        .file("conf/mime.types", types)
        .file("html/index.html", &*index)
        .file("html/a.js", "let a = 1;\n".repeat(100))
        .start(&conf)
        .unwrap();
    assert_eq!(page(&server, "/"), (200, index));
    assert_eq!(page(&server, "/none").0, 404);
    let response = request(&server, "GET /a.js", &["Accept-Encoding: gzip"]);
    assert_eq!(
        (response.status, response.field("Content-Encoding")),
        (200, Some("gzip")),
        "{}",
        response.head
    );
}

/// Text of a config map under a name: the indented lines after `NAME: |`.
fn block(manifest: &str, name: &str) -> String {
    let (_, rest) = manifest.split_once(&format!("\n  {name}: |\n")).unwrap();
    let lines =
        rest.lines().map_while(|line| if line.is_empty() { Some("") } else { line.strip_prefix("    ") });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn kubernetes_manifest_answers_its_probes() {
    let manifest = shipped("kubernetes.yaml");
    let conf = block(&manifest, "nginx.conf")
        .replace("listen 8080;", "listen 127.0.0.1:{port};")
        .replace("daemon off;", "")
        .replace("pid /run/tailwater/tailwater.pid;", "")
        .replace("include /etc/tailwater/mime.types;", "")
        .replace("/run/tailwater", "logs")
        .replace("/srv/www", "html");
    let index = block(&manifest, "index.html");
    let server = server().with_master().file("html/index.html", &*index).start(&conf).unwrap();
    assert_eq!(page(&server, "/"), (200, index));
    let probed =
        manifest.lines().filter_map(|line| line.trim().strip_prefix("httpGet: { path: ")?.split_once(','));
    let probed: Vec<_> = probed.map(|(path, _)| path).collect();
    assert_eq!(probed.len(), 2);
    for path in probed {
        assert_eq!(page(&server, path).0, 204, "{path}");
    }
    // The end comes before the runtime's patience does, and the image is of this version.
    let number = |before: &str| -> u64 {
        let (_, rest) = manifest.split_once(before).unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let end = number("worker_shutdown_timeout ") + number("preStop: { sleep: { seconds: ");
    assert!(end < number("terminationGracePeriodSeconds: "));
    assert!(manifest.contains(concat!("image: tailwater:", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn shell_completions_work() {
    if !has("bash") {
        return;
    }
    let script = root().join("packaging/completions/tailwater.bash");
    for (words, expected) in [
        ("s", "serve"),
        ("-s re", "reopen reload"),
        ("-c Cargo.t", "Cargo.toml"),
        ("-t serv", ""),
        ("serve --l", "--listen"),
        (
            "serve src --",
            "--listen --spa --php --compress --auth --tls --accept-terms --acme-directory --acme-ca --help",
        ),
        ("serve sr", "src"),
    ] {
        let request = format!(
            "source '{}'; COMP_WORDS=(tailwater {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tailwater; \
             echo \"${{COMPREPLY[*]}}\"",
            script.display()
        );
        let mut command = Command::new("bash");
        let run = command
            .args(["--norc", "-c", &request])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert_eq!(output_of(&run).trim_end(), expected, "{words}");
    }
}

#[test]
fn manual_pages_render_without_warnings() {
    if !has("man") {
        return;
    }
    for page in ["tailwater.8", "tailwater-slowdisk.8", "tailwater-top.1"] {
        let mut command = Command::new("man");
        command.args(["--warnings", "-l"]).arg(root().join("packaging/man").join(page)).env("MANWIDTH", "80");
        let run = command.output().unwrap();
        assert!(run.status.success() && run.stderr.is_empty(), "{}", output_of(&run));
        assert!(String::from_utf8_lossy(&run.stdout).contains("EXIT STATUS"), "{}", output_of(&run));
    }
}

#[test]
fn logrotate_configuration_rotates_logs() {
    let mut server = server().with_master().start(HTTP).unwrap();
    let rotate = shipped("logrotate/tailwater");
    let (_, script) = rotate.split_once("postrotate\n").unwrap();
    let (script, _) = script.split_once("endscript").unwrap();
    let prefix = server.prefix().display();
    let binary = env!("CARGO_BIN_EXE_tailwater");
    let ours = format!("{binary} -p {prefix} -c {prefix}/conf/nginx.conf");
    let script = script
        .replace("/usr/sbin/tailwater", &ours)
        .replace("/run/tailwater/tailwater.pid", &format!("{prefix}/logs/server.pid"));
    let log = server.prefix().join("logs/error.log");
    fs::rename(&log, server.prefix().join("logs/error.log.1")).unwrap();
    let run = Command::new("sh").args(["-ec", &script]).output().unwrap();
    assert!(run.status.success(), "{}", output_of(&run));
    assert!(wait::until(wait::TIMEOUT, || log.exists()));
    assert!(server.stop().unwrap().success());
    // Without a running server the script signals none, and succeeds.
    let run = Command::new("sh").args(["-ec", &script]).output().unwrap();
    assert!(run.status.success(), "{}", output_of(&run));
}

#[test]
fn maintainer_scripts_are_valid() {
    for script in
        ["deb/postinst", "deb/prerm", "deb/postrm", "rpm/pre", "rpm/post", "rpm/preun", "rpm/postun"]
    {
        let run = Command::new("sh").arg("-n").arg(root().join("packaging").join(script)).output().unwrap();
        assert!(run.status.success(), "{script}: {}", output_of(&run));
    }
}

/// Instructions of a Containerfile, with their words.
fn instructions(text: &str) -> Vec<(String, String)> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(' ').unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

#[test]
fn containerfile_is_valid_and_copies_existing_files() {
    let all = instructions(&shipped("container/Containerfile"));
    let known_names = ["FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT"];
    for (name, words) in &all {
        assert!(known_names.contains(&&**name), "{name} {words}");
    }
    assert_eq!(all.iter().filter(|(name, _)| name == "FROM").count(), 2);
    for (_, script) in all.iter().filter(|(name, _)| name == "RUN") {
        let run = Command::new("sh").args(["-nc", script]).output().unwrap();
        assert!(run.status.success(), "{script}: {}", output_of(&run));
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
