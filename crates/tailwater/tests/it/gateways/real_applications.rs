//! Real applications: PHP behind php-fpm, Python behind uWSGI and flup, and the examples of their pages in `docs/`.
//! Tests whose application is not installed are left out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tw_testkit::ports::Port;
use tw_testkit::process::Group;
use tw_testkit::{Client, Lacks, Server, TempDir, leave_out, wait};

use crate::support::{get, page, request, server};

/// Path of php-fpm, where distributions install it.
fn php_fpm() -> Option<PathBuf> {
    let places = ["/usr/sbin", "/usr/local/sbin", "/usr/bin"];
    let mut paths: Vec<PathBuf> = places
        .iter()
        .filter_map(|place| fs::read_dir(place).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("php-fpm")
        })
        .collect();
    paths.sort();
    paths.pop()
}

/// Running php-fpm with a site.
struct Php {
    dir: TempDir,
    _group: Group,
}

impl Php {
    /// Starts php-fpm; `None`, with a message, if it is not installed.
    fn start() -> Option<Self> {
        let Some(program) = php_fpm() else {
            leave_out(Lacks::Machine, "PHP behind fastcgi_pass: there is no php-fpm");
            return None;
        };
        let dir = TempDir::new("php").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, text) in [
            // A front controller, as WordPress has one.
            (
                "index.php",
                "<?php header('X-Front: yes'); echo $_SERVER['REQUEST_METHOD'], ' ', $_SERVER['REQUEST_URI'], ' ', \
                 $_SERVER['PATH_INFO'] ?? '-', ' ', $_GET['q'] ?? '-';",
            ),
            (
                "upload.php",
                "<?php $file = $_FILES['file']; echo $file['error'], ' ', $file['size'], ' ', \
                 hash_file('crc32b', $file['tmp_name']);",
            ),
            (
                "body.php",
                "<?php $body = fopen('php://input', 'r'); $size = 0; \
                 while (!feof($body)) { $size += strlen(fread($body, 65536)); } echo $size;",
            ),
            ("protected.php", "<?php header('X-Accel-Redirect: /protected/file');"),
            ("warn.php", "<?php error_log('a warning of ours'); echo 'warned';"),
            ("large.php", "<?php echo str_repeat('x', 3 << 20);"),
            ("time.php", "<?php echo hrtime(true);"),
            ("upload/photo.jpg", "<?php echo 'photo.jpg was run';"),
            ("protected/file", "what is protected"),
            ("static.txt", "static"),
        ] {
            dir.write(format!("site/{name}"), text).unwrap();
        }
        let here = dir.path().display();
        let is_root = rustix::process::geteuid().is_root();
        let user = if is_root { "user = root\ngroup = root\n" } else { "" };
        let conf = dir
            .write(
                "fpm.conf",
                format!(
                    "[global]\nerror_log = {here}/fpm.log\ndaemonize = no\n[www]\n{user}listen = {here}/fpm.sock\n\
                     listen.mode = 0666\npm = static\npm.max_children = 3\ncatch_workers_output = yes\n\
                     php_admin_value[upload_max_filesize] = 200M\nphp_admin_value[post_max_size] = 210M\n\
                     php_admin_value[cgi.fix_pathinfo] = 1\nsecurity.limit_extensions =\n"
                ),
            )
            .unwrap();
        let mut command = Command::new(program);
        command
            .arg("-F")
            .arg("-y")
            .arg(&conf)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if is_root {
            command.arg("-R");
        }
        let group = Group::new(command.process_group(0).spawn().unwrap());
        let socket = dir.join("fpm.sock");
        let log = || fs::read_to_string(dir.join("fpm.log")).unwrap_or_default();
        assert!(wait::until(wait::TIMEOUT, || UnixStream::connect(&socket).is_ok()), "{}", log());
        Some(Self { dir, _group: group })
    }

    fn socket(&self) -> String {
        format!("unix:{}", self.dir.join("fpm.sock").display())
    }

    /// A server in front of it, with the files that the package ships.
    fn behind(&self, more: &str) -> Server {
        let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
        let http = format!(
            "client_max_body_size 0; fastcgi_cache_path cache keys_zone=pages:1m;
             server {{ listen 127.0.0.1:{{port}}; root {root};
                 location / {{ try_files $uri /index.php$is_args$args; }}
                 location /protected/ {{ internal; }}
                 location ~ \\.php(/|$) {{
                     fastcgi_split_path_info ^(.+?\\.php)(/.*|)$;
                     set $rest_of_path $fastcgi_path_info;
                     try_files $fastcgi_script_name =404;
                     include {conf}/fastcgi.conf;
                     fastcgi_param PATH_INFO $rest_of_path;
                     fastcgi_pass {socket};
                     {more}
                 }} }}",
            root = self.dir.join("site").display(),
            conf = conf.display(),
            socket = self.socket(),
        );
        crate::support::start_as_we_are(server().with_master(), &http)
    }
}

#[test]
fn php_front_controller_answers() {
    let Some(php) = Php::start() else { return };
    let server = php.behind("");
    for (target, expected) in [
        ("/", "GET /  -"),
        ("/a/page?q=1", "GET /a/page?q=1  1"),
        ("/index.php/info/of%20it?q=2", "GET /index.php/info/of%20it?q=2 /info/of it 2"),
    ] {
        let response = get(&server, target);
        assert_eq!((response.status, &*response.text()), (200, expected), "{target}");
        assert_eq!(response.field("X-Front"), Some("yes"));
    }
    assert_eq!(page(&server, "/static.txt"), (200, "static".to_owned()));
    assert_eq!(get(&server, "/large.php").body.len(), 3 << 20);
    assert_eq!(page(&server, "/protected.php"), (200, "what is protected".to_owned()));
    assert_eq!(page(&server, "/protected/file").0, 404);
    assert_eq!(page(&server, "/warn.php").1, "warned");
    server.wait_error_log("a warning of ours").unwrap();
}

#[test]
fn uploaded_scripts_are_not_executed() {
    let Some(php) = Php::start() else { return };
    let server = php.behind("");
    for target in [
        "/upload/photo.jpg/.php",
        "/upload/photo.jpg/x.php",
        "/upload/photo.jpg%2Fx.php",
        "/upload/photo.jpg/x.php/y.php",
        "/upload/photo.jpg/%2e%2e/photo.jpg/x.php",
        "/none.php",
        "/none.php/upload/photo.jpg",
    ] {
        let (status, text) = page(&server, target);
        assert!(status == 404 && !text.contains("was run"), "{target}: {status} {text}");
    }
    for target in ["/upload/photo.jpg%00.php", "/upload/photo.jpg%00x.php/"] {
        assert_eq!(page(&server, target).0, 400, "{target}");
    }
    // The uploaded file itself is served as static content.
    assert_eq!(page(&server, "/upload/photo.jpg").1, "<?php echo 'photo.jpg was run';");
}

#[test]
fn php_takes_uploads_of_100_mib() {
    const SIZE: usize = 100 << 20;
    let Some(php) = Php::start() else { return };
    for more in ["", "fastcgi_request_buffering off;"] {
        let server = php.behind(more);
        let mut client = server.connect().unwrap();
        client.send(format!("POST /body.php HTTP/1.1\r\nHost: x\r\nContent-Length: {SIZE}\r\n\r\n")).unwrap();
        let piece = vec![b'x'; 1 << 20];
        (0..SIZE / piece.len()).for_each(|_| client.send(&piece).unwrap());
        assert_eq!(client.read_response().unwrap().text(), SIZE.to_string(), "{more}");

        let begin = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
        let end = "\r\n--b--\r\n";
        let length = begin.len() + SIZE + end.len();
        let head = format!("Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {length}");
        client.send(format!("POST /upload.php HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n{begin}")).unwrap();
        (0..SIZE / piece.len()).for_each(|_| client.send(&piece).unwrap());
        client.send(end).unwrap();
        let text = client.read_response().unwrap().text();
        assert!(text.starts_with(&format!("0 {SIZE} ")), "{more}: {text}");
    }
}

#[test]
fn php_pages_are_cached_and_purged() {
    let Some(php) = Php::start() else { return };
    let server = php.behind(
        "fastcgi_cache pages; fastcgi_cache_key $request_uri; fastcgi_cache_valid 1h; \
         fastcgi_cache_purge $http_x_purge; fastcgi_keep_conn on;",
    );
    // Each response differs from the one before until one is stored.
    let mut kept = page(&server, "/time.php").1;
    let is_kept = || {
        let before = std::mem::replace(&mut kept, page(&server, "/time.php").1);
        before == kept
    };
    assert!(wait::until(wait::TIMEOUT, is_kept));
    assert!(request(&server, "GET /time.php", &["X-Purge: 1"]).status < 300);
    assert_ne!(page(&server, "/time.php").1, kept);
}

#[test]
fn serve_command_runs_php() {
    let Some(php) = Php::start() else { return };
    let port = Port::reserve().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    command.args(["serve", "--php", &php.socket(), "--listen", &port.number().to_string()]);
    command.arg(php.dir.join("site")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _group = Group::new(command.process_group(0).spawn().unwrap());
    let addr = ([127, 0, 0, 1], port.number()).into();
    assert!(wait::until(wait::TIMEOUT, || Client::connect(addr).is_ok()));
    let page = |target: &str| Client::get(addr, target).unwrap();
    assert_eq!(page("/some/page?q=1").text(), "GET /some/page?q=1 - 1");
    assert_eq!(page("/index.php/info").text(), "GET /index.php/info /info -");
    assert_eq!(page("/static.txt").text(), "static");
    for target in ["/upload/photo.jpg/x.php", "/upload/photo.jpg%2fx.php", "/none.php"] {
        assert_eq!(page(target).status, 404, "{target}");
    }
}

/// A Python program that serves the WSGI `application`; `None`, with a message, if it is not installed.
fn started(program: &str, args: &[&str], addr: std::net::SocketAddr, what: &str) -> Option<Group> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut group = match command.spawn() {
        Ok(child) => Group::new(child),
        Err(error) => {
            leave_out(Lacks::Machine, format_args!("{what}: {error}"));
            return None;
        }
    };
    let serves = || Client::connect(addr).is_ok();
    if wait::until(wait::TIMEOUT, || serves() || group.ended()) && serves() {
        return Some(group);
    }
    let _ = group.kill();
    leave_out(Lacks::Machine, format_args!("{what}: it does not start"));
    None
}

const WSGI: &str = "
def application(environ, start_response):
    size = int(environ.get('CONTENT_LENGTH') or 0)
    body = environ['wsgi.input'].read(size) if size else b''
    start_response('201 Made', [('Content-Type', 'text/plain'), ('X-Path', environ['PATH_INFO'])])
    return ['{} {} {}'.format(environ['REQUEST_METHOD'], environ['QUERY_STRING'], len(body)).encode()]
";

fn asks_python(server: &Server) {
    let response = get(server, "/a/b?c=d");
    assert_eq!((response.status, &*response.text()), (201, "GET c=d 0"));
    assert_eq!(response.field("X-Path"), Some("/a/b"));
    let mut client = server.connect().unwrap();
    client
        .send(format!(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{}",
            "x".repeat(1_000_000)
        ))
        .unwrap();
    assert_eq!(client.read_response().unwrap().text(), "POST  1000000");
}

#[test]
fn python_answers_behind_uwsgi() {
    let dir = TempDir::new("uwsgi").unwrap();
    let app = dir.write("app.py", WSGI).unwrap();
    let port = Port::reserve().unwrap();
    let addr = ([127, 0, 0, 1], port.number()).into();
    let socket = format!("127.0.0.1:{}", port.number());
    let app = app.display().to_string();
    let args = ["--plugin", "python3", "--socket", &socket, "--wsgi-file", &app, "--master", "--need-app"];
    let Some(_group) = started("uwsgi", &args, addr, "Python behind uwsgi_pass") else { return };
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    let server = crate::support::start_server(
        server(),
        &format!(
            "location / {{ include {0}/uwsgi_params; uwsgi_pass {addr}; }}
             location ~ ^/below(?<path>/.*)$ {{ include {0}/uwsgi_params; uwsgi_pass {addr};
                 uwsgi_param SCRIPT_NAME /below; uwsgi_param PATH_INFO $path; }}",
            conf.display()
        ),
    );
    // If a parameter is set twice, the last one counts.
    assert_eq!(get(&server, "/below/a").field("X-Path"), Some("/a"));
    asks_python(&server);
}

/// An application made with a framework.
const FLASK: &str = "
from flask import Flask, redirect, request, session
application = Flask(__name__)
application.secret_key = 'a test'
@application.route('/count/<name>')
def count(name):
    session['count'] = session.get('count', 0) + 1
    return '{} {} {}'.format(name, request.args.get('q'), session['count'])
@application.route('/form', methods=['POST'])
def form():
    return redirect('/count/' + request.form['name'], code=303)
@application.route('/file', methods=['POST'])
def file():
    return str(len(request.files['file'].read()))
";

#[test]
fn flask_answers_behind_uwsgi() {
    let dir = TempDir::new("flask").unwrap();
    let app = dir.write("app.py", FLASK).unwrap().display().to_string();
    let port = Port::reserve().unwrap();
    let addr = ([127, 0, 0, 1], port.number()).into();
    let socket = format!("127.0.0.1:{}", port.number());
    let args = ["--plugin", "python3", "--socket", &socket, "--wsgi-file", &app, "--master", "--need-app"];
    let Some(group) = started("uwsgi", &args, addr, "Flask behind uwsgi_pass") else { return };
    let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
    let server = crate::support::start_server(
        server(),
        &format!("location / {{ include {}/uwsgi_params; uwsgi_pass {addr}; }}", conf.display()),
    );
    // uWSGI accepts connections before it has loaded the application.
    if !wait::until(wait::TIMEOUT, || group.ended() || get(&server, "/none").status == 404) || group.ended() {
        return leave_out(Lacks::Machine, format_args!("Flask behind uwsgi_pass: its Python has no Flask"));
    }
    let first = get(&server, "/count/a%20b?q=%C3%BC");
    assert_eq!((first.status, &*first.text()), (200, "a b ü 1"));
    let cookie = first.field("Set-Cookie").unwrap().split(';').next().unwrap();
    assert_eq!(request(&server, "GET /count/c", &[&format!("Cookie: {cookie}")]).text(), "c None 2");
    let post = |target: &str, kind: &str, body: &[u8]| {
        let mut client = server.connect().unwrap();
        let head = format!(
            "POST {target} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.send([head.as_bytes(), body].concat()).unwrap();
        client.read_response().unwrap()
    };
    let form = post("/form", "application/x-www-form-urlencoded", b"name=d");
    assert_eq!((form.status, form.field("Location")), (303, Some("/count/d")));
    let begin = b"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n";
    let file = [&begin[..], &vec![b'x'; 700_000], b"\r\n--b--\r\n"].concat();
    assert_eq!(post("/file", "multipart/form-data; boundary=b", &file).text(), "700000");
}

/// Checks an application of flup (SCGI or FastCGI) behind `location`.
fn asks_flup(module: &str, location: impl FnOnce(std::net::SocketAddr) -> String) {
    let dir = TempDir::new("flup").unwrap();
    let port = Port::reserve().unwrap();
    let addr = ([127, 0, 0, 1], port.number()).into();
    let script = format!(
        "{WSGI}\nfrom flup.server.{module} import WSGIServer\nWSGIServer(application, bindAddress=('127.0.0.1', {})).run()",
        port.number()
    );
    let app = dir.write("app.py", script).unwrap().display().to_string();
    let what = format!("Python behind {module}, with flup");
    let Some(_group) = started("python3", &[&app], addr, &what) else { return };
    asks_python(&crate::support::start_server(server(), &location(addr)));
}

/// Path of a parameter file that the package ships.
fn params(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf").join(name).display().to_string()
}

#[test]
fn python_answers_behind_scgi() {
    asks_flup("scgi", |addr| {
        let params = params("scgi_params");
        format!(
            "location / {{ include {params}; scgi_param SCRIPT_NAME \"\"; scgi_param PATH_INFO $document_uri;
                 scgi_pass {addr}; }}"
        )
    });
}

#[test]
fn python_answers_behind_fastcgi() {
    asks_flup("fcgi", |addr| {
        let params = params("fastcgi_params");
        format!(
            "location / {{ include {params}; fastcgi_param SCRIPT_NAME \"\"; fastcgi_param PATH_INFO $document_uri;
                 fastcgi_pass {addr}; }}"
        )
    });
}

#[test]
fn every_documented_example_passes_the_configuration_test() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in ["php.md", "python.md"] {
        let text = fs::read_to_string(here.join("../../docs").join(page)).unwrap();
        let examples: Vec<_> =
            text.split("```nginx\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(examples.len() >= 3, "{page}: {}", examples.len());
        for example in examples {
            let dir = TempDir::new("pages").unwrap();
            fs::create_dir(dir.join("logs")).unwrap();
            for file in ["fastcgi_params", "fastcgi.conf", "uwsgi_params", "scgi_params"] {
                fs::copy(here.join("conf").join(file), dir.join(file)).unwrap();
            }
            let here = dir.path().display().to_string();
            let example = example.replace("/var/cache/tailwater", &here);
            let conf = dir.write("nginx.conf", format!("events {{ }} http {{ {example} }}")).unwrap();
            let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
            let output = command.arg("-tqp").arg(dir.path()).arg("-c").arg(conf).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("[warn]"), "{example}{said}");
        }
    }
}
