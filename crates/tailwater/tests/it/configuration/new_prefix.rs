//! Start in an empty prefix: missing directories, built-in include files, modules that are not installed.

use std::process::{Command, Stdio};

use tw_testkit::process::Group;
use tw_testkit::{Signal, TempDir, wait};

use crate::support::files::names_in;
use crate::support::{get, page, server, start};

/// Success and standard error of the program with these arguments.
fn run(args: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let run = command.args(args).stdin(Stdio::null()).output().unwrap();
    (run.status.success(), String::from_utf8(run.stderr).unwrap())
}

#[test]
fn start_creates_missing_directories_of_the_prefix() {
    let dir = TempDir::new("new-prefix").unwrap();
    let conf = dir
        .write(
            "n.conf",
            format!(
                "pid run/deep/t.pid; events {{ }} http {{ server {{ listen unix:{}; client_body_temp_path a/b; }} }}",
                dir.join("socket").display()
            ),
        )
        .unwrap();
    let prefix = dir.join("new/prefix");
    let conf = conf.to_str().unwrap();
    let at = prefix.to_str().unwrap();
    let (is_fine, said) = run(&["-tq", "-p", at, "-c", conf]);
    assert_eq!((is_fine, said.as_str()), (true, ""));
    assert!(!prefix.exists(), "a test makes nothing");

    let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
    let command = command.args(["-p", at, "-c", conf, "-g", "daemon off;"]).stdin(Stdio::null());
    let mut started = Group::new(command.spawn().unwrap());
    assert!(wait::until(wait::TIMEOUT, || prefix.join("run/deep/t.pid").exists()), "{:?}", names_in(&prefix));
    assert_eq!(names_in(prefix.join("logs")), ["access.log", "error.log"]);
    assert!(prefix.join("a/b").is_dir());
    // A later command with the same prefix finds its directories, which exist now.
    let order = ["-p", at, "-c", conf, "-s", "quit"];
    assert_eq!(run(&order), (true, String::new()));
    assert!(started.wait(wait::TIMEOUT).unwrap().success());
}

#[test]
fn reload_creates_missing_directories_of_the_prefix() {
    let mut server =
        server().with_master().start("http { server { listen 127.0.0.1:{port}; return 200 one; } }").unwrap();
    server
        .write_conf(
            "http { access_log more/logs/a.log; server { listen 127.0.0.1:{port}; return 200 two; } }",
        )
        .unwrap();
    server.signal(Signal::HUP).unwrap();
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/").1 == "two"), "{}", server.error_log());
    assert!(server.prefix().join("more/logs/a.log").exists());
}

#[test]
fn prefix_that_cannot_be_created_is_reported_by_test_and_start() {
    let dir = TempDir::new("no-prefix").unwrap();
    dir.write("file", "").unwrap();
    let conf = dir.write("n.conf", "events { } http { server { listen 127.0.0.1:1; } }").unwrap();
    let prefix = dir.join("file/prefix");
    for test in [true, false] {
        let mut args =
            vec!["-p", prefix.to_str().unwrap(), "-c", conf.to_str().unwrap(), "-g", "daemon off;"];
        args.extend(test.then_some("-tq"));
        let (is_fine, said) = run(&args);
        assert!(!is_fine, "{said}");
        let expected = format!(
            "tailwater: [emerg] mkdir() \"{}\" failed (20: Not a directory)\n    = \"-p DIRECTORY\" names another place\n",
            prefix.join("logs").display()
        );
        assert!(said.starts_with(&expected), "{said}");
    }
}

#[test]
fn commonly_included_files_are_built_in() {
    let server = start(
        server()
            .file("html/a.svg", "<svg/>")
            .file("html/a.txt", "\u{41f}\u{440}\u{438}\u{432}\u{435}\u{442}"),
        "include mime.types; include koi-utf; include win-utf; include /etc/nginx/koi-win;
         server { listen 127.0.0.1:{port}; root html; charset_types text/plain;
           location / { }
           location /koi { alias html; charset koi8-r; source_charset utf-8; }
           location /win { alias html; charset windows-1251; source_charset utf-8; }
           location /fastcgi { include fastcgi_params; include fastcgi.conf; fastcgi_pass 127.0.0.1:1; }
           location /uwsgi { include uwsgi_params; uwsgi_pass 127.0.0.1:1; }
           location /scgi { include scgi_params; scgi_pass 127.0.0.1:1; }
           location /proxy { include proxy_params; proxy_pass http://127.0.0.1:1; } }",
    );
    assert_eq!(get(&server, "/a.svg").field("Content-Type"), Some("image/svg+xml"));
    assert_eq!(get(&server, "/koi/a.txt").body, b"\xf0\xd2\xc9\xd7\xc5\xd4");
    assert_eq!(get(&server, "/win/a.txt").body, b"\xcf\xf0\xe8\xe2\xe5\xf2");
}

#[test]
fn existing_file_replaces_the_built_in_one() {
    let types = "types { text/special txt; }";
    let http = "include mime.types; server { listen 127.0.0.1:{port}; root html; }";
    let server = start(server().file("conf/mime.types", types).file("html/a.txt", "a"), http);
    assert_eq!(get(&server, "/a.txt").field("Content-Type"), Some("text/special"));
}

#[test]
fn built_in_file_is_used_only_at_its_own_path() {
    let dir = TempDir::new("elsewhere").unwrap();
    for (name, is_built_in) in [
        ("mime.types", true),
        ("/etc/nginx/no-such/mime.types", false),
        ("more/mime.types", false),
        ("mime.type", false),
        ("mime.types*", true),
    ] {
        let conf = format!(
            "error_log stderr; events {{ }} http {{ include {name}; server {{ listen 127.0.0.1:1; }} }}"
        );
        let conf = dir.write("n.conf", conf).unwrap();
        let (is_fine, said) = run(&["-t", "-p", dir.path().to_str().unwrap(), "-c", conf.to_str().unwrap()]);
        assert_eq!(is_fine, is_built_in, "{name}: {said}");
        let note = format!("the built-in \"{name}\" is used in ");
        assert_eq!(said.contains(&note), name == "mime.types", "{name}: {said}");
    }
}

#[test]
fn missing_modules_are_warned_of_once_each() {
    let dir = TempDir::new("modules").unwrap();
    let modules = [
        "ngx_http_geoip_module",
        "ngx_http_perl_module",
        "ngx_mail_module",
        "ngx_http_xslt_filter_module",
        "ngx_pagespeed",
    ];
    for module in modules {
        let text = format!("load_module modules/{module}.so;\n");
        dir.write(format!("modules-enabled/50-mod-{module}.conf"), text).unwrap();
    }
    let conf = |more: &str| {
        format!(
            "error_log stderr; include modules-enabled/*.conf; events {{ }} http {{ {more} server {{ listen 127.0.0.1:1; }} }}"
        )
    };
    let at = dir.path().to_str().unwrap();
    let name = dir.write("n.conf", conf("")).unwrap();
    let (is_fine, said) = run(&["-t", "-p", at, "-c", name.to_str().unwrap()]);
    assert!(is_fine, "{said}");
    for module in modules {
        let warning = format!(
            "[warn] module \"{module}\" is not supported by this version of Tailwater, \"load_module\" has no effect in "
        );
        assert_eq!(said.matches(&warning).count(), 1, "{said}");
    }
    assert_eq!(said.matches("[warn]").count(), modules.len(), "{said}");
    for (directive, module) in [("geoip_country /x;", "geoip_country"), ("perl_modules x;", "perl_modules")] {
        let name = dir.write("n.conf", conf(directive)).unwrap();
        let (is_fine, said) = run(&["-t", "-p", at, "-c", name.to_str().unwrap()]);
        let mistake = said.lines().find(|line| line.contains("[emerg]"));
        assert!(!is_fine && mistake.is_some_and(|mistake| mistake.contains(module)), "{said}");
    }
}
