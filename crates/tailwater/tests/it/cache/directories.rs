//! Directories of caches: one cache and one server for each.

use std::os::unix::fs::symlink;

use tw_testkit::{Signal, TempDir};

use crate::support::server;

/// Output of `-t` for this `http` block.
fn check(http: &str) -> String {
    let output = server().arg("-t").run(&format!("http {{ {http} }}")).unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn overlapping_directories_are_refused_with_both_places() {
    let dir = TempDir::new("cache-directories").unwrap();
    std::fs::create_dir_all(dir.join("a/below")).unwrap();
    symlink(dir.join("a"), dir.join("link")).unwrap();
    let root = dir.path().display();
    let cache = format!("proxy_cache_path {root}/a keys_zone=one:1m;\n");
    for (other, uses) in [
        (format!("proxy_cache_path {root}/a keys_zone=two:1m;"), "cache"),
        (format!("proxy_cache_path {root}/a/ levels=1:2 keys_zone=two:1m;"), "cache"),
        (format!("fastcgi_cache_path {root}/a keys_zone=two:1m;"), "cache"),
        (format!("uwsgi_cache_path {root}/./a keys_zone=two:1m;"), "cache"),
        (format!("scgi_cache_path {root}/a/../a keys_zone=two:1m;"), "cache"),
        (format!("proxy_cache_path {root}/link keys_zone=two:1m;"), "cache"),
        (format!("proxy_cache_path {root}/link/below keys_zone=two:1m;"), "cache"),
        (format!("proxy_cache_path {root} keys_zone=two:1m;"), "cache"),
        (format!("proxy_temp_path {root}/a/temp;"), "directory of temporary files"),
        (format!("client_body_temp_path {root}/link;"), "directory of temporary files"),
        (
            format!("server {{ location / {{ fastcgi_temp_path {root}/a/new/temp; }} }}"),
            "directory of temporary files",
        ),
    ] {
        let said = check(&format!("{cache}{other}"));
        assert!(said.contains(&format!("[emerg] {uses} \"")), "{other}: {said}");
        // The message gives the position of the cache, then that of the other directive.
        let line =
            said.lines().find(|line| line.contains("shares files with the cache in")).unwrap_or_default();
        assert_eq!(line.matches("nginx.conf:").count(), 2, "{other}: {said}");
        assert!(said.contains("test failed"), "{other}: {said}");
    }
    let apart = check(&format!(
        "{cache} proxy_cache_path {root}/ab keys_zone=two:1m; proxy_temp_path {root}/temp; client_body_temp_path {root}/temp;"
    ));
    assert!(apart.contains("test is successful"), "{apart}");
}

#[test]
fn directory_of_a_running_cache_is_refused_to_another_server() {
    let dir = TempDir::new("cache-shared").unwrap();
    let conf = format!(
        "http {{ proxy_cache_path {}/cache keys_zone=z:1m; server {{ listen 127.0.0.1:{{port}}; }} }}",
        dir.path().display()
    );
    let refused = || server().start(&conf).err().map(|error| error.to_string());
    let mut first = server().start(&conf).unwrap();
    let error = refused().unwrap();
    let expected = format!("another process (pid {}) has its cache in \"", first.pid());
    assert!(error.contains(&expected), "{error}");
    // A test of the configuration, and a reload of the server that has it, do not mind.
    let checked = server().arg("-t").run(&conf).unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    first.signal(Signal::HUP).unwrap();
    first.wait_error_log("the configuration is taken over").unwrap();
    assert!(refused().is_some());
    first.signal(Signal::QUIT).unwrap();
    assert!(first.wait_exit(tw_testkit::wait::TIMEOUT).unwrap().success());
    assert_eq!(refused(), None);
}
