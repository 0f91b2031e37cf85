//! Upgrades of the binary, as an operator does them by signals.

use std::fs;

use tw_testkit::{Server, Signal, wait};

use super::process::{kill, stat};

/// Number in the pid file.
pub(crate) fn master(server: &Server) -> Option<u32> {
    fs::read_to_string(server.prefix().join("logs/server.pid")).ok()?.trim().parse().ok()
}

/// Starts a new binary beside the one that runs, and returns the master of the one and of the other.
fn change_binary(server: &Server) -> (u32, u32) {
    let old = master(server).unwrap();
    kill(old, Signal::USR2);
    let new = wait::some(wait::TIMEOUT, || master(server).filter(|pid| *pid != old));
    (old, new.unwrap_or_else(|| panic!("{}", server.error_log())))
}

/// Starts a new binary, and waits until it serves some new clients: `serving` tells the process that serves one. Returns both masters.
pub(crate) fn start_new_binary(server: &Server, serving: impl Fn() -> u32) -> (u32, u32) {
    let (old, new) = change_binary(server);
    assert!(wait::until(wait::TIMEOUT, || parent(serving()) == new), "{}", server.error_log());
    (old, new)
}

/// Starts a new binary, tells the old one to quit, and waits until all new clients come to the new one. Returns both masters.
pub(crate) fn upgrade(server: &Server, serving: impl Fn() -> u32) -> (u32, u32) {
    let (old, new) = change_binary(server);
    kill(old, Signal::QUIT);
    let is_new = || (0..8).all(|_| parent(serving()) == new);
    assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
    (old, new)
}

fn parent(pid: u32) -> u32 {
    stat(pid).map_or(0, |stat| stat.parent)
}
