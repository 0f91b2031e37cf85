//! `proxy_cache_purge` in the forms of the free purge module, and conditions that are always true.

use tw_testkit::origin::origin;
use tw_testkit::{Server, wait};

use crate::support::{refusal_of, request, server, start};

/// A server whose cache is in front of one that numbers its answers; `purge` is in the location, `more` beside it.
fn cached(purge: &str, more: &str) -> Server {
    let addr = origin(|mut conn| {
        while conn.head().is_some() {
            conn.answer("", "body");
        }
    });
    start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=zone:1m; server {{ listen 127.0.0.1:{{port}}; \
               location / {{ proxy_pass http://{addr}; proxy_cache zone; proxy_cache_valid 1h; proxy_cache_key $uri; \
                 add_header X-Cache $upstream_cache_status; {purge} }} {more} }}"
        ),
    )
}

/// Sends requests until `target` is a hit.
fn wait_for_hit(server: &Server, target: &str) {
    let is_hit = || state(server, target) == "HIT";
    assert!(wait::until(wait::TIMEOUT, is_hit), "{target}: {}", server.error_log());
}

fn state(server: &Server, target: &str) -> String {
    request(server, &format!("GET {target}"), &[]).field("X-Cache").unwrap_or_default().to_owned()
}

fn status(server: &Server, line: &str) -> u16 {
    request(server, line, &[]).status
}

#[test]
fn method_form_purges_by_method_and_address_only() {
    for words in
        ["PURGE from 127.0.0.1", "PURGE from 192.0.2.0/24 127.0.0.0/8", "PURGE from all", "PURGE", "on"]
    {
        let server = cached(&format!("proxy_cache_purge {words};"), "");
        wait_for_hit(&server, "/a");
        wait_for_hit(&server, "/b");
        assert_eq!(state(&server, "/a"), "HIT", "{words}");
        assert_eq!(status(&server, "PURGE /a"), 200, "{words}");
        assert_eq!(status(&server, "PURGE /a"), 404, "{words}");
        assert_eq!((&*state(&server, "/a"), &*state(&server, "/b")), ("MISS", "HIT"), "{words}");
    }
    let server = cached("proxy_cache_purge PURGE from 192.0.2.1;", "");
    wait_for_hit(&server, "/a");
    assert_eq!(status(&server, "PURGE /a"), 403);
    assert_eq!(state(&server, "/a"), "HIT");
}

#[test]
fn purge_all_empties_the_cache() {
    let server = cached("proxy_cache_purge DELETE purge_all from 127.0.0.1;", "");
    wait_for_hit(&server, "/a");
    wait_for_hit(&server, "/b");
    assert_eq!(status(&server, "DELETE /a"), 200);
    assert_eq!((&*state(&server, "/a"), &*state(&server, "/b")), ("MISS", "MISS"));
}

#[test]
fn location_form_purges_the_key_it_names() {
    for module in ["proxy", "fastcgi", "scgi", "uwsgi"] {
        // A location of another gateway purges by the zone's name, too, where that gateway has such a zone.
        let zone = if module == "proxy" { "zone" } else { "other" };
        let more = format!(
            "location ~ /purge(/.*) {{ allow 127.0.0.1; deny all; {module}_cache_purge {zone} $1; }}"
        );
        let server = match module {
            "proxy" => cached("", &more),
            _ => start(
                server(),
                &format!(
                    "{module}_cache_path cache keys_zone=other:1m; server {{ listen 127.0.0.1:{{port}}; {more} }}"
                ),
            ),
        };
        if module == "proxy" {
            wait_for_hit(&server, "/a");
            let purged = request(&server, "GET /purge/a", &[]);
            assert_eq!((purged.status, &*purged.text()), (200, "Successful purge\n"));
            assert_eq!(state(&server, "/a"), "MISS");
        }
        assert_eq!(status(&server, "GET /purge/none"), 404, "{module}");
    }
}

#[test]
fn conditions_that_always_hold_are_refused() {
    for (words, expected) in [
        ("purge", "cache purge condition \"purge\" always holds"),
        ("1", "cache purge condition \"1\" always holds"),
        ("$arg_a $arg_b yes", "cache purge condition \"yes\" always holds"),
        ("none $1", "cache purge zone \"none\" is unknown"),
        ("PURGE from", "invalid parameter \"from\" of a cache purge"),
        ("PURGE from here", "invalid parameter \"here\" of a cache purge"),
        ("PURGE purge_all 127.0.0.1", "invalid parameter \"127.0.0.1\" of a cache purge"),
    ] {
        let said = refusal_of(&format!(
            "http {{ proxy_cache_path cache keys_zone=zone:1m; server {{ listen 127.0.0.1:{{port}}; \
               location / {{ proxy_cache_purge {words}; }} }} }}"
        ));
        assert!(said.contains(expected), "{words}: {said}");
    }
}
