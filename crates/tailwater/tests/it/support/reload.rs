//! Reloads: a new configuration, and every loop that has it.

use tw_testkit::{Client, Server, Signal, wait};

/// Writes a configuration and has it loaded; does not wait for that.
pub(crate) fn reload(server: &mut Server, conf: &str) {
    server.write_conf(conf).unwrap();
    server.signal(Signal::HUP).unwrap();
}

/// Reloads, and waits until every loop answers `target` with `expected`.
pub(crate) fn reload_until(server: &mut Server, conf: &str, target: &str, expected: &str) {
    reload(server, conf);
    wait_for_all_loops(server, target, expected);
}

/// Waits until eight connections in a row are answered so: a reload reaches each loop by a message of its own.
pub(crate) fn wait_for_all_loops(server: &Server, target: &str, expected: &str) {
    let is_new = || Client::get(server.addr(), target).is_ok_and(|response| response.text() == expected);
    assert!(wait::until(wait::TIMEOUT, || (0..8).all(|_| is_new())), "{}", server.error_log());
}
