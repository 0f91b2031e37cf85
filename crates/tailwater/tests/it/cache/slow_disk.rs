//! A cache whose disk gets slow leaves it alone (`slow=`).

use std::time::{Duration, Instant};

use tw_testkit::origin::origin;
use tw_testkit::{Response, wait};

use crate::support::cache::wait_stored;
use crate::support::metrics::{metric, metrics_text};
use crate::support::reload::reload;
use crate::support::{get, server};

/// Time after which an operation is slow in these tests, and that each takes on the disk while it is slow.
const SLOW: Duration = Duration::from_millis(100);
const PAGES: u64 = 12;

fn status(response: &Response) -> &str {
    response.field("X-Cache").unwrap_or_default()
}

#[test]
fn slow_disk_is_left_alone_and_the_origin_is_asked() {
    let addr = origin(|mut conn| {
        while let Some(head) = conn.head() {
            conn.answer("", head.split(' ').nth(1).unwrap_or_default());
        }
    });
    let conf = |fault: &str| {
        format!(
            "{fault}
             http {{ proxy_cache_path cache levels=1:2 keys_zone=one:1m slow=100ms;
                 server {{ listen 127.0.0.1:{{port}};
                     location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h;
                         add_header X-Cache $upstream_cache_status; add_header X-Why $cache_why; }}
                     location = /metrics {{ metrics; }} }} }}"
        )
    };
    let mut server = server().arg("--enable-fault-injection").start(&conf("")).unwrap();
    for page in 0..PAGES {
        assert_eq!(status(&get(&server, &format!("/{page}"))), "MISS");
    }
    wait_stored(&server, PAGES as usize);
    server.wait_error_log(" files, ").unwrap();
    // The reload closes open files, so that each page is read from the disk.
    reload(&mut server, &conf("debug_disk_fault path=cache op=open delay=150ms;"));
    server.wait_error_log("fault injection: ").unwrap();
    let mut slow_hits = 0;
    for page in 0..PAGES {
        let began = Instant::now();
        let response = get(&server, &format!("/{page}"));
        assert_eq!((response.status, response.text()), (200, format!("/{page}")));
        let took = began.elapsed();
        match status(&response) {
            "HIT" => slow_hits += u64::from(took > SLOW),
            _ => assert!(
                slow_hits >= 5 && response.field("X-Why") == Some("slow-disk"),
                "{}",
                metrics_text(&server)
            ),
        }
    }
    assert_eq!(slow_hits, 5, "{}", server.error_log());
    server.wait_error_log("cache \"one\": its disk is slow or fails, and is left alone for 5 s").unwrap();
    assert_eq!(metric(&server, "cache_breaker_trips_total{cache=\"one\"}"), 1);
    assert!(metrics_text(&server).contains("cache_disk_admitted_ratio{cache=\"one\"} 0\n"));
    // Pages that were read before are in memory, and the others are not stored.
    assert_eq!(status(&get(&server, "/0")), "HIT");
    assert_eq!(status(&get(&server, "/new")), "MISS");
    assert_eq!(metric(&server, "cache_stored_total{cache=\"one\"}"), PAGES);
    // After the pause, some keys are looked up again, then all.
    reload(&mut server, &conf(""));
    let is_asked = || {
        (0..PAGES).for_each(|page| assert_eq!(get(&server, &format!("/{page}")).status, 200));
        !metrics_text(&server).contains("cache_disk_admitted_ratio{cache=\"one\"} 0\n")
    };
    assert!(wait::until(wait::TIMEOUT, is_asked), "{}", metrics_text(&server));
}
