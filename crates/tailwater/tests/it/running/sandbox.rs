//! `sandbox`: privileges that a worker process has given up, and features that go on working.
//!
//! `worker::sandbox` tests the rules themselves.

use std::fs::{self, Permissions};
use std::io;
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;

use tw_testkit::mmdb::{Mmdb, country};
use tw_testkit::origin::origin;
use tw_testkit::{Client, Lacks, Server, TempDir, leave_out, wait};

use crate::support::is_root;
use crate::support::process::{children, worker};
use crate::support::reload::{reload, wait_for_all_loops};
use crate::support::{get, page, refusal_of, request, server};

/// A server with a master.
fn started(main: &str, in_server: &str) -> Server {
    let builder = server()
        .with_master()
        .file("html/page.txt", "page")
        .file("html/page.txt.gz", "packed")
        .file("html/sub/x", "x")
        .file("elsewhere/secret.txt", "secret")
        .file("other/page.txt", "other")
        .file("conf/users", "tom:{PLAIN}cat\n");
    let server = builder.start(&conf(main, in_server)).unwrap();
    for name in ["html", "elsewhere", "logs"] {
        fs::set_permissions(server.prefix().join(name), Permissions::from_mode(0o777)).unwrap();
    }
    symlink("../elsewhere/secret.txt", server.prefix().join("html/link.txt")).unwrap();
    symlink("../elsewhere", server.prefix().join("html/links")).unwrap();
    server
}

fn conf(main: &str, in_server: &str) -> String {
    format!("{main} http {{ server {{ listen 127.0.0.1:{{port}}; {in_server} }} }}")
}

/// The worker process. It has given up everything before it answers anything.
fn worker_of(server: &Server) -> u32 {
    get(server, "/page.txt");
    worker(server)
}

/// Values of fields of `/proc/PID/task/N/status` that all threads share.
fn common<const N: usize>(pid: u32, fields: [&str; N]) -> [String; N] {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let statuses: Vec<String> = tasks
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok())
        .filter(|status| !status.is_empty())
        .collect();
    fields.map(|field| {
        let value = |status: &String| {
            let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t")).unwrap();
            line.split_whitespace().next().unwrap().to_owned()
        };
        let values: Vec<_> = statuses.iter().map(value).collect();
        let first = values.first().unwrap().clone();
        assert!(values.iter().all(|value| *value == first), "{field} differs: {values:?}");
        first
    })
}

const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
const NONE: &str = "0000000000000000";
/// CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID.
const FILES: &str = "000000000000001f";
/// NET_RAW
const ADDRESSES: &str = "0000000000002000";

fn can_lose_privileges() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        leave_out(Lacks::Run, "only root has privileges to give up: capabilities");
    }
    root
}

#[test]
fn every_worker_thread_is_confined_and_the_master_is_not() {
    let server = started("worker_processes 2;", "location /new/ { aio threads; }");
    assert_eq!(page(&server, "/page.txt"), (200, "page".into()));
    let pid = worker_of(&server);
    // The loops have the loop guard as well.
    assert_eq!(common(pid, ["NoNewPrivs", "Seccomp"]), ["1", "2"]);
    assert_eq!(common(server.pid(), ["NoNewPrivs", "Seccomp"]), ["0", "0"]);
    if can_lose_privileges() {
        assert_ne!(common(pid, ["Uid"]), ["0"]);
        assert_eq!(common(pid, SETS), [NONE; 5]);
    }
}

#[test]
fn root_worker_keeps_file_capabilities_only() {
    if !can_lose_privileges() {
        return;
    }
    let server = started("user root;", "");
    assert_eq!(common(worker_of(&server), SETS), [NONE, FILES, FILES, FILES, NONE]);
    let off = started("user root; sandbox off;", "");
    let [bounding, effective] = common(worker_of(&off), ["CapBnd", "CapEff"]);
    assert!(bounding != FILES && effective != FILES, "{bounding} {effective}");
}

#[test]
fn transparent_bind_keeps_its_capability() {
    if !can_lose_privileges() {
        return;
    }
    let addr = origin(|mut conn| {
        let _ = conn.head();
        let peer = conn.reader.get_ref().peer_addr().unwrap().ip().to_string();
        conn.answer("", peer);
    });
    let pass = |parameter: &str| {
        format!("location /pass {{ proxy_pass http://{addr}; proxy_bind 127.0.0.9 {parameter}; }}")
    };
    for main in ["", "sandbox off;"] {
        let server = started(main, &pass("transparent"));
        assert_eq!(page(&server, "/pass"), (200, "127.0.0.9".into()), "{main}");
        assert_ne!(common(worker_of(&server), ["Uid"]), ["0"]);
        let [inheritable, permitted, effective, _, ambient] = common(worker_of(&server), SETS);
        assert_eq!([&*inheritable, &permitted, &effective, &ambient], [NONE, ADDRESSES, ADDRESSES, NONE]);
    }
    let single = server().in_one_process().start(&conf("", &pass("transparent"))).unwrap();
    assert_eq!(page(&single, "/pass"), (200, "127.0.0.9".into()));
    assert_eq!(common(single.pid(), SETS), [NONE, ADDRESSES, ADDRESSES, ADDRESSES, NONE]);
    // A reload that asks for it makes another worker process.
    let mut server = started("", &pass(""));
    let before = worker_of(&server);
    assert_eq!(common(before, SETS), [NONE; 5]);
    reload(&mut server, &conf("", &pass("transparent")));
    assert!(wait::until(wait::TIMEOUT, || children(server.pid()).iter().all(|pid| *pid != before)));
    assert_eq!(page(&server, "/pass"), (200, "127.0.0.9".into()));
}

#[test]
fn single_process_is_confined_and_can_reload() {
    let mut server = server()
        .in_one_process()
        .file("html/page.txt", "page")
        .file("other/page.txt", "other")
        .start(&conf("", "root html;"))
        .unwrap();
    assert_eq!(common(server.pid(), ["NoNewPrivs", "Seccomp"]), ["1", "2"]);
    if can_lose_privileges() {
        assert_eq!(common(server.pid(), SETS), [NONE; 5]);
    }
    reload(&mut server, &conf("", "listen 127.0.0.1:{port1}; root other;"));
    wait_for_all_loops(&server, "/page.txt", "other");
    assert_eq!(Client::get(server.addr_of(1), "/page.txt").unwrap().text(), "other");
    // The sandbox of the running process does not allow what the first configuration did not need.
    reload(&mut server, &conf("", "location / { root html; dav_methods put; }"));
    let refused =
        format!("the sandbox of the running process does not allow writing in \"{}/html\"", prefix(&server));
    server.wait_error_log(&refused).unwrap();
    wait_for_all_loops(&server, "/page.txt", "other");
}

fn prefix(server: &Server) -> String {
    server.prefix().display().to_string()
}

#[test]
fn links_are_followed_unless_reading_is_restricted() {
    for level in ["off", "auto"] {
        let server = started(&format!("sandbox {level};"), "");
        assert_eq!(page(&server, "/link.txt"), (200, "secret".into()), "{level}");
        assert_eq!(page(&server, "/links/secret.txt"), (200, "secret".into()), "{level}");
    }
    if !has_landlock() {
        return;
    }
    let server = started("sandbox on;", "autoindex on; add_header X-Inline $disk_inline always;");
    for target in ["/link.txt", "/links/secret.txt"] {
        for _ in 0..2 {
            let denied = get(&server, target);
            assert_eq!(denied.status, 403, "{target}");
            // A job determines the source of the denial, even if everything is in memory, because the lookup takes too
            // long for a loop.
            assert_eq!(denied.field("X-Inline"), Some("0"), "{target}");
        }
        // The error log names the sandbox as the source of the denial.
        let line = format!(
            "open() \"{prefix}/html{target}\" failed (13: Permission denied), denied by \"sandbox\", which allows \
             reading in \"{prefix}/client_body_temp\", \"{prefix}/html\", client: ",
            prefix = prefix(&server)
        );
        server.wait_error_log(&line).unwrap();
    }
    assert_eq!(get(&server, "/links/").status, 403);
}

#[test]
fn permission_errors_are_not_attributed_to_the_sandbox() {
    if is_root("a file that may not be read") || !has_landlock() {
        return;
    }
    let server = started("sandbox on;", "");
    let page = server.prefix().join("html/page.txt");
    fs::set_permissions(&page, Permissions::from_mode(0o200)).unwrap();
    assert_eq!(get(&server, "/page.txt").status, 403);
    server.wait_error_log("page.txt\" failed (13: Permission denied), client: ").unwrap();
}

#[test]
fn writing_through_a_link_is_denied_by_the_sandbox() {
    if !has_landlock() {
        return;
    }
    let server = started("", "dav_methods PUT MKCOL;");
    fs::set_permissions(server.prefix().join("elsewhere"), Permissions::from_mode(0o777)).unwrap();
    assert_eq!(request(&server, "MKCOL /links/d/", &[]).status, 403);
    let line = format!(
        "mkdir() \"{prefix}/html/links/d\" failed (13: Permission denied), denied by \"sandbox\", which allows writing in ",
        prefix = prefix(&server)
    );
    server.wait_error_log(&line).unwrap();
}

#[test]
fn log_through_a_link_is_denied_by_the_sandbox() {
    if !has_landlock() {
        return;
    }
    let server = started("", "access_log logs/$arg_place/access.log; location / { return 204; }");
    for (name, mode) in [("elsewhere", 0o777), ("logs", 0o777)] {
        fs::set_permissions(server.prefix().join(name), Permissions::from_mode(mode)).unwrap();
    }
    symlink("../elsewhere", server.prefix().join("logs/links")).unwrap();
    assert_eq!(get(&server, "/?place=links").status, 204);
    let line = format!(
        "open() \"{prefix}/logs/links/access.log\" failed (13: Permission denied), denied by \"sandbox\", which allows \
         writing in ",
        prefix = prefix(&server)
    );
    server.wait_error_log(&line).unwrap();
}

#[test]
fn configuration_test_lists_writable_paths() {
    let tested = |main: &str, http: &str| {
        let dir = TempDir::new("places").unwrap();
        for name in ["logs", "client_body_temp", "dav"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        let conf = format!(
            "{main} events {{ }} http {{ access_log off; server {{ listen 127.0.0.1:1; root /; {http} }} }}"
        );
        dir.write("conf/nginx.conf", conf).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tailwater"));
        let output = command.arg("-t").arg("-p").arg(dir.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap().replace(dir.path().to_str().unwrap(), "P");
        said.lines().filter(|line| line.contains("sandbox")).map(str::to_owned).collect::<Vec<_>>()
    };
    let writes = "tailwater: \"sandbox auto\" lets the running server write only in P/client_body_temp";
    assert_eq!(tested("", ""), [format!("{writes}; its logs are open already")]);
    assert_eq!(
        tested("", "location /d/ { root dav; dav_methods PUT; }"),
        [format!("{writes}, P/dav; its logs are open already")]
    );
    assert_eq!(
        tested("sandbox on;", "location /d/ { alias none/; dav_methods PUT; }"),
        [concat!(
            "tailwater: \"sandbox on\" lets the running server read only in /, P/client_body_temp, ",
            "and write only in P/client_body_temp; its logs are open already; writing in P/none is refused: it does not exist"
        )]
    );
    assert_eq!(tested("sandbox off;", ""), Vec::<String>::new());
}

/// Directive, the configuration that uses it, and the directory that it opens.
type Place = (&'static str, &'static str, &'static str);

const WRITABLE: &[Place] = &[
    ("client_body_temp_path", "", "body"),
    ("proxy_temp_path", "proxy_temp_path p/proxy; location /a { proxy_pass http://127.0.0.1:1; }", "proxy"),
    (
        "fastcgi_temp_path",
        "fastcgi_temp_path p/fastcgi; location /b { fastcgi_pass 127.0.0.1:1; }",
        "fastcgi",
    ),
    ("uwsgi_temp_path", "uwsgi_temp_path p/uwsgi; location /c { uwsgi_pass 127.0.0.1:1; }", "uwsgi"),
    ("scgi_temp_path", "scgi_temp_path p/scgi; location /d { scgi_pass 127.0.0.1:1; }", "scgi"),
    ("proxy_cache_path", "location /e { proxy_pass http://127.0.0.1:1; proxy_cache c; }", "cache"),
    ("proxy_store", "location /f { proxy_pass http://127.0.0.1:1; proxy_store p/store/$uri; }", "store"),
    ("dav_methods", "location /g { root p/dav; dav_methods PUT; }", "dav"),
    ("dav_ext_methods", "location /h { root p/locks; dav_ext_methods LOCK; dav_ext_lock zone=l; }", "locks"),
    ("state", "location /i { proxy_pass http://u; }", "state"),
    ("keyval_zone", "", "keyval"),
    ("state_path", "", "acme"),
    ("state_directory", "", "fleet"),
    ("access_log", "access_log p/logs/$host.log;", "logs"),
    ("quic_log", "location /j { return 204; }", "qlog"),
    ("worker_rlimit_core", "", "core"),
];

const READABLE: &[Place] = &[
    ("root", "location /k { root p/root; }", "root"),
    ("alias", "location /l/ { alias p/alias/; }", "alias"),
    ("auth_basic_user_file", "location /m { auth_basic x; auth_basic_user_file p/users/file; }", "users"),
    ("auth_jwt_key_file", "location /n { auth_jwt x; auth_jwt_key_file p/keys/$host; }", "keys"),
    (
        "auth_jwt_revocation_list_sub",
        "location /p { auth_jwt x; auth_jwt_revocation_list_sub p/revoked/file; }",
        "revoked",
    ),
    ("geoip2", "", "geoip2"),
    ("fancyindex_header", "location /o { fancyindex on; fancyindex_header p/header/file local; }", "header"),
    (
        "ssl_certificate",
        "ssl_certificate p/certs/$ssl_server_name; ssl_certificate_key p/certs/$ssl_server_name;",
        "certs",
    ),
];

/// Directives in the tables of the guide: that of writable places, and that of readable ones.
fn documented_places() -> [Vec<String>; 2] {
    let page = include_str!("../../../../../docs/sandbox.md");
    let section = page.split_once("\n## Readable and writable places\n").unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let tables: Vec<_> = section.split("|---|---|\n").skip(1).collect();
    assert_eq!(tables.len(), 2);
    [tables[0], tables[1]].map(|table| {
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect()
    })
}

#[test]
fn places_of_the_guide_are_those_of_the_configuration_test() {
    let names = |places: &[Place]| places.iter().map(|(name, ..)| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(documented_places(), [names(WRITABLE), names(READABLE)]);

    let dir = TempDir::new("places").unwrap();
    for (.., place) in WRITABLE.iter().chain(READABLE) {
        fs::create_dir_all(dir.join("p").join(place)).unwrap();
    }
    let countries = Mmdb::v4(24).network("127.0.0.0/8", &country("SE", "Sweden"));
    fs::write(dir.join("p/geoip2/file.mmdb"), countries.encode()).unwrap();
    let server: String = WRITABLE.iter().chain(READABLE).map(|(_, text, _)| *text).collect();
    let conf = format!(
        "sandbox on; worker_rlimit_core 1m; working_directory {dir}/p/core; events {{ }}
         fleet edge {{ node n; engine nats://127.0.0.1:1; state_directory p/fleet; }}
         http {{
             acme_issuer a {{ uri https://acme.test/d; state_path p/acme; accept_terms_of_service; }}
             client_body_temp_path p/body; proxy_cache_path p/cache keys_zone=c:1m; dav_ext_lock_zone zone=l:1m;
             keyval_zone zone=k:64k state=p/keyval/file; keyval $uri $of_uri zone=k;
             geoip2 p/geoip2/file.mmdb {{ auto_reload 1m; $country country iso_code; }}
             upstream u {{ state p/state/file; }}
             server {{ listen 127.0.0.1:1 ssl; {server} }}
             server {{ listen 127.0.0.1:2 ssl; listen 127.0.0.1:2 quic; server_name a.test; quic_log p/qlog; access_log off;
                 acme_certificate a; ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }}
         }}",
        dir = dir.path().display()
    );
    // File names are relative to the configuration file or to the prefix, depending on the directive.
    dir.write("nginx.conf", conf).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let output = command.args(["-t", "-c", "nginx.conf", "-p"]).arg(dir.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let real = fs::canonicalize(dir.path()).unwrap();
    let (_, places) =
        said.split_once(" lets the running server read only in ").unwrap_or_else(|| panic!("{said}"));
    let (read, written_text) = places.split_once(", and write only in ").unwrap();
    let listed = |places: &str| places.split(", ").map(str::to_owned).collect::<Vec<_>>();
    let read = listed(read);
    let written_values = listed(written_text.split(';').next().unwrap());
    for (name, _, place) in WRITABLE {
        let path = real.join("p").join(place).display().to_string();
        assert!(written_values.contains(&path), "{name}: {path} is not in {written_values:?}");
        let is_read = !matches!(*name, "access_log" | "quic_log" | "worker_rlimit_core");
        assert_eq!(read.contains(&path), is_read, "{name}: {read:?}");
    }
    for (name, _, place) in READABLE {
        let path = real.join("p").join(place).display().to_string();
        assert!(read.contains(&path) && !written_values.contains(&path), "{name}: {path} is not in {read:?}");
    }
    // Only the places of the table are writable.
    let others: Vec<_> =
        written_values.iter().filter(|path| !path.starts_with(real.to_str().unwrap())).collect();
    assert_eq!((written_values.len(), others.len()), (WRITABLE.len(), 0), "{written_values:?}");
}

/// True if the kernel has Landlock; leaves the test out if not.
fn has_landlock() -> bool {
    let server = started("", "");
    let line = wait::some(wait::TIMEOUT, || {
        server.error_log().lines().find(|line| line.contains("sandbox: ")).map(str::to_owned)
    });
    let has = line.unwrap().contains("sandbox: landlock ");
    if !has {
        leave_out(Lacks::Machine, "this kernel has no landlock: what is refused by it");
    }
    has
}

#[test]
fn configured_features_work_in_the_sandbox() {
    for level in ["auto", "on"] {
        if level == "on" && !has_landlock() {
            return;
        }
        let dir = TempDir::new("syslog").unwrap();
        let local = UnixDatagram::bind(dir.join("socket")).unwrap();
        fs::set_permissions(dir.join("socket"), Permissions::from_mode(0o777)).unwrap();
        let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
        let logs = format!(
            "access_log syslog:server=unix:{},nohostname; access_log syslog:server={},nohostname;
             error_log logs/error.log info; error_log memory:64k info;",
            dir.join("socket").display(),
            remote.local_addr().unwrap()
        );
        let rest = "access_log logs/$status.log;
             location /sub/ { autoindex on; }
             location /packed/ { alias html/; gzip_static always; }
             location /users/ { alias html/; auth_basic x; auth_basic_user_file users; }
             location /dav/ { alias html/; dav_methods put delete; create_full_put_path on; }
             location /missing { error_page 404 /page.txt; }
             location /status { status_page; }
             location /metrics { metrics; }";
        let server = started(&format!("sandbox {level};"), &format!("{logs} {rest}"));
        assert_eq!(page(&server, "/page.txt"), (200, "page".into()), "{level}");
        assert!(page(&server, "/sub/").1.contains(">x<"), "{level}");
        assert_eq!(page(&server, "/packed/page.txt").1, "packed", "{level}");
        assert_eq!(
            request(&server, "GET /users/page.txt", &["Authorization: Basic dG9tOmNhdA=="]).status,
            200
        );
        assert_eq!(
            request(&server, "GET /users/page.txt", &["Authorization: Basic dG9tOmRvZw=="]).status,
            401
        );
        assert_eq!(page(&server, "/missing"), (404, "page".into()));
        assert_eq!(get(&server, "/status").status, 200);
        assert!(page(&server, "/metrics").1.contains("process_resident_memory_bytes"), "{level}");
        assert_eq!(put(&server, "/dav/deep/new").unwrap(), 201, "{level}: {}", server.error_log());
        assert_eq!(page(&server, "/deep/new"), (200, "body".into()), "{level}");
        assert_eq!(request(&server, "DELETE /dav/deep/new", &[]).status, 204);
        server.log("logs/200.log", 6).unwrap();
        local.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        remote.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        let mut at_local = [0; 512];
        let mut at_remote = [0; 512];
        let local = local.recv(&mut at_local).unwrap();
        let remote = remote.recv(&mut at_remote).unwrap();
        for line in [&at_local[..local], &at_remote[..remote]] {
            let text = String::from_utf8_lossy(line);
            assert!(text.contains("GET /page.txt"), "{level}: {text}");
        }
        if has_landlock() {
            assert_eq!(put(&server, "/dav/links/new").unwrap(), 403, "{level}");
        }
    }
}

fn put(server: &Server, target: &str) -> io::Result<u16> {
    let mut client = server.connect()?;
    client.send(format!("PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody"))?;
    Ok(client.read_response()?.status)
}

#[test]
fn reload_that_needs_more_access_starts_another_worker() {
    let mut server = started("", "");
    let first = worker_of(&server);
    let is_gone =
        |server: &Server, pid: u32| wait::until(wait::TIMEOUT, || !children(server.pid()).contains(&pid));
    // Reading is free.
    reload(&mut server, &conf("", "root other;"));
    wait_for_all_loops(&server, "/page.txt", "other");
    assert_eq!(worker_of(&server), first);
    reload(&mut server, &conf("", "location /dav/ { alias html/; dav_methods put; }"));
    wait_for_all_loops(&server, "/page.txt", "page");
    assert!(is_gone(&server, first), "{}", server.error_log());
    assert_eq!(put(&server, "/dav/new").unwrap(), 201);
    let second = worker_of(&server);
    // A configuration that needs fewer rights is no reason for a new worker process.
    reload(&mut server, &conf("", "root other;"));
    wait_for_all_loops(&server, "/page.txt", "other");
    assert_eq!(worker_of(&server), second);
    if !has_landlock() {
        return;
    }
    reload(&mut server, &conf("sandbox on;", "root other;"));
    assert!(is_gone(&server, second), "{}", server.error_log());
    wait_for_all_loops(&server, "/page.txt", "other");
    let third = worker_of(&server);
    // A directory of the same name is another one.
    fs::rename(server.prefix().join("other"), server.prefix().join("old")).unwrap();
    fs::create_dir(server.prefix().join("other")).unwrap();
    fs::write(server.prefix().join("other/page.txt"), "newer").unwrap();
    assert_eq!(get(&server, "/page.txt").status, 403);
    reload(&mut server, &conf("sandbox on;", "root other;"));
    assert!(is_gone(&server, third), "{}", server.error_log());
    wait_for_all_loops(&server, "/page.txt", "newer");
}

#[test]
fn paths_with_variables_are_refused() {
    let root = "root $host;";
    let said = refusal_of(&conf("sandbox on;", root));
    let line = "[emerg] a path that begins with a variable cannot be used with \"sandbox on\" in ";
    assert!(said.contains(line) && said.contains("nginx.conf:"), "{said}");
    assert!(refusal_of(&conf("sandbox maybe;", "")).contains("invalid value \"maybe\""));
    let server = started("", "location / { root $host; dav_methods put; }");
    let warned =
        "[warn] \"sandbox\" does not restrict where files are changed, because this path may lead anywhere";
    assert!(server.stderr().contains(warned), "{}", server.stderr());
}
