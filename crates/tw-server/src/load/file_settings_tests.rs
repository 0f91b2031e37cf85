//! Settings of files, as loading resolves them.

use tw_http_testkit::generation;

#[test]
fn files_are_locked_where_some_location_sends_them() {
    for (conf, expected) in [
        ("server { location / { sendfile off; } }", 0),
        ("server { location / { location /a { sendfile on; } } }", 64 << 20),
    ] {
        let generation = generation(conf);
        assert_eq!(generation.memory.hot_lock_size, 64 << 20);
        assert_eq!((generation.process.lock_max, generation.process.locks.max()), (expected, 0), "{conf}");
    }
}

#[test]
fn companions_of_open_file_cache_are_inherited_without_it() {
    let generation = generation(
        "open_file_cache_valid 5s; open_file_cache_min_uses 3; open_file_cache_errors on;
         server {
           location /none { }
           location /on { open_file_cache max=10 inactive=7s; open_file_cache_min_uses 4; }
           location /off {
             open_file_cache off; open_file_cache_valid 6s;
             location /off/on { open_file_cache max=20; }
           }
         }",
    );
    let shown = |at: usize| {
        let cache = generation.plans[at].core.files.open_file_cache?;
        Some((cache.max, cache.inactive.as_secs(), cache.valid.as_secs(), cache.min_uses, cache.errors))
    };
    // The first plan is the server's.
    let expected = [None, None, Some((10, 7, 5, 4, true)), None, Some((20, 60, 6, 3, true))];
    assert_eq!([0, 1, 2, 3, 4].map(shown), expected);
}
