//! `geoip2`

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::SystemTime;

use tw_testkit::mmdb::{Mmdb, MmdbValue, country, map, text};
use tw_testkit::{Client, Lacks, Server, leave_out, wait};

use crate::support::metrics::metric;
use crate::support::reload::{reload, reload_until};
use crate::support::{count_in_error_log, get, refusal_of, request, server, start};

/// A database in which 127.0.0.0/8 is in `here`, 192.0.2.0/24 in Sweden and 2001:db8::/32 in Germany.
fn countries(here: &str) -> Mmdb {
    Mmdb::v6(28)
        .network("127.0.0.0/8", &country(here, "Here"))
        .network("192.0.2.0/24", &country("SE", "Sweden"))
        .network("2001:db8::/32", &country("DE", "Germany"))
        .network("198.51.100.0/24", &country("PX", "Proxies"))
}

/// Replaces a file at once, as programs that update databases do.
fn replace(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(new, path).unwrap();
}

fn database(server: &Server) -> PathBuf {
    server.prefix().join("conf/c.mmdb")
}

fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn variables_have_values_of_the_record() {
    let cities =
        Mmdb::v4(24).network("127.0.0.0/8", &map([("city", map([("names", map([("en", text("Lund"))]))]))]));
    let builder = server()
        .file("conf/c.mmdb", countries("ZZ").encode())
        .file("conf/city.mmdb", cities.built(1_700_000_000).encode());
    let server = start(
        builder,
        "geoip2 conf/c.mmdb {
             $own country iso_code;
             $code default=US source=$arg_ip country iso_code;
             $name source=$arg_ip country names en;
             $wrong default=none source=$arg_ip country names xx;
             $map default=map source=$arg_ip country;
         }
         geoip2 conf/city.mmdb { $geoip_city default=London city names en; $built metadata build_epoch; }
         map $code $is_near { SE yes; default no; }
         server {
             listen 127.0.0.1:{port};
             location / { return 200 '$own|$code|$name|$wrong|$map|$is_near'; }
             location /city { return 200 '$geoip_city $built'; }
         }",
    );
    for (ip, expected) in [
        ("192.0.2.1", "SE|Sweden|none|map|yes"),
        ("::ffff:192.0.2.1", "SE|Sweden|none|map|yes"),
        ("2001:db8::1", "DE|Germany|none|map|no"),
        ("203.0.113.1", "US||none|map|no"),
        ("2001:db9::1", "US||none|map|no"),
        ("junk", "US||none|map|no"),
        ("", "US||none|map|no"),
        ("unix:/a", "US||none|map|no"),
    ] {
        assert_eq!(get(&server, &format!("/?ip={ip}")).text(), format!("ZZ|{expected}"), "{ip}");
    }
    assert_eq!(get(&server, "/city").text(), "Lund 1700000000");
}

#[test]
fn trusted_proxies_name_the_address() {
    let common = "geoip2 conf/c.mmdb { $code default=none country iso_code; $fixed source=$remote_addr country iso_code; }
                  geoip2_proxy 127.0.0.1; geoip2_proxy 198.51.100.0/24;";
    for (more, expected) in [
        ("", ["ZZ", "SE", "PX", "PX", "none"]),
        ("geoip2_proxy_recursive on;", ["ZZ", "SE", "SE", "SE", "none"]),
    ] {
        let server = start(
            server().file("conf/c.mmdb", countries("ZZ").encode()),
            &format!("{common} {more} server {{ listen 127.0.0.1:{{port}}; return 200 '$code $fixed'; }}"),
        );
        for (fields, expected) in [
            &[][..],
            &["X-Forwarded-For: 192.0.2.1"],
            &["X-Forwarded-For: 192.0.2.1, 198.51.100.1"],
            &["X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 198.51.100.1"],
            &["X-Forwarded-For: 203.0.113.1"],
        ]
        .iter()
        .zip(expected)
        {
            assert_eq!(
                request(&server, "GET /", fields).text(),
                format!("{expected} ZZ"),
                "{more} {fields:?}"
            );
        }
    }
}

#[test]
fn untrusted_client_names_no_address() {
    let server = start(
        server().file("conf/c.mmdb", countries("ZZ").encode()),
        "geoip2_proxy 10.0.0.0/8; geoip2 conf/c.mmdb { $code country iso_code; }
         server { listen 127.0.0.1:{port}; return 200 $code; }",
    );
    assert_eq!(request(&server, "GET /", &["X-Forwarded-For: 192.0.2.1"]).text(), "ZZ");
}

#[test]
fn stream_shares_the_database() {
    let server = server()
        .file("conf/c.mmdb", countries("ZZ").encode())
        .start(
            "http { geoip2 conf/c.mmdb { $code country iso_code; }
                    server { listen 127.0.0.1:{port}; location / { return 200 $code; } location /m { metrics; } } }
             stream {
                 geoip2 conf/c.mmdb {
                     $code country iso_code; $other source=$set default=US country iso_code; $built metadata build_epoch;
                 }
                 log_format l '$code'; access_log logs/access.log l;
                 server { listen 127.0.0.1:{port1}; set $set 2001:db8::1; return '$code $other $built'; }
             }",
        )
        .unwrap();
    let mut client = Client::connect(server.addr_of(1)).unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"ZZ DE 1795132800");
    assert_eq!(server.access_log(1).unwrap(), ["ZZ"]);
    assert_eq!(get(&server, "/").text(), "ZZ");
    let built = format!(
        "tailwater_geoip2_database_build_timestamp_seconds{{file=\"{}\"}} ",
        database(&server).display()
    );
    let metrics = get(&server, "/m").text();
    assert_eq!(metrics.matches(&built).count(), 1, "{metrics}");
}

#[test]
fn changed_database_is_used_without_a_reload() {
    let conf = "user root; sandbox on; worker_processes 2; http {
        geoip2 conf/c.mmdb { auto_reload 1s; $code country iso_code; $built metadata build_epoch;
                             $checked metadata last_check; $changed metadata last_change; }
        server { listen 127.0.0.1:{port}; location / { return 200 '$code $built'; }
                 location /times { return 200 '$checked $changed'; } location /metrics { metrics; } } }
        stream { geoip2 conf/c.mmdb { $code country iso_code; } server { listen 127.0.0.1:{port1}; return $code; } }";
    let builder = server().file("conf/c.mmdb", countries("AA").built(1000).encode()).with_master();
    let server = builder.start(conf).unwrap();
    let path = database(&server);
    let reloads = |result| {
        metric(&server, &format!("file_reloads_total{{file=\"{}\",result=\"{result}\"}}", path.display()))
    };
    let loaded = seconds_of(SystemTime::now());
    let is_answered = |expected: &str| {
        let is_there = || Client::get(server.addr(), "/").is_ok_and(|response| response.text() == expected);
        assert!(
            wait::until(wait::TIMEOUT, || (0..8).all(|_| is_there())),
            "{expected}: {}",
            server.error_log()
        );
    };
    is_answered("AA 1000");

    // Requests run meanwhile: each has one of the two values.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        let text = get(&server, "/").text();
                        assert!(["AA 1000", "BB 2000"].contains(&&*text), "{text}");
                    }
                })
            })
            .collect();
        replace(&path, &countries("BB").built(2000).encode());
        is_answered("BB 2000");
        is_over.store(true, Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    server.wait_error_log(&format!("GeoIP2 database \"{}\" was reloaded", path.display())).unwrap();
    assert_eq!(Client::connect(server.addr_of(1)).unwrap().read_until_close().unwrap(), b"BB");
    assert_eq!((reloads("success"), reloads("failed")), (1, 0));

    // A check later, it is still the same one.
    let checked = || get(&server, "/times").text().split_once(' ').unwrap().0.parse::<u64>().unwrap();
    let then = checked();
    assert!(then >= loaded && wait::until(wait::TIMEOUT, || checked() > then));
    assert_eq!(reloads("success"), 1);
    let changed = seconds_of(fs::metadata(&path).unwrap().modified().unwrap());
    assert!(get(&server, "/times").text().ends_with(&format!(" {changed}")));

    // A broken one is reported once and not used, nor is a missing one.
    let wrong = countries("CC").metadata("record_size", MmdbValue::U16(20)).encode();
    for (spoil, why) in [
        (&(|| replace(&path, b"nonsense")) as &dyn Fn(), "could not find MaxMind DB metadata in file"),
        (&|| fs::remove_file(&path).unwrap(), "failed (2: No such file or directory)"),
        (&|| replace(&path, &wrong), "record_size - Expected: 24, 28, or 32 Actual: 20"),
    ] {
        spoil();
        let said = format!("{why}, the old one stays in use");
        server.wait_error_log(&said).unwrap();
        let then = checked();
        assert!(wait::until(wait::TIMEOUT, || checked() > then + 1));
        assert_eq!(count_in_error_log(&server, &said), 1);
        is_answered("BB 2000");
    }
    assert!(reloads("failed") >= 3);
    replace(&path, &countries("DD").built(3000).encode());
    is_answered("DD 3000");
    assert_eq!(reloads("success"), 2);
}

#[test]
fn reload_reads_a_changed_database() {
    let conf = |code: &str| {
        format!(
            "http {{ geoip2 conf/c.mmdb {{ $code country iso_code; }} server {{ listen 127.0.0.1:{{port}}; return 200 '{code} $code'; }} }}"
        )
    };
    for builder in [server(), server().with_master()] {
        let mut server = builder.file("conf/c.mmdb", countries("AA").encode()).start(&conf("1")).unwrap();
        let path = database(&server);
        assert_eq!(get(&server, "/").text(), "1 AA");
        reload_until(&mut server, &conf("2"), "/", "2 AA");
        replace(&path, &countries("BB").encode());
        reload_until(&mut server, &conf("3"), "/", "3 BB");
        replace(&path, b"nonsense");
        reload(&mut server, &conf("4"));
        server.wait_error_log(&format!("cannot load GeoIP2 database \"{}\": ", path.display())).unwrap();
        assert_eq!(get(&server, "/").text(), "3 BB");
    }
}

/// The master opens it for the worker process, which may not.
#[test]
fn database_of_root_is_read_by_reloads() {
    if !rustix::process::geteuid().is_root() {
        return leave_out(Lacks::Run, "only root can have a worker process of another user");
    }
    let conf = |code: &str| {
        format!(
            "sandbox on; http {{ geoip2 conf/c.mmdb {{ $code country iso_code; }} server {{ listen 127.0.0.1:{{port}}; return 200 '{code} $code'; }} }}"
        )
    };
    let mut server =
        server().file("conf/c.mmdb", countries("AA").encode()).with_master().start(&conf("1")).unwrap();
    let path = database(&server);
    for (turn, code) in [("2", "BB"), ("3", "CC")] {
        replace(&path, &countries(code).encode());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        reload_until(&mut server, &conf(turn), "/", &format!("{turn} {code}"));
    }
}

#[test]
fn wrong_configurations_are_refused() {
    for (conf, expected) in [
        (
            "geoip2 /nowhere.mmdb { $a b; }",
            "cannot load GeoIP2 database \"/nowhere.mmdb\": open() failed (2: No such file or directory)",
        ),
        (
            "geoip2 /etc/passwd { $a b; }",
            "cannot load GeoIP2 database \"/etc/passwd\": invalid database: could not find MaxMind DB metadata in file",
        ),
        ("geoip2 /etc { $a b; }", "cannot load GeoIP2 database \"/etc\": "),
        ("geoip2_proxy junk;", "invalid network \"junk\""),
        ("geoip_country /x.dat;", "geoip2 FILE.mmdb"),
        ("server { geoip2 /x { } }", "\"geoip2\" directive is not allowed here"),
    ] {
        let said = refusal_of(&format!("http {{ {conf} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(said.contains(expected), "{conf}: {said}");
    }
    let said = refusal_of("stream { geoip_city /x.dat; server { listen 127.0.0.1:{port}; return x; } }");
    assert!(said.contains("geoip2 FILE.mmdb"), "{said}");
    let output = server()
        .file("conf/c.mmdb", countries("AA").encode())
        .arg("-t")
        .run("http { geoip2 conf/c.mmdb { $a b; } geoip2 conf/../conf/c.mmdb { $b b; } geoip2 conf/c.mmdb { $c b; } }")
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("duplicate GeoIP2 database \"") && !output.status.success(), "{said}");
}
