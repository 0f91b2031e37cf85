//! Rules are compared here, and enforced in child processes that then try what an attacker would.

use tw_server::load::Kept;
use tw_testkit::TempDir;

use super::*;
use crate::conf::Source;

/// The configuration of this text, with `dir` for its prefix.
fn config(dir: &TempDir, text: &str) -> Config {
    let prefix = dir.path().as_os_str().as_encoded_bytes().to_vec();
    let text = text.replace("{prefix}", &dir.path().to_string_lossy());
    let source = Source::text(prefix, "conf", format!("events {{ }} {text}").into_bytes());
    source.load(&Kept::default(), &Console::new()).unwrap().config
}

/// A directory with what configurations of these tests name.
fn site() -> TempDir {
    let dir = TempDir::new("sandbox").unwrap();
    for name in ["html", "a", "a/b", "client_body_temp", "logs"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    dir.write("users", "x:{PLAIN}x\n").unwrap();
    dir
}

#[test]
fn rules_are_compared() {
    let dir = site();
    let rules = |main: &str, http: &str, role| {
        Rules::of(&config(&dir, &format!("{main} http {{ access_log off; server {{ {http} }} }}")), role)
    };
    let dav = "location /d/ { root {prefix}/a; dav_methods put; }";
    let deeper = "location /d/ { root {prefix}/a/b; dav_methods put; }";
    let anywhere = "location /d/ { root $host; dav_methods put; }";
    let log = "access_log logs/$host.log;";
    let worker = Role::Worker;
    for (main, old, new, expected) in [
        ("", "", "", None),
        ("", dav, "", None),
        ("", dav, deeper, None),
        ("", deeper, dav, Some("writing in \"{prefix}/a\"")),
        ("", "", log, Some("writing in \"{prefix}/logs\"")),
        ("", "", "root {prefix}/a;", None),
        ("", "", "location /d/ { root {prefix}/missing; dav_methods put; }", None),
        ("", anywhere, dav, Some("a sandbox that restricts other uses of files")),
        ("", "", "aio on;", Some("\"aio on\"")),
        ("", "aio on;", "", None),
        ("sandbox off;", "", dav, None),
        ("sandbox on;", "", "root {prefix}/a;", Some("reading \"{prefix}/a\"")),
        ("sandbox on;", "root {prefix};", "root {prefix}/a;", None),
        ("sandbox on;", dav, "root {prefix}/a;", None),
        (
            "sandbox on;",
            "",
            "auth_basic x; auth_basic_user_file {prefix}/users;",
            Some("reading \"{prefix}\""),
        ),
    ] {
        let (old, new) = (rules(main, old, worker), rules(main, new, worker));
        let expected = expected.map(|text: &str| text.replace("{prefix}", &dir.path().to_string_lossy()));
        assert_eq!(old.lacks(&new), expected, "{main} {old:?} {new:?}");
        assert_eq!(old.covers(&new), expected.is_none());
    }
    for main in ["", "sandbox on;", "sandbox off;"] {
        assert_eq!(rules("", "", worker).covers(&rules(main, "", worker)), main.is_empty());
        assert!(!rules(main, "", worker).covers(&rules(main, "", Role::Alone)));
    }
}

#[test]
fn a_directory_that_was_replaced_is_another_one() {
    let dir = site();
    let rules = || Rules::of(&config(&dir, "sandbox on; http { server { root {prefix}/a; } }"), Role::Worker);
    let old = rules();
    fs::rename(dir.join("a"), dir.join("old")).unwrap();
    assert!(old.covers(&rules()), "what is not there cannot be had by another process either");
    fs::create_dir(dir.join("a")).unwrap();
    assert!(!old.covers(&rules()));
}
