//! Checks of finished artifacts: each is unpacked by the tools of its users, and its server is started with the
//! configuration in it.

use std::env;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tw_testkit::ports::{self, Port};
use tw_testkit::process::Group;
use tw_testkit::server::Server;
use tw_testkit::{Client, Signal, TempDir, wait};

use super::{Artifact, Kind, image};
use crate::Failure;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Checked {
    /// The tools that unpacked it.
    Served(&'static str),
    /// Reason why the check was left out.
    LeftOut(String),
}

/// Unpacks an artifact, starts its server and requests a page.
pub(super) fn artifact(artifact: &Artifact, runs_here: bool) -> Result<Checked, Failure> {
    let directory = TempDir::new("artifact").map_err(|error| error.to_string())?;
    let to = directory.path();
    let tools = match artifact.kind {
        Kind::Archive => archive(&artifact.path, to)?,
        Kind::Deb => deb(&artifact.path, to)?,
        Kind::Rpm => rpm(&artifact.path, to)?,
        Kind::Image => image_layers(&artifact.path, to, image::PROGRAM)?,
        Kind::IngressImage => image_layers(&artifact.path, to, image::INGRESS_PROGRAM)?,
    };
    let tools = match tools {
        Ok(tools) => tools,
        Err(missing) => return Ok(Checked::LeftOut(missing)),
    };
    if !runs_here {
        return Ok(Checked::LeftOut(format!("unpacked by {tools}, not started: another architecture")));
    }
    let top = match artifact.kind {
        Kind::Archive => to.join(artifact.stem()),
        _ => to.to_owned(),
    };
    match artifact.kind {
        Kind::Archive => serve(&top, &top.join("bin/tailwater"), &top.join("share/tailwater/html"))?,
        Kind::Deb | Kind::Rpm => {
            serve(&top, &top.join("usr/sbin/tailwater"), &top.join("usr/share/tailwater/html"))?;
        }
        Kind::Image | Kind::IngressImage if !rustix::process::geteuid().is_root() => {
            return Ok(Checked::LeftOut("only root may change the root directory".to_owned()));
        }
        Kind::Image => serve_in_root(&top)?,
        Kind::IngressImage => {
            if let Some(missing) = control_in_root(&top)? {
                return Ok(Checked::LeftOut(missing));
            }
        }
    }
    Ok(Checked::Served(tools))
}

/// Tools that unpacked something, or what is missing for that.
type Unpacked = Result<&'static str, String>;

fn archive(file: &Path, to: &Path) -> Result<Unpacked, Failure> {
    if let Some(missing) = missing(&["tar", "zstd"]) {
        return Ok(Err(missing));
    }
    run(Command::new("tar").arg("-xf").arg(file).arg("-C").arg(to))?;
    Ok(Ok("tar"))
}

fn deb(file: &Path, to: &Path) -> Result<Unpacked, Failure> {
    if let Some(missing) = missing(&["dpkg-deb"]) {
        return Ok(Err(missing));
    }
    let package = output(Command::new("dpkg-deb").arg("-f").arg(file).arg("Package"))?;
    if package.trim() != "tailwater" {
        return Err(format!("dpkg-deb: the package is called {package}"));
    }
    run(Command::new("dpkg-deb").arg("-x").arg(file).arg(to))?;
    Ok(Ok("dpkg-deb"))
}

fn rpm(file: &Path, to: &Path) -> Result<Unpacked, Failure> {
    if missing(&["rpm"]).is_none() && rustix::process::geteuid().is_root() {
        run(Command::new("rpm").args(["-K", "--nosignature"]).arg(file).stdout(Stdio::null()))?;
        // Without scripts and dependencies, because an empty root directory has neither a shell nor libraries.
        let mut install = Command::new("rpm");
        install.args(["-i", "--nodeps", "--noscripts", "--ignorearch", "--root"]).arg(to).arg(file);
        run(&mut install)?;
        return Ok(Ok("rpm"));
    }
    if let Some(missing) = missing(&["rpm2cpio", "cpio"]) {
        return Ok(Err(missing));
    }
    let archive = to.join("archive");
    let writer = fs::File::create(&archive).map_err(|error| error.to_string())?;
    run(Command::new("rpm2cpio").arg(file).stdout(writer))?;
    let reader = fs::File::open(&archive).map_err(|error| error.to_string())?;
    run(Command::new("cpio").args(["-idm", "--quiet"]).current_dir(to).stdin(reader))?;
    Ok(Ok("rpm2cpio"))
}

fn image_layers(file: &Path, to: &Path, program: &str) -> Result<Unpacked, Failure> {
    if let Some(missing) = missing(&["tar", "gzip"]) {
        return Ok(Err(missing));
    }
    let parts = TempDir::new("image").map_err(|error| error.to_string())?;
    run(Command::new("tar").arg("-xf").arg(file).arg("-C").arg(parts.path()))?;
    let read = |path: &Path| -> Result<Value, Failure> {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))
    };
    let blob = |descriptor: &Value| -> Result<PathBuf, Failure> {
        let digest = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        let path = parts.join("blobs/sha256").join(digest.ok_or("the image has no digest")?);
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let is_same = Some(super::compress::sha256(&bytes).as_str()) == digest
            && Some(bytes.len() as u64) == descriptor["size"].as_u64();
        if is_same { Ok(path) } else { Err(format!("{} is another blob", path.display())) }
    };
    let index = read(&parts.join("index.json"))?;
    let manifest = read(&blob(&index["manifests"][0])?)?;
    let config = read(&blob(&manifest["config"])?)?;
    if config["config"]["Entrypoint"][0] != program {
        return Err("the image starts another program".to_owned());
    }
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        run(Command::new("tar").arg("-xzpf").arg(blob(layer)?).arg("-C").arg(to))?;
    }
    Ok(Ok("tar"))
}

/// Starts the server with the configuration below `top`, at a port of its own, and requests the page of the site.
fn serve(top: &Path, program: &Path, html: &Path) -> Result<(), Failure> {
    let conf = top.join("etc/tailwater");
    let read =
        |path: PathBuf| fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()));
    // These directives belong to the machine, not to the test.
    let elsewhere = ["user ", "pid ", "error_log ", "access_log ", "client_body_temp_path ", "listen [::]"];
    let is_here = |line: &&str| !elsewhere.iter().any(|word| line.trim_start().starts_with(word));
    let lines = |text: &str| text.lines().filter(is_here).collect::<Vec<_>>().join("\n");
    let site = read(conf.join("sites-available/default"))?;
    let root = site.lines().find(|line| line.trim().starts_with("root ")).unwrap_or_default();
    let site = lines(&site)
        .replace(root, &format!("root \"{}\";", html.display()))
        .replace("listen 80 ", "listen 127.0.0.1:{port} ");
    let include = |name: &str| format!("include \"{}\";", conf.join(name).display());
    let text = lines(&read(conf.join("nginx.conf"))?)
        .replace("include mime.types;", &include("mime.types"))
        .replace("include conf.d/*.conf;", &include("conf.d/*.conf"))
        .replace("include sites-enabled/*;", &site);
    let mut server =
        Server::build(program).with_master().start(&text).map_err(|error| format!("start: {error}"))?;
    let response = Client::get(server.addr(), "/").map_err(|error| format!("GET /: {error}"))?;
    if response.status != 200 || response.text() != read(html.join("index.html"))? {
        return Err(format!("GET /: {}{}", response.head, response.text()));
    }
    let status = server.stop().map_err(|error| format!("stop: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
}

/// Starts the program of an image in its root directory, as its user.
fn serve_in_root(top: &Path) -> Result<(), Failure> {
    let port = Port::reserve().map_err(|error| error.to_string())?;
    let conf = top.join("etc/tailwater/nginx.conf");
    let text = fs::read_to_string(&conf).map_err(|error| format!("{}: {error}", conf.display()))?;
    let text = text.replace(&image::PORT.to_string(), &port.number().to_string());
    fs::write(&conf, text).map_err(|error| format!("{}: {error}", conf.display()))?;
    let log = make_devices(top)?;
    let file = fs::File::options().append(true).open(&log).map_err(|error| error.to_string())?;
    let mut command = Command::new("chroot");
    // The root directory has no /proc, which a master needs.
    command
        .arg("--userspec=65532:0")
        .arg(top)
        .args([image::PROGRAM, "-p", image::PREFIX, "-g", "master_process off;"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .process_group(0);
    let mut group = Group::new(command.spawn().map_err(|error| format!("chroot: {error}"))?);
    let listens = wait::until(wait::TIMEOUT, || group.ended() || ports::listening(port.number()));
    if !listens || group.ended() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        return Err(format!("the image does not start: {text}"));
    }
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
    let response = Client::get(addr, "/").map_err(|error| format!("GET /: {error}"))?;
    let page = fs::read(top.join("srv/www/index.html")).map_err(|error| error.to_string())?;
    if response.status != 200 || response.body != page {
        return Err(format!("GET /: {}{}", response.head, response.text()));
    }
    group.signal(Signal::QUIT).map_err(|error| error.to_string())?;
    let status = group.wait(wait::TIMEOUT).map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
}

/// Makes the devices that a runtime makes. Returns the path of standard error.
fn make_devices(top: &Path) -> Result<PathBuf, Failure> {
    let devices = top.join("dev");
    let device = |name: &str| {
        let path = devices.join(name);
        fs::write(&path, "")?;
        fs::set_permissions(&path, Permissions::from_mode(0o666))
    };
    fs::create_dir_all(&devices)
        .and_then(|()| device("stdout"))
        .and_then(|()| device("stderr"))
        .and_then(|()| device("null"))
        .map_err(|error| format!("{}: {error}", devices.display()))?;
    Ok(devices.join("stderr"))
}

/// Starts the controller of an image in its root directory, as its user, with an API server that does not answer: the server that it starts
/// says that it lives, and that it is not ready. Returns what this machine lacks for that.
fn control_in_root(top: &Path) -> Result<Option<String>, Failure> {
    let proc = top.join("proc");
    fs::create_dir_all(&proc).map_err(|error| format!("{}: {error}", proc.display()))?;
    let mounted = |command: &str| {
        let mut unshare = Command::new("unshare");
        let script = format!("mount --rbind /proc \"$0\"/proc && exec {command}");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(top);
        unshare
    };
    let can_mount = mounted("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !can_mount {
        return Ok(Some("this process may not mount /proc in the image".to_owned()));
    }
    let log = make_devices(top)?;
    let port = || Port::reserve().map_err(|error| error.to_string());
    let http = port()?;
    let https = port()?;
    let status = port()?;
    let local = |port: &Port| format!("127.0.0.1:{}", port.number());
    let file = fs::File::options().append(true).open(&log).map_err(|error| error.to_string())?;
    let mut command = mounted("chroot --userspec=65532:0 \"$0\" \"$@\"");
    command
        .args([image::INGRESS_PROGRAM, "--apiserver", "http://127.0.0.1:1"])
        .args([
            "--http-port",
            &local(&http),
            "--https-port",
            &local(&https),
            "--status-port",
            &local(&status),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .process_group(0);
    let mut group = Group::new(command.spawn().map_err(|error| format!("unshare: {error}"))?);
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, status.number()));
    let said = |path: &str| Client::get(addr, path).map(|response| response.status).ok();
    let lives = wait::until(wait::TIMEOUT, || group.ended() || said("/livez") == Some(200));
    if !lives || group.ended() || said("/healthz") != Some(503) {
        let text = fs::read_to_string(&log).unwrap_or_default();
        return Err(format!("the controller in the image does not start its server: {text}"));
    }
    group.signal(Signal::TERM).map_err(|error| error.to_string())?;
    let status = group.wait(wait::TIMEOUT).map_err(|error| error.to_string())?;
    if status.success() { Ok(None) } else { Err(format!("the controller ended with {status}")) }
}

/// First of these programs that is not installed.
fn missing(programs: &[&str]) -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&&str| !env::split_paths(&path).any(|directory| directory.join(program).is_file());
    programs.iter().find(is_there).map(|program| format!("there is no {program}"))
}

fn run(command: &mut Command) -> Result<(), Failure> {
    let name = command.get_program().display().to_string();
    let status = command.status().map_err(|error| format!("cannot run {name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) }
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
